//! Client of another cluster's auth service. Over TLS with a pinned certificate: nothing is sent to
//! a server that presents another one.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, sync::Mutex, time::timeout};
use tokio_rustls::TlsConnector;
use tombolo_api::{
    Fingerprint,
    auth::{
        AuthError, ClusterInfo, Confidential, IdentityRelease, IdentityRequest, IdentityResponse,
        Refusal,
    },
};
use tombolo_core::identity::Obstacle;
use tombolo_runtime::task::Task;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The auth service itself waits ten seconds for its control plane.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(15);
/// `/info` needs no control plane.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BODY_BYTES: usize = 1 << 20;
/// Part of an error of the other cluster that is copied to the status and the log.
const MAX_ERROR_BYTES: usize = 1024;
/// Status codes of a proxy that can't reach the auth service.
const PROXY_ERRORS: [StatusCode; 3] =
    [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];

/// The auth service at a URL, with the connection of the last request.
#[derive(Debug)]
pub(crate) struct AuthService {
    url: String,
    /// Fingerprint of the certificate that the server has to present.
    pin: OnceLock<Fingerprint>,
    connection: Mutex<Option<Connection>>,
}

/// A connection, and the fingerprint of the server's certificate. Closed on drop.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    shown: Fingerprint,
    _task: Task,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The service can't be reached.
    #[error("{what}: {why}; check the URL, and that no firewall between the clusters blocks it")]
    Unreachable { what: String, why: String },
    /// The server presents another certificate than the pinned one.
    #[error(
        "{what}: the server's certificate has the fingerprint {shown}, expected {expected}; if the \
         certificate was changed on purpose, put the new fingerprint into spec.fingerprint"
    )]
    OtherCertificate { what: String, shown: Fingerprint, expected: Fingerprint },
    /// The service refuses the request.
    #[error("{what}: {status}: {}", .error.error)]
    Refused { what: String, status: StatusCode, error: AuthError },
    /// The response is not that of an auth service.
    #[error("{what}: {why}; check that the URL is that of a cluster's auth service")]
    NotUnderstood { what: String, why: String },
}

impl AuthService {
    /// The service at a URL, pinned to the certificate with this fingerprint, if any.
    pub fn new(url: &str, pin: Option<Fingerprint>) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        let pin = pin.map(OnceLock::from).unwrap_or_default();
        Self { url, pin, connection: Mutex::default() }
    }

    /// Pins the service to this certificate, unless it is pinned already.
    pub fn pin_to(&self, pin: Fingerprint) {
        let _ = self.pin.set(pin);
    }

    /// Id and name of the cluster, and the fingerprint of the certificate that the server
    /// presented.
    pub async fn info(&self) -> Result<(ClusterInfo, Fingerprint), Failure> {
        self.call(Method::GET, "/info", None::<&()>, &[]).await
    }

    /// Requests an identity in the form of a certificate. Older services answer 404.
    pub async fn certificate(
        &self,
        request: &IdentityRequest,
    ) -> Result<IdentityResponse, Failure> {
        let (path, secrets) = ("/identity/certificate", secrets(request));
        self.call(Method::POST, path, Some(request), &secrets).await.map(|(answer, _)| answer)
    }

    /// Requests an identity in the form of a token.
    pub async fn identity(&self, request: &IdentityRequest) -> Result<IdentityResponse, Failure> {
        let (path, secrets) = ("/identity", secrets(request));
        self.call(Method::POST, path, Some(request), &secrets).await.map(|(answer, _)| answer)
    }

    /// Releases an identity.
    pub async fn release(&self, release: &IdentityRelease) -> Result<(), Failure> {
        let what = format!("DELETE {}/identity", self.url);
        let (status, body, _) =
            self.exchange(&what, Method::DELETE, "/identity", Some(release)).await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(refused(what, status, &body, &[&release.nonce])),
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        secrets: &[&Confidential],
    ) -> Result<(T, Fingerprint), Failure> {
        let what = format!("{method} {}{path}", self.url);
        let (status, body, shown) = self.exchange(&what, method, path, body).await?;
        if !status.is_success() {
            return Err(refused(what, status, &body, secrets));
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok((answer, shown)),
            // The body may contain an identity, so the error is reported without it.
            Err(error) => Err(Failure::NotUnderstood {
                why: format!("unexpected response ({:?} error)", error.classify()),
                what,
            }),
        }
    }

    async fn exchange(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, Bytes, Fingerprint), Failure> {
        let unreachable = |why: String| Failure::Unreachable { what: what.to_owned(), why };
        let uri: Uri = format!("{}{path}", self.url)
            .parse()
            .map_err(|error: http::uri::InvalidUri| unreachable(error.to_string()))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let address = (host.as_str(), uri.port_u16().unwrap_or(443));
        let request = Request::builder()
            .method(method)
            .uri(uri.path())
            .header(header::HOST, uri.authority().map_or("", |authority| authority.as_str()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.map(to_json).unwrap_or_default()))
            .map_err(|error| unreachable(error.to_string()))?;
        // One request at a time.
        let mut idle = self.connection.lock().await;
        let reused = idle.take().filter(|connection| connection.sender.is_ready());
        let retry = reused.is_some().then(|| request.clone());
        let mut connection = match reused {
            Some(connection) => connection,
            None => open(address).await.map_err(unreachable)?,
        };
        let mut sent = self.send(what, &mut connection, request).await;
        if let (Err(Failure::Unreachable { .. }), Some(request)) = (&sent, retry) {
            // The server may have closed the idle connection. All requests are idempotent.
            connection = open(address).await.map_err(unreachable)?;
            sent = self.send(what, &mut connection, request).await;
        }
        let (status, body) = sent?;
        let shown = connection.shown;
        *idle = Some(connection);
        Ok((status, body, shown))
    }

    /// Sends a request if the server presented the pinned certificate.
    async fn send(
        &self,
        what: &str,
        connection: &mut Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let what = || what.to_owned();
        let shown = connection.shown;
        if let Some(&expected) = self.pin.get()
            && expected != shown
        {
            return Err(Failure::OtherCertificate { what: what(), shown, expected });
        }
        let limit = if request.method() == Method::GET { INFO_TIMEOUT } else { IDENTITY_TIMEOUT };
        let why = match timeout(limit, send(&mut connection.sender, request)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {} s", limit.as_secs()),
        };
        Err(Failure::Unreachable { what: what(), why })
    }
}

