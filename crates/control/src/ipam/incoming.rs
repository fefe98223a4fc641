//! Accepts TLS connections to the address service from clients with a certificate.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tombolo_runtime::task::{Task, Tasks};
use tracing::{debug, warn};

use super::certificates::Tls;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent TLS handshakes.
const MAX_HANDSHAKES: usize = 256;
/// Pause after a failed accept, for example when the file descriptors are used up.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener, each with the TLS configuration that is current when it is
/// accepted.
pub(super) struct Incoming {
    arrivals: mpsc::Receiver<TlsStream<TcpStream>>,
    _accepting: Task,
}

impl Incoming {
    /// Accepts until this is dropped.
    pub(super) fn new(listener: TcpListener, tls: Tls) -> Self {
        let (arrived, arrivals) = mpsc::channel(1);
        let accepting = accept(listener, tls, arrived);
        Self { arrivals, _accepting: Task::spawn("listener of the address service", accepting) }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TlsStream<TcpStream>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.arrivals.poll_recv(context).map(|stream| stream.map(Ok))
    }
}

async fn accept(listener: TcpListener, mut tls: Tls, arrived: mpsc::Sender<TlsStream<TcpStream>>) {
    let mut handshakes = Tasks::new();
    // Until the first certificate exists, connections wait in the backlog.
    while tls.wait_for(Option::is_some).await.is_ok() {
        tokio::select! {
            accepted = listener.accept(), if handshakes.len() < MAX_HANDSHAKES => match accepted {
                Ok((stream, from)) => {
                    let Some(config) = tls.borrow().clone() else { continue };
                    let arrived = arrived.clone();
                    handshakes.spawn("handshake of the address service", async move {
                        match handshake(stream, config).await {
                            // The server may have stopped.
                            Ok(stream) => drop(arrived.send(stream).await),
                            Err(error) => debug!(%from, %error, "TLS handshake failed"),
                        }
                    });
                }
                Err(error) => {
                    warn!(%error, retry_in = ?PAUSE, "address service can't accept a connection");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = handshakes.join_next() => {}
        }
    }
}

async fn handshake(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await?
}
