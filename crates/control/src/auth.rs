//! `tombolo auth`: the HTTPS service by which other clusters get an identity here. It is the only
//! thing that is exposed, so it can do next to nothing: it checks tokens, records requests and
//! hands back the answers that the control plane writes.

mod counted;
mod requests;

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    body::{Bytes, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use hyper_util::rt::TokioTimer;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};
use tombolo_api::{
    ClusterIdentity,
    auth::{AuthError, ClusterInfo, Confidential, IdentityRelease, IdentityRequest, Refusal},
    config::ClusterConfig,
    names::{
        AUTH_CERTIFICATE_SECRET, AUTH_TOKEN_KEY, AUTH_TOKEN_SECRET, CLUSTER_CONFIG,
        GENERATION_SECRET, NAMESPACE,
    },
};
use tombolo_core::identity::{Tokens, name_or_id, namesake};
use tombolo_runtime::{
    client, health,
    observe::{Watched, named},
    settings::Settings,
    shutdown::Shutdown,
};
use tracing::{info, warn};

use crate::identity::generation_in;
use requests::Requests;

const PORT: u16 = 8443;
const HEALTH_PORT: u16 = 8081;

/// A request is small; more than this is none.
const MOST_BYTES: usize = 16 * 1024;
/// How many wait for an answer at a time. Whoever comes after them is to come again.
const MOST_WAITING: usize = 32;
/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the end is asked for.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = tokio::spawn(health::serve(HEALTH_PORT, is_ready, shutdown.clone()));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))
        .with_context(|| format!("listen on port {PORT}"))?;
    serve(client, settings, listener, ready, shutdown.clone()).await?;
    shutdown.ask();
    probes.await?.with_context(|| format!("answer probes on port {HEALTH_PORT}"))
}

/// Serves on `listener` until the end is asked for; `ready` says when it has begun.
pub async fn serve(
    client: Client,
    settings: Settings,
    listener: TcpListener,
    ready: watch::Sender<bool>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let secrets = || Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let certificate = Watched::new(secrets(), named(AUTH_CERTIFICATE_SECRET));
    let auth = Arc::new(Auth {
        config: Watched::new(Api::all(client.clone()), named(CLUSTER_CONFIG)),
        token: Watched::new(secrets(), named(AUTH_TOKEN_SECRET)),
        root_ca: Watched::new(
            Api::namespaced(client.clone(), NAMESPACE),
            named("kube-root-ca.crt"),
        ),
        generation: Watched::new(secrets(), named(GENERATION_SECRET)),
        requests: Requests::new(client),
        settings,
        waiting: Semaphore::new(MOST_WAITING),
    });
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let Some(tls) = shutdown.or(first_certificate(&certificate)).await else { return Ok(()) };
    tokio::spawn(follow(certificate, tls.clone(), shutdown.clone()));
    shutdown.or(auth.ready()).await;

    listener.set_nonblocking(true)?;
    info!("serving on {}", listener.local_addr()?);
    ready.send_replace(true);
    let handle = Handle::new();
    tokio::spawn({
        let (handle, shutdown) = (handle.clone(), shutdown.clone());
        async move {
            shutdown.asked().await;
            handle.graceful_shutdown(Some(PATIENCE));
        }
    });
    let mut server = axum_server::from_tcp_rustls(listener, tls)?.handle(handle);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    server.serve(router(auth).into_make_service()).await.context("serve")
}

struct Auth {
    settings: Settings,
    config: Watched<ClusterConfig>,
    token: Watched<Secret>,
    root_ca: Watched<ConfigMap>,
    generation: Watched<Secret>,
    requests: Requests,
    waiting: Semaphore,
}

fn router(auth: Arc<Auth>) -> Router {
    Router::new()
        .route("/info", get(info))
        .route("/identity", post(token).delete(release))
        .route("/identity/certificate", post(certificate))
        .fallback(async || {
            Failure::new(
                StatusCode::NOT_FOUND,
                "there is /info, /identity and /identity/certificate",
            )
        })
        .method_not_allowed_fallback(async || {
            let text = "GET /info, POST or DELETE /identity, POST /identity/certificate";
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .layer(middleware::from_fn(read_whole))
        .layer(middleware::from_fn(counted::count))
        .with_state(auth)
}

/// Reads all of a request before anything is done about it, and neither much of it nor for long.
async fn read_whole(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let failure = match timeout(PATIENCE, to_bytes(body, MOST_BYTES)).await {
        Ok(Ok(body)) => return next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(_)) => {
            let text = format!("a request has at most {MOST_BYTES} bytes");
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, &text)
        }
        Err(_) => {
            let text = format!("a request takes no longer than {} s", PATIENCE.as_secs());
            Failure::new(StatusCode::REQUEST_TIMEOUT, &text)
        }
    };
    failure.into_response()
}

async fn info(State(auth): State<Arc<Auth>>) -> Json<ClusterInfo> {
    Json(ClusterInfo {
        cluster_id: auth.settings.cluster_id.clone(),
        cluster_name: auth.settings.cluster_name.clone(),
        api_server_url: auth.settings.api_server_url.clone(),
        api_server_ca: auth
            .root_ca
            .only()
            .and_then(|map| map.data.as_ref()?.get("ca.crt").cloned()),
        generation: auth.generation.only().and_then(|secret| generation_in(&secret)),
    })
}

/// An identity in the form of a token.
async fn token(State(auth): State<Arc<Auth>>, body: Bytes) -> Result<Response, Failure> {
    let request = IdentityRequest { signing_request: None, ..read(&body)? };
    identity(&auth, request).await
}

