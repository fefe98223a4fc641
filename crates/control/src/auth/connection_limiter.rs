//! Limits connections: open ones in total and per address, new ones per address, and the time that
//! a client may leave the send buffer full.

use std::{
    future::{Ready, ready},
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use axum_server::accept::Accept;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};
use tombolo_core::limit::{ConnectionLimit, origin};
use tracing::debug;

use super::{CLIENT_TIMEOUT, limits::Limits};

/// Open connections in total.
const MAX_CONNECTIONS: usize = 1024;
/// Open connections per address.
const MAX_PER_ADDRESS: usize = 256;

/// Accepts connections within the limits.
#[derive(Clone)]
pub(super) struct ConnectionLimiter {
    limits: Arc<Limits>,
    limit: Arc<Mutex<ConnectionLimit<IpAddr>>>,
}

impl ConnectionLimiter {
    pub fn new(limits: Arc<Limits>) -> Self {
        let limit = Arc::new(Mutex::new(ConnectionLimit::new(MAX_CONNECTIONS, MAX_PER_ADDRESS)));
        Self { limits, limit }
    }

    fn admit(&self, stream: TcpStream) -> io::Result<Connection> {
        let from = stream.peer_addr()?.ip();
        let of = origin(from);
        let limit = &self.limit;
        if !self.limits.connection(from)
            || !limit.lock().unwrap_or_else(PoisonError::into_inner).acquire(of)
        {
            debug!(%from, "too many connections, closing");
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let slot = Slot { of, limit: limit.clone() };
        stream.set_nodelay(true)?;
        Ok(Connection { stream, write_timeout: None, _slot: slot })
    }
}

impl<S> Accept<TcpStream, S> for ConnectionLimiter {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.admit(stream).map(|connection| (connection, service)))
    }
}

/// A slot of the connection limit, released on drop.
struct Slot {
    of: IpAddr,
    limit: Arc<Mutex<ConnectionLimit<IpAddr>>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).release(&self.of);
    }
}

/// A connection that is closed when the client does not read for some time.
pub(super) struct Connection {
    stream: TcpStream,
    /// Runs while a write is blocked.
    write_timeout: Option<Pin<Box<Sleep>>>,
    _slot: Slot,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.write_timeout = None;
            return written;
        }
        let write_timeout =
            self.write_timeout.get_or_insert_with(|| Box::pin(sleep(CLIENT_TIMEOUT)));
        write_timeout.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
