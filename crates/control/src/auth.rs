//! `tombolo auth`: the HTTPS service by which other clusters get an identity here. It is the only
//! thing that is exposed, so it can do next to nothing: it checks tokens, records requests and
//! hands back the answers that the control plane writes.

mod certificate;
mod connections;
mod counted;
mod failure;
mod limits;
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
use tombolo_core::identity::{Record, Tokens, name_or_id, namesake, token_in};
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
use connections::Door;
use failure::Failure;
use limits::Limits;
use requests::{Admitted, Recorded, Requests};

const PORT: u16 = 8443;
const HEALTH_PORT: u16 = 8081;

/// A request is small, and so is its header; more than this is none.
const MOST_BYTES: usize = 16 * 1024;
/// How many requests are looked into and recorded at a time.
const MOST_SERVED: usize = 32;
/// How long others wait for their turn. Then they are to come again.
const TURN: Duration = Duration::from_secs(3);
/// How long a caller may take to say what it wants, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the end is asked for.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    let listener = listen::everywhere(PORT).with_context(|| format!("listen on port {PORT}"))?;
    serve(client, settings, listener, ready, shutdown.clone()).await?;
    shutdown.ask();
    Ok(probes.await??)
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
        turns: Arc::new(Semaphore::new(MOST_SERVED)),
    });
    let Some(tls) = shutdown.or(certificate::first(&shown)).await else { return Ok(()) };
    let followed = certificate::follow(shown, tls.clone(), shutdown.clone());
    let _certificate = Task::spawn("certificate of the auth service", followed);
    shutdown.or(auth.ready()).await;

    listener.set_nonblocking(true)?;
    info!("serving on {}", listener.local_addr()?);
    ready.send_replace(true);
    let handle = Handle::new();
    let _end = Task::spawn("end of the auth service", {
        let (handle, shutdown) = (handle.clone(), shutdown.clone());
        async move {
            shutdown.asked().await;
            handle.graceful_shutdown(Some(PATIENCE));
        }
    });
    let door = Door::new(auth.limits.clone());
    let acceptor = RustlsAcceptor::new(tls).handshake_timeout(PATIENCE).acceptor(door);
    let mut server = axum_server::from_tcp(listener)?.handle(handle).acceptor(acceptor);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    server.http_builder().http1().max_buf_size(MOST_BYTES);
    let router = router(auth).into_make_service_with_connect_info::<SocketAddr>();
    let served = server.http1_only().serve(router).await.context("serve");
    let _ = timeout(PATIENCE, background.join()).await;
    served
}