/// An identity in the form of a certificate, where this cluster signs any.
async fn certificate(State(auth): State<Arc<Auth>>, body: Bytes) -> Result<Response, Failure> {
    let request: IdentityRequest = read(&body)?;
    if request.signing_request.is_none() || request.nonce.is_none() {
        let text = "a certificate takes a signingRequest and a nonce";
        return Err(Failure::new(StatusCode::BAD_REQUEST, text));
    }
    identity(&auth, request).await
}

async fn identity(auth: &Auth, request: IdentityRequest) -> Result<Response, Failure> {
    let _waiting = auth.enter()?;
    if request.cluster_id == auth.settings.cluster_id {
        return Err(Failure::new(StatusCode::BAD_REQUEST, "this is the very same cluster"));
    }
    let peer = ClusterIdentity {
        cluster_name: name_or_id(request.cluster_name.as_ref(), &request.cluster_id),
        cluster_id: request.cluster_id.clone(),
    };
    if let Some(error) = namesake(&auth.settings.cluster(), &peer) {
        warn!("refused: {error}");
        return Err(Failure(StatusCode::CONFLICT, AuthError::new(error, Refusal::SameName)));
    }
    let tokens = auth.tokens(&request).await?;
    // Who renews a certificate has shown a token before, which may have been changed since.
    if let Err(refusal) = tokens.admit(&request.token)
        && !(request.signing_request.is_some() && auth.requests.knows(&request).await?)
    {
        warn!(cluster = %request.cluster_id, ?refusal, "refused");
        return Err(Failure::unauthorized(refusal));
    }
    let answer = auth.requests.answer(&request).await?;
    info!(cluster = %request.cluster_id, "handed over an identity");
    Ok(Json(answer).into_response())
}

async fn release(State(auth): State<Arc<Auth>>, body: Bytes) -> Result<StatusCode, Failure> {
    let release: IdentityRelease = read(&body)?;
    let _waiting = auth.enter()?;
    auth.requests.release(&release).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Auth {
    async fn ready(&self) {
        self.config.filled().await;
        self.token.filled().await;
        self.root_ca.filled().await;
        self.generation.filled().await;
    }

    fn enter(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Failure> {
        let busy = "too many clusters ask at the same time: try again";
        self.waiting.try_acquire().map_err(|_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, busy))
    }

    async fn tokens(&self, request: &IdentityRequest) -> Result<Tokens, Failure> {
        let none_needed = self.config.only().is_some_and(|config| config.spec.auth.empty_token);
        let this_cluster = if none_needed {
            Confidential::default()
        } else {
            self.requests.return_token(&request.cluster_id).await?
        };
        let everybody = self.token.only().and_then(|token| token_in(&token)).unwrap_or_default();
        Ok(Tokens { everybody, this_cluster, none_needed })
    }
}

/// The token in a Secret.
fn token_in(secret: &Secret) -> Option<Confidential> {
    let bytes = secret.data.as_ref()?.get(AUTH_TOKEN_KEY)?;
    let text = String::from_utf8(bytes.0.clone()).ok()?;
    Some(text.trim().to_owned().into())
}

fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::new(StatusCode::BAD_REQUEST, &format!("this is not what was expected: {error}"))
    })
}

/// What a caller gets in the place of an answer.
#[derive(Debug)]
struct Failure(StatusCode, AuthError);

impl Failure {
    fn new(status: StatusCode, error: &str) -> Self {
        Self(status, AuthError::new(error, Refusal::Other))
    }

    fn unauthorized(reason: Refusal) -> Self {
        let error = if reason == Refusal::EmptyTokenRefused {
            "it takes a token: the one in the Secret liqo/auth-token of the cluster asked"
        } else {
            "the token is not the one in the Secret liqo/auth-token of the cluster asked"
        };
        Self(StatusCode::UNAUTHORIZED, AuthError::new(error, reason))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

/// Waits for the certificate that the control plane makes.
async fn first_certificate(certificate: &Watched<Secret>) -> RustlsConfig {
    let mut changes = certificate.changes();
    loop {
        if let Some((certificate, key)) = certificate.only().and_then(|secret| pem(&secret)) {
            match RustlsConfig::from_pem(certificate, key).await {
                Ok(tls) => return tls,
                Err(error) => unusable(&error),
            }
        } else {
            info!("waiting for the Secret {NAMESPACE}/{AUTH_CERTIFICATE_SECRET}");
        }
        if timeout(Duration::from_secs(600), changes.changed()).await.is_ok_and(|end| end.is_err())
        {
            std::future::pending::<()>().await;
        }
    }
}

/// A changed certificate counts for the next connection.
async fn follow(certificate: Watched<Secret>, tls: RustlsConfig, shutdown: Shutdown) {
    let mut changes = certificate.changes();
    while let Some(Ok(())) = shutdown.or(changes.changed()).await {
        if let Some((certificate, key)) = certificate.only().and_then(|secret| pem(&secret))
            && let Err(error) = tls.reload_from_pem(certificate, key).await
        {
            unusable(&error);
        }
    }
}

fn unusable(error: &std::io::Error) {
    warn!("use the certificate in Secret {NAMESPACE}/{AUTH_CERTIFICATE_SECRET}: {error}");
}

fn pem(secret: &Secret) -> Option<(Vec<u8>, Vec<u8>)> {
    let data = secret.data.as_ref()?;
    Some((data.get("tls.crt")?.0.clone(), data.get("tls.key")?.0.clone()))
}
