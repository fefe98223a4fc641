//! `tombolo auth`: the HTTPS service that issues identities to other clusters. It is the only
//! exposed component, so it has few rights: it checks tokens, records requests and returns the
//! answers that the controllers write.

mod certificate;
mod connection_limiter;
mod failure;
mod limits;
mod request_metrics;
mod requests;

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    body::{Bytes, to_bytes},
    extract::{ConnectInfo, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_server::{Handle, tls_rustls::RustlsAcceptor};
use hyper_util::rt::TokioTimer;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tombolo_api::{
    ClusterIdentity,
    auth::{AuthError, ClusterInfo, Confidential, IdentityRelease, IdentityRequest, Refusal},
    config::ClusterConfig,
    names::{
        AUTH_CERTIFICATE_SECRET, AUTH_TOKEN_SECRET, CLUSTER_CONFIG, GENERATION_SECRET, NAMESPACE,
    },
};
use tombolo_core::identity::{Record, Tokens, name_conflict, name_or_id, token_in};
use tombolo_runtime::{
    client, health, listen,
    observe::{Watched, named},
    settings::Settings,
    shutdown::Shutdown,
    task::{Background, Task},
};
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::identity::generation_in;
use connection_limiter::ConnectionLimiter;
use failure::Failure;
use limits::Limits;
use requests::{Admitted, Recorded, Requests};

const PORT: u16 = 8443;
const HEALTH_PORT: u16 = 8081;

/// Maximum size of a request body, and of a header.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Requests that are checked and recorded concurrently.
const MAX_CONCURRENT: usize = 32;
/// How long other requests wait for a slot before they are answered 503.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of a client to send its request, and to read the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until shutdown.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    let listener = listen::everywhere(PORT).with_context(|| format!("listen on port {PORT}"))?;
    serve(client, settings, listener, ready, shutdown.clone()).await?;
    shutdown.trigger();
    Ok(probes.await??)
}

/// Serves on `listener` until shutdown; `ready` turns true when it has started.
pub async fn serve(
    client: Client,
    settings: Settings,
    listener: TcpListener,
    ready: watch::Sender<bool>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let secrets = || Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let shown = Watched::new(secrets(), named(AUTH_CERTIFICATE_SECRET));
    let background = Arc::new(Background::default());
    let auth = Arc::new(Auth {
        config: Watched::new(Api::all(client.clone()), named(CLUSTER_CONFIG)),
        token: Watched::new(secrets(), named(AUTH_TOKEN_SECRET)),
        root_ca: Watched::new(
            Api::namespaced(client.clone(), NAMESPACE),
            named("kube-root-ca.crt"),
        ),
        generation: Watched::new(secrets(), named(GENERATION_SECRET)),
        requests: Requests::new(client, background.clone()),
        background: background.clone(),
        settings,
        limits: Arc::new(Limits::new()),
        slots: Arc::new(Semaphore::new(MAX_CONCURRENT)),
    });
    let Some(tls) = shutdown.or(certificate::first(&shown)).await else { return Ok(()) };
    let followed = certificate::follow(shown, tls.clone(), shutdown.clone());
    let _certificate = Task::spawn("certificate of the auth service", followed);
    shutdown.or(auth.ready()).await;

    listener.set_nonblocking(true)?;
    info!("listening on {}", listener.local_addr()?);
    ready.send_replace(true);
    let handle = Handle::new();
    let _end = Task::spawn("shutdown of the auth service", {
        let (handle, shutdown) = (handle.clone(), shutdown.clone());
        async move {
            shutdown.triggered().await;
            handle.graceful_shutdown(Some(CLIENT_TIMEOUT));
        }
    });
    let limiter = ConnectionLimiter::new(auth.limits.clone());
    let acceptor = RustlsAcceptor::new(tls).handshake_timeout(CLIENT_TIMEOUT).acceptor(limiter);
    let mut server = axum_server::from_tcp(listener)?.handle(handle).acceptor(acceptor);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(CLIENT_TIMEOUT);
    server.http_builder().http1().max_buf_size(MAX_REQUEST_BYTES);
    let router = router(auth).into_make_service_with_connect_info::<SocketAddr>();
    let served = server.http1_only().serve(router).await.context("serve the auth service");
    let _ = timeout(CLIENT_TIMEOUT, background.join()).await;
    served
}

