//! A client of the auth service with a source address of its own, which can send arbitrary bytes.

use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::side::Side;

/// Longer than the timeout of the auth service for clients.
const LIMIT: Duration = Duration::from_secs(12);

/// A client with a loopback source address.
#[derive(Clone)]
pub struct Caller {
    service: String,
    from: Ipv4Addr,
    tls: TlsConnector,
}

/// A response of the auth service.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

/// A TLS connection for consecutive requests.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    read: Vec<u8>,
}

impl Caller {
    /// Creates a client that trusts the current certificate of the service.
    pub async fn new(side: &Side, from: [u8; 4]) -> Self {
        let pem = side.secret("liqo", "liqo-auth-cert", "tls.crt").await;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let service = side.url.trim_start_matches("https://").to_owned();
        Self { service, from: from.into(), tls: TlsConnector::from(Arc::new(config)) }
    }

    /// The same client with another source address.
    pub fn at(&self, from: [u8; 4]) -> Self {
        Self { from: from.into(), ..self.clone() }
    }

    /// The same client, connecting to another address of the service.
    pub fn to(self, service: String) -> Self {
        Self { service, ..self }
    }

    /// Opens a TCP connection without TLS.
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        // A small receive buffer fills soon when the client doesn't read.
        socket.set_recv_buffer_size(4096)?;
        socket.connect(self.service.parse().expect("an address")).await
    }

    pub async fn connect(&self) -> io::Result<Connection> {
        let name = ServerName::try_from("liqo-auth").expect("a name");
        let stream = self.tls.connect(name, self.tcp().await?).await?;
        Ok(Connection { stream, read: Vec::new() })
    }

    /// Sends these bytes over a new connection and reads until the service closes it.
    pub async fn send_raw(&self, sent: &[u8]) -> String {
        let mut line = self.connect().await.expect("TLS");
        // The service may close the connection before it has read everything.
        let _ = line.stream.write_all(sent).await;
        read_until_closed(&mut line.stream).await
    }

    /// Sends one request over a new connection.
    pub async fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        self.try_request(method, path, body).await.expect("an answer")
    }

    /// Like `request`, but returns connection errors.
    pub async fn try_request(&self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        self.connect().await?.request(method, path, body).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &body.to_string()).await
    }
}

impl Connection {
    pub async fn request(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.send(request.as_bytes()).await?;
        self.read_answer().await
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the next response.
    pub async fn read_answer(&mut self) -> io::Result<Answer> {
        let end = b"\r\n\r\n";
        let head = loop {
            match self.read.windows(end.len()).position(|window| window == end) {
                Some(at) => break self.read.drain(..at + end.len()).collect::<Vec<_>>(),
                None => self.more().await?,
            }
        };
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or_default();
        while self.read.len() < length {
            self.more().await?;
        }
        let body: Vec<u8> = self.read.drain(..length).collect();
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Ok(Answer { status: status.expect("a status"), head, body })
    }

    /// Reads until the service closes the connection.
    pub async fn read_until_closed(mut self) -> String {
        read_until_closed(&mut self.stream).await
    }

    async fn more(&mut self) -> io::Result<()> {
        let read = timeout(LIMIT, self.stream.read_buf(&mut self.read));
        match read.await.expect("a response within the limit")? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Reads until the peer closes the connection, with or without a TLS close_notify.
pub async fn read_until_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut bytes)).await;
    drop(read.expect("the connection is closed within the limit"));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Answer {
    /// The `Retry-After` header in seconds.
    pub fn retry_after(&self) -> Option<u64> {
        self.head.split("retry-after: ").nth(1)?.lines().next()?.parse().ok()
    }

    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }
}
