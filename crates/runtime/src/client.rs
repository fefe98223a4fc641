//! Clients of API servers that notice when the other end is gone: a connection on which nothing
//! comes back is given up within seconds, so that a watch never hangs on it, and so is a request
//! that nobody begins to answer.

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

/// A client for the cluster that this process runs in, or that the kubeconfig says.
pub async fn local() -> Result<Client, LocalError> {
    build(&Config::infer().await?).map_err(LocalError::Build)
}

/// There is no client of the own cluster.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Neither a service account nor a kubeconfig.
    #[error("find out how to reach this cluster's API server")]
    Infer(#[from] kube::config::InferConfigError),
    /// What they say does not make a client.
    #[error("make a client for this cluster's API server")]
    Build(#[source] kube::Error),
}

/// What a client shows of itself. It can be changed while the client is in use, and counts from the
/// next request on: connections that were opened with what was shown before get no more of them.
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

    /// Shows another token.
    pub fn set_token(&self, token: Option<HeaderValue>) {
        self.token.store(token.map(Arc::new));
    }

    /// Shows the certificate in `config`, if any.
    pub fn set_certificate(&self, config: &Config) -> Result<(), kube::Error> {
        self.connections.store(Arc::new(connections(config)?));
        Ok(())
    }
}

/// A client as `config` says.
pub fn build(config: &Config) -> Result<Client, kube::Error> {
    with_credentials(config, config.auth_layer()?, Credentials::new(config, None)?)
}

/// A client as `config` says, but with these credentials in the place of its own.
pub(crate) fn build_with(
    config: &Config,
    credentials: Arc<Credentials>,
) -> Result<Client, kube::Error> {
    with_credentials(config, None, credentials)
}

fn with_credentials(
    config: &Config,
    own: Option<AuthLayer>,
    credentials: Arc<Credentials>,
) -> Result<Client, kube::Error> {
    let shown = credentials.clone();
    let authorize = move |mut request: Request<Body>| {
        if let Some(token) = &*shown.token.load() {
            request.headers_mut().insert(AUTHORIZATION, HeaderValue::clone(token));
        }
        request
    };
    let send = move |request: Request<Body>| credentials.connections.load().request(request);
    let service = ServiceBuilder::new()
        // Also for all tries together.
        .layer_fn(Limited)
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryPolicy::server_retry()))
        .map_request(authorize)
        .option_layer(own)
        .map_err(BoxError::from)
        .service_fn(send);
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()).build())
}

fn connections(config: &Config) -> Result<Http<HttpsConnector<HttpConnector>, Body>, kube::Error> {
    // Whoever was first to choose a provider has chosen the same.
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
