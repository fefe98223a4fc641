//! Connections to the address service that have shown a certificate.

use std::{io, sync::Arc, time::Duration};

use futures::Stream;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tracing::{debug, warn};

use super::certificates::Tls;

const HANDSHAKE: Duration = Duration::from_secs(5);
/// How many may shake hands at a time.
const GUESTS: usize = 256;
/// For one, there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Those that come to this listener; each with what is current when it comes.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Tls,
) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> {
    let (arrived, arrivals) = mpsc::channel(1);
    tokio::spawn(accept(listener, tls, arrived));
    ReceiverStream::new(arrivals).map(Ok)
}

async fn accept(listener: TcpListener, mut tls: Tls, arrived: mpsc::Sender<TlsStream<TcpStream>>) {
    let mut guests = JoinSet::new();
    let work = async {
        // Until then they wait.
        while tls.wait_for(Option::is_some).await.is_ok() {
            tokio::select! {
                accepted = listener.accept(), if guests.len() < GUESTS => match accepted {
                    Ok((stream, from)) => {
                        let Some(config) = tls.borrow().clone() else { continue };
                        let arrived = arrived.clone();
                        guests.spawn(async move {
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
    };
    tokio::select! {
        () = work => {}
        () = arrived.closed() => {}
    }
}

async fn shake_hands(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await?
}