struct Auth {
    settings: Settings,
    config: Watched<ClusterConfig>,
    token: Watched<Secret>,
    root_ca: Watched<ConfigMap>,
    generation: Watched<Secret>,
    requests: Requests,
    /// Tasks that continue when a client disconnects.
    background: Arc<Background>,
    limits: Arc<Limits>,
    slots: Arc<Semaphore>,
}

fn router(auth: Arc<Auth>) -> Router {
    Router::new()
        .route("/info", get(info))
        .route("/identity", post(token).delete(release))
        .route("/identity/certificate", post(certificate))
        .fallback(async || {
            Failure::new(
                StatusCode::NOT_FOUND,
                "no such path; there are /info, /identity and /identity/certificate",
            )
        })
        .method_not_allowed_fallback(async || {
            let text = "use GET /info, POST or DELETE /identity, POST /identity/certificate";
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .layer(middleware::from_fn(read_whole))
        .layer(middleware::from_fn_with_state(auth.clone(), limits::by_address))
        .layer(middleware::from_fn(request_metrics::count))
        .with_state(auth)
}

/// Reads the whole request before it is handled, within limits of size and time.
async fn read_whole(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let failure = match timeout(CLIENT_TIMEOUT, to_bytes(body, MAX_REQUEST_BYTES)).await {
        Ok(Ok(body)) => return next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(_)) => {
            let text = format!("a request has at most {MAX_REQUEST_BYTES} bytes");
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, &text)
        }
        Err(_) => {
            let text =
                format!("the request was not received within {} s", CLIENT_TIMEOUT.as_secs());
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

/// Issues an identity in the form of a token.
async fn token(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request = IdentityRequest { signing_request: None, ..read(&body)? };
    identity(&auth, from.ip().to_canonical(), &request).await
}

/// Issues an identity in the form of a certificate, or of a token where this cluster signs none.
async fn certificate(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request: IdentityRequest = read(&body)?;
    if request.signing_request.is_none() || request.nonce.is_none() {
        let text = "a request for a certificate needs signingRequest and nonce";
        return Err(Failure::new(StatusCode::BAD_REQUEST, text));
    }
    identity(&auth, from.ip().to_canonical(), &request).await
}

async fn identity(
    auth: &Arc<Auth>,
    from: IpAddr,
    request: &IdentityRequest,
) -> Result<Response, Failure> {
    if request.cluster_id == auth.settings.cluster_id {
        return Err(Failure::new(
            StatusCode::BAD_REQUEST,
            "clusterID is the id of this cluster itself",
        ));
    }
    let peer = ClusterIdentity {
        cluster_name: name_or_id(request.cluster_name.as_ref(), &request.cluster_id),
        cluster_id: request.cluster_id.clone(),
    };
    if let Some(error) = name_conflict(&auth.settings.cluster(), &peer) {
        debug!("refused a request: {error}");
        let error = AuthError::new(error, Refusal::SameName);
        return Err(Failure::because(StatusCode::CONFLICT, error));
    }
    let new = Record::of(request, Uuid::new_v4().to_string());
    let recorded = auth.record(from, &request.token, &new).await?;
    let answer = auth.requests.answer(&new, &recorded).await?;
    recorded.handed_over();
    info!(cluster = %request.cluster_id, "delivered an identity");
    Ok(Json(answer).into_response())
}

async fn release(State(auth): State<Arc<Auth>>, body: Bytes) -> Result<StatusCode, Failure> {
    let release: IdentityRelease = read(&body)?;
    let _slot = auth.slot().await?;
    auth.requests.release(&release).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Auth {
    async fn ready(&self) {
        self.config.synced().await;
        self.token.synced().await;
        self.root_ca.synced().await;
        self.generation.synced().await;
        self.requests.ready().await;
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy = "too many concurrent requests: try again";
        let slot = timeout(QUEUE_TIMEOUT, self.slots.clone().acquire_owned()).await;
        let slot = slot.ok().and_then(Result::ok);
        slot.ok_or_else(|| Failure::unavailable(busy))
    }

    /// Records an admitted request. The slot is released then: however long the controllers take to
    /// answer, no other request waits for that.
    async fn record(
        self: &Arc<Self>,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Recorded, Failure> {
        // Requests that are refused without comparing a token take no slot.
        let decided = self.decide(from, token, new)?;
        let slot = self.slot().await?;
        let admitted = match decided {
            Some(admitted) => admitted,
            None => self.admit_by_token(from, token, new).await?,
        };
        // In a task of its own: a client that disconnects must not interrupt the write.
        let (auth, new) = (self.clone(), new.clone());
        let recording = self.background.complete("record a request", async move {
            let _slot = slot;
            auth.requests.record(&new, admitted, &auth.limits).await
        });
        let stopped = || Err(Failure::unavailable("the service is shutting down: try again"));
        recording.await.unwrap_or_else(stopped)
    }

    /// Decides on requests for which no token has to be compared. `None`: one has to be.
    fn decide(
        &self,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Option<Admitted>, Failure> {
        if token.is_empty() {
            let admitted = self.tokens().admit(token);
            return self.apply_token_result(from, new, admitted).map(Some);
        }
        match self.limits.check_tokens(from) {
            Ok(()) => Ok(None),
            Err(failure) => self.admit_by_nonce(new, failure).map(Some),
        }
    }

    /// Decides by the token. With a slot, so that nobody can try many at a time.
    async fn admit_by_token(
        &self,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Admitted, Failure> {
        // The limit may have been reached while waiting for the slot.
        if let Err(failure) = self.limits.check_tokens(from) {
            return self.admit_by_nonce(new, failure);
        }
        let mut tokens = self.tokens();
        let mut admitted = tokens.admit(token);
        if admitted == Err(Refusal::WrongToken) {
            tokens.this_cluster = self.requests.return_token(&new.cluster_id).await?;
            admitted = tokens.admit(token);
        }
        self.apply_token_result(from, new, admitted)
    }

    /// The accepted tokens, except the one for this cluster only, which is read from the API
    /// server.
    fn tokens(&self) -> Tokens {
        let none_needed = self.config.only().is_some_and(|config| config.spec.auth.empty_token);
        let everybody = self.token.only().and_then(|token| token_in(&token)).unwrap_or_default();
        Tokens { everybody, none_needed, ..Tokens::default() }
    }

    /// Decides by the result of the token check.
    fn apply_token_result(
        &self,
        from: IpAddr,
        new: &Record,
        admitted: Result<(), Refusal>,
    ) -> Result<Admitted, Failure> {
        let Err(refusal) = admitted else { return Ok(Admitted::ByToken) };
        self.admit_by_nonce(new, Failure::unauthorized(refusal)).inspect_err(|_| {
            if refusal == Refusal::WrongToken {
                self.limits.count_wrong_token(from);
            }
            warn!(cluster = %new.cluster_id, %from, ?refusal, "refused a request for an identity");
        })
    }

    /// A renewal needs no token: the cluster has shown one before, which may have changed since.
    fn admit_by_nonce(&self, new: &Record, otherwise: Failure) -> Result<Admitted, Failure> {
        if self.requests.renews(new) { Ok(Admitted::ByNonce(otherwise)) } else { Err(otherwise) }
    }
}

fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::new(StatusCode::BAD_REQUEST, &format!("invalid request body: {error}"))
    })
}