fn to_json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}

async fn open(address: (&str, u16)) -> Result<Connection, String> {
    match timeout(CONNECT_TIMEOUT, connect(address)).await {
        Ok(opened) => opened.map_err(|error| plain(&error)),
        Err(_) => Err(format!("no response within {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

/// Connects, and keeps the fingerprint of the server's certificate.
async fn connect((host, port): (&str, u16)) -> io::Result<Connection> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificate = certificates
        .first()
        .ok_or_else(|| io::Error::other("the server presented no certificate"))?;
    let shown = Fingerprint(Sha256::digest(certificate).into());
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // The next request over this connection returns its error.
    let task = Task::spawn("connection to an auth service", connection.map(drop));
    Ok(Connection { sender, shown, _task: task })
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await?.to_bytes();
    Ok((status, body))
}

/// The secrets in a request.
fn secrets(request: &IdentityRequest) -> Vec<&Confidential> {
    let all = [Some(&request.token), request.nonce.as_ref(), request.return_token.as_ref()];
    all.into_iter().flatten().collect()
}

/// Errors end up in the status and in logs, and a server may well repeat what it was sent.
fn refused(what: String, status: StatusCode, body: &[u8], secrets: &[&Confidential]) -> Failure {
    match serde_json::from_slice::<AuthError>(body) {
        Ok(mut error) => {
            // Before truncation: half a secret is half known.
            error.error = secrets.iter().fold(error.error, |said, it| it.hide_in(&said));
            error.error.truncate(error.error.floor_char_boundary(MAX_ERROR_BYTES));
            Failure::Refused { what, status, error }
        }
        Err(_) if PROXY_ERRORS.contains(&status) => {
            let why = format!(
                "{status} from a proxy that can't reach the auth service, or not over HTTPS"
            );
            Failure::Unreachable { what, why }
        }
        Err(_) => Failure::NotUnderstood { what, why: format!("the response is {status}") },
    }
}

impl Failure {
    /// The kind of obstacle to an identity.
    pub fn obstacle(&self) -> Obstacle {
        match self {
            Self::Refused { error, .. } => error.reason.into(),
            Self::OtherCertificate { .. } => Obstacle::OtherCertificate,
            Self::NotUnderstood { .. } => Obstacle::NotAnAuthService,
            Self::Unreachable { .. } => Obstacle::Unreachable,
        }
    }

    /// Reason of a refusal.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { error, .. } => Some(error.reason),
            _ => None,
        }
    }
}

fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

/// Accepts any certificate whose key the server has. The fingerprint is compared before anything is
/// sent.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
