//! Somebody who calls the auth service from an address of his own, and says whatever he wants.

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

/// What a caller is waited for, and some more.
const LIMIT: Duration = Duration::from_secs(12);

/// A caller at an address of this machine.
#[derive(Clone)]
pub struct Caller {
    service: String,
    from: Ipv4Addr,
    tls: TlsConnector,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

/// A connection, over which one request follows the other.
pub struct Line {
    stream: TlsStream<TcpStream>,
    read: Vec<u8>,
}

impl Caller {
    /// Who trusts the certificate that the service has.
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

    /// The same, at another address.
    pub fn at(&self, from: [u8; 4]) -> Self {
        Self { from: from.into(), ..self.clone() }
    }

    /// The same, to another address of the service.
    pub fn to(self, service: String) -> Self {
        Self { service, ..self }
    }

    /// Without TLS; nothing is said yet.
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        // Little is taken before somebody reads it.
        socket.set_recv_buffer_size(4096)?;
        socket.connect(self.service.parse().expect("an address")).await
    }

    pub async fn connect(&self) -> io::Result<Line> {
        let name = ServerName::try_from("liqo-auth").expect("a name");
        let stream = self.tls.connect(name, self.tcp().await?).await?;
        Ok(Line { stream, read: Vec::new() })
    }

    /// Sends this and nothing more, and reads until the other side ends it.
    pub async fn says(&self, sent: &[u8]) -> String {
        let mut line = self.connect().await.expect("TLS");
        // It may have heard enough before all is said.
        let _ = line.stream.write_all(sent).await;
        until_it_ends(&mut line.stream).await
    }

    /// One request over a connection of its own.
    pub async fn asks(&self, method: &str, path: &str, body: &str) -> Answer {
        self.tries(method, path, body).await.expect("an answer")
    }

    /// The same, if it is heard.
    pub async fn tries(&self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        self.connect().await?.asks(method, path, body).await
    }

    pub async fn posts(&self, path: &str, body: &Value) -> Answer {
        self.asks("POST", path, &body.to_string()).await
    }
}

impl Line {
    pub async fn asks(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.sends(request.as_bytes()).await?;
        self.hears().await
    }

    pub async fn sends(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The next answer.
    pub async fn hears(&mut self) -> io::Result<Answer> {
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

    /// Waits until the other side ends it.
    pub async fn ends(mut self) -> String {
        until_it_ends(&mut self.stream).await
    }

    async fn more(&mut self) -> io::Result<()> {
        let read = timeout(LIMIT, self.stream.read_buf(&mut self.read));
        match read.await.expect("it does not leave us waiting")? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// All that is said until the end, which may come without a word of farewell.
pub async fn until_it_ends(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut bytes)).await;
    drop(read.expect("it is not waited for any longer"));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Answer {
    /// In how many seconds to come again.
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