struct Auth {
    settings: Settings,
    config: Watched<ClusterConfig>,
    token: Watched<Secret>,
    root_ca: Watched<ConfigMap>,
    generation: Watched<Secret>,
    requests: Requests,
    /// What goes on when a caller hangs up.
    background: Arc<Background>,
    limits: Arc<Limits>,
    turns: Arc<Semaphore>,
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
        .layer(middleware::from_fn_with_state(auth.clone(), limits::by_address))
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
async fn token(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request = IdentityRequest { signing_request: None, ..read(&body)? };
    identity(&auth, from.ip().to_canonical(), &request).await
}

/// An identity in the form of a certificate, where this cluster signs any.
async fn certificate(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request: IdentityRequest = read(&body)?;
    if request.signing_request.is_none() || request.nonce.is_none() {
        let text = "a certificate takes a signingRequest and a nonce";
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
        return Err(Failure::new(StatusCode::BAD_REQUEST, "this is the very same cluster"));
    }
    let peer = ClusterIdentity {
        cluster_name: name_or_id(request.cluster_name.as_ref(), &request.cluster_id),
        cluster_id: request.cluster_id.clone(),
    };
    if let Some(error) = namesake(&auth.settings.cluster(), &peer) {
        debug!("refused: {error}");
        let error = AuthError::new(error, Refusal::SameName);
        return Err(Failure::because(StatusCode::CONFLICT, error));
    }
    let new = Record::of(request, Uuid::new_v4().to_string());
    let recorded = auth.record(from, &request.token, &new).await?;
    let answer = auth.requests.answer(&new, &recorded).await?;
    recorded.handed_over();
    info!(cluster = %request.cluster_id, "handed over an identity");
    Ok(Json(answer).into_response())
}

async fn release(State(auth): State<Arc<Auth>>, body: Bytes) -> Result<StatusCode, Failure> {
    let release: IdentityRelease = read(&body)?;
    let _turn = auth.turn().await?;
    auth.requests.release(&release).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Auth {
    async fn ready(&self) {
        self.config.filled().await;
        self.token.filled().await;
        self.root_ca.filled().await;
        self.generation.filled().await;
        self.requests.ready().await;
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy = "too many clusters ask at the same time: try again";
        let turn = timeout(TURN, self.turns.clone().acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok);
        turn.ok_or_else(|| Failure::not_now(busy))
    }

    /// Records a request that is let in. The turn ends with that: however long the control plane takes
    /// to answer, nobody else waits for it.
    async fn record(
        self: &Arc<Self>,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Recorded, Failure> {
        // Who is refused without a look at a token takes nobody's turn.
        let decided = self.decide(from, token, new)?;
        let turn = self.turn().await?;
        let admitted = match decided {
            Some(admitted) => admitted,
            None => self.compare(from, token, new).await?,
        };
        // Who hangs up does not stop this half way: what is written is always known to be.
        let (auth, new) = (self.clone(), new.clone());
        let recording = self.background.complete("record a request", async move {
            let _turn = turn;
            auth.requests.record(&new, admitted, &auth.limits).await
        });
        let stopped = || Err(Failure::not_now("it has been stopped: try again"));
        recording.await.unwrap_or_else(stopped)
    }

    /// Whether a request is let in, where that takes no look at a token. `None`: it does.
    fn decide(
        &self,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Option<Admitted>, Failure> {
        if token.is_empty() {
            let admitted = self.tokens().admit(token);
            return self.by_token(from, new, admitted).map(Some);
        }
        match self.limits.may_show_a_token(from) {
            Ok(()) => Ok(None),
            Err(failure) => self.by_nonce(new, failure).map(Some),
        }
    }

    /// Whether a request is let in, by its token. In a turn, so that nobody can try many at a time.
    async fn compare(
        &self,
        from: IpAddr,
        token: &Confidential,
        new: &Record,
    ) -> Result<Admitted, Failure> {
        // There may have been too many since the turn was asked for.
        if let Err(failure) = self.limits.may_show_a_token(from) {
            return self.by_nonce(new, failure);
        }
        let mut tokens = self.tokens();
        let mut admitted = tokens.admit(token);
        if admitted == Err(Refusal::WrongToken) {
            tokens.this_cluster = self.requests.return_token(&new.cluster_id).await?;
            admitted = tokens.admit(token);
        }
        self.by_token(from, new, admitted)
    }

    /// The tokens that count, but for the one for this cluster, which the API server has.
    fn tokens(&self) -> Tokens {
        let none_needed = self.config.only().is_some_and(|config| config.spec.auth.empty_token);
        let everybody = self.token.only().and_then(|token| token_in(&token)).unwrap_or_default();
        Tokens { everybody, none_needed, ..Tokens::default() }
    }

    /// Whether a request is let in, by what was found of its token.
    fn by_token(
        &self,
        from: IpAddr,
        new: &Record,
        admitted: Result<(), Refusal>,
    ) -> Result<Admitted, Failure> {
        let Err(refusal) = admitted else { return Ok(Admitted::ByToken) };
        self.by_nonce(new, Failure::unauthorized(refusal)).inspect_err(|_| {
            if refusal == Refusal::WrongToken {
                self.limits.wrong_token(from);
            }
            warn!(cluster = %new.cluster_id, %from, ?refusal, "refused");
        })
    }

    /// Who renews a certificate has shown a token before, which may have been changed since.
    fn by_nonce(&self, new: &Record, otherwise: Failure) -> Result<Admitted, Failure> {
        if self.requests.renews(new) { Ok(Admitted::ByNonce(otherwise)) } else { Err(otherwise) }
    }
}

fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::new(StatusCode::BAD_REQUEST, &format!("this is not what was expected: {error}"))
    })
}
