//! Clients of API servers that detect unreachable servers: a dead connection is closed within
//! seconds, so that no watch hangs on it, and a request without a response fails in time.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{HeaderValue, Request, header::AUTHORIZATION};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, middleware::AuthLayer, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, ServiceExt as _, retry::RetryLayer};

use crate::time_limit::Limited;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// A client for the cluster of this pod, or of the kubeconfig.
pub async fn local() -> Result<Client, LocalError> {
    build(&Config::infer().await?).map_err(LocalError::Build)
}

/// There is no client for this cluster.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Neither a service account nor a kubeconfig was found.
    #[error("find the API server of this cluster by the service account or KUBECONFIG")]
    Infer(#[from] kube::config::InferConfigError),
    /// The configuration does not make a client.
    #[error("create a client for the API server of this cluster")]
    Build(#[source] kube::Error),
}

/// The credentials of a client. They can be replaced while the client is in use, and apply from the
/// next request on: connections with an old certificate get no more requests.
pub(crate) struct Credentials {
    token: ArcSwapOption<HeaderValue>,
    connections: ArcSwap<Http<HttpsConnector<HttpConnector>, Body>>,
}

impl Credentials {
    /// This token, or the certificate in `config`, or both.
    pub fn new(config: &Config, token: Option<HeaderValue>) -> Result<Arc<Self>, kube::Error> {
        Ok(Arc::new(Self {
            token: ArcSwapOption::from_pointee(token),
            connections: ArcSwap::from_pointee(connections(config)?),
        }))
    }

    /// Replaces the token.
    pub fn set_token(&self, token: Option<HeaderValue>) {
        self.token.store(token.map(Arc::new));
    }

    /// Replaces the certificate by the one in `config`, if any.
    pub fn set_certificate(&self, config: &Config) -> Result<(), kube::Error> {
        self.connections.store(Arc::new(connections(config)?));
        Ok(())
    }
}

/// A client for `config`.
pub fn build(config: &Config) -> Result<Client, kube::Error> {
    with_credentials(config, config.auth_layer()?, Credentials::new(config, None)?)
}

/// A client for `config` with other credentials.
pub(crate) fn build_with(
    config: &Config,
    credentials: Arc<Credentials>,
) -> Result<Client, kube::Error> {
    with_credentials(config, None, credentials)
}

fn with_credentials(
    config: &Config,
    auth: Option<AuthLayer>,
    credentials: Arc<Credentials>,
) -> Result<Client, kube::Error> {
    let current = credentials.clone();
    let authorize = move |mut request: Request<Body>| {
        if let Some(token) = &*current.token.load() {
            request.headers_mut().insert(AUTHORIZATION, HeaderValue::clone(token));
        }
        request
    };
    let send = move |request: Request<Body>| credentials.connections.load().request(request);
    let service = ServiceBuilder::new()
        // Limits all retries together.
        .layer_fn(Limited)
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryPolicy::server_retry()))
        .map_request(authorize)
        .option_layer(auth)
        .map_err(BoxError::from)
        .service_fn(send);
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()).build())
}

fn connections(config: &Config) -> Result<Http<HttpsConnector<HttpConnector>, Body>, kube::Error> {
    // An error means that the same provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    Ok(Http::builder(TokioExecutor::new()).build(connector))
}
