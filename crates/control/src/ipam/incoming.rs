//! Connections to the address service that have shown a certificate.

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

const HANDSHAKE: Duration = Duration::from_secs(5);
/// How many may shake hands at a time.
const GUESTS: usize = 256;
/// For one, there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Those that come to a listener; each with what is current when it comes.
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
    let mut guests = Tasks::new();
    // Until then they wait.
    while tls.wait_for(Option::is_some).await.is_ok() {
        tokio::select! {
            accepted = listener.accept(), if guests.len() < GUESTS => match accepted {
                Ok((stream, from)) => {
                    let Some(config) = tls.borrow().clone() else { continue };
                    let arrived = arrived.clone();
                    guests.spawn("handshake of the address service", async move {
                        match shake_hands(stream, config).await {
                            // The server may have ended.
                            Ok(stream) => drop(arrived.send(stream).await),
                            Err(error) => debug!(%from, "the address service: {error}"),
                        }
                    });
                }
                Err(error) => {
                    warn!("accept connections to the address service: {error}");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = guests.join_next() => {}
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await?
}
