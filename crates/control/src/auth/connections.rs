//! Who gets a connection: only so many at a time, in all and from each address, only so many new ones,
//! and nobody who does not take what is sent.

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
use tombolo_core::limit::{Seats, origin};
use tracing::debug;

use super::{PATIENCE, limits::Limits};

/// Open connections.
const MOST: usize = 1024;
/// Open connections from one address.
const MOST_FROM_ONE_ADDRESS: usize = 256;

/// Lets connections in.
#[derive(Clone)]
pub(super) struct Door {
    limits: Arc<Limits>,
    seats: Arc<Mutex<Seats<IpAddr>>>,
}

impl Door {
    pub fn new(limits: Arc<Limits>) -> Self {
        let seats = Arc::new(Mutex::new(Seats::new(MOST, MOST_FROM_ONE_ADDRESS)));
        Self { limits, seats }
    }

    fn enter(&self, stream: TcpStream) -> io::Result<Connection> {
        let from = stream.peer_addr()?.ip();
        let of = origin(from);
        let seats = &self.seats;
        if !self.limits.connection(from)
            || !seats.lock().unwrap_or_else(PoisonError::into_inner).enter(of)
        {
            debug!(%from, "has too many connections");
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let seat = Seat { of, seats: seats.clone() };
        stream.set_nodelay(true)?;
        Ok(Connection { stream, stuck: None, _seat: seat })
    }
}

impl<S> Accept<TcpStream, S> for Door {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.enter(stream).map(|connection| (connection, service)))
    }
}

/// A place among the open connections, as long as this is there.
struct Seat {
    of: IpAddr,
    seats: Arc<Mutex<Seats<IpAddr>>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).leave(&self.of);
    }
}

/// A connection that ends when the other side takes nothing for some time.
pub(super) struct Connection {
    stream: TcpStream,
    /// Runs while something waits to be taken.
    stuck: Option<Pin<Box<Sleep>>>,
    _seat: Seat,
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
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        stuck.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
