//! Clients of other clusters, with the identities that they issued to this one. A client stays the
//! same while its token or certificate is renewed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::HeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tombolo_api::{
    ClusterIdentity,
    discovery::ForeignCluster,
    names::{IDENTITY_KUBECONFIG_KEY, IDENTITY_SECRET},
};
use tombolo_core::view::Peer;

use crate::client::{self, Credentials};

/// Another cluster that has issued an identity to this one.
#[derive(Clone)]
pub struct Remote {
    /// A client with that identity.
    pub client: Client,
    /// The tenant namespace of this cluster there.
    pub namespace: String,
    /// Id and name of the other cluster.
    pub cluster: ClusterIdentity,
    /// URL of its API server.
    pub url: String,
    /// The same for all clones of one client.
    instance: Arc<()>,
}

impl Remote {
    /// The cluster behind `client`.
    pub fn new(client: Client, namespace: String, cluster: ClusterIdentity, url: String) -> Self {
        Self { client, namespace, cluster, url, instance: Arc::default() }
    }

    /// Whether both have the same client. A renewal of the credentials keeps the client; any other
    /// change of the identity replaces it.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.instance, &other.instance)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("cluster", &self.cluster)
            .field("namespace", &self.namespace)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// There is no usable identity for another cluster.
#[derive(Debug, thiserror::Error)]
pub enum NoIdentity {
    /// There is none yet.
    #[error("cluster {0} has not issued an identity to this cluster yet")]
    NotYet(String),
    /// The Secret can't be read.
    #[error("read the identity in Secret {namespace}/{IDENTITY_SECRET}")]
    Read {
        /// Namespace of the Secret.
        namespace: String,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// The Secret has no usable kubeconfig.
    #[error("the identity in Secret {namespace}/{IDENTITY_SECRET} is unusable: {why}")]
    Unusable {
        /// Namespace of the Secret.
        namespace: String,
        /// The fault, without the data.
        why: &'static str,
    },
}

/// The clients of all peers.
#[derive(Clone)]
pub struct Remotes {
    local: Client,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
}

struct Known {
    /// The kubeconfig without the credentials.
    rest: String,
    credentials: Arc<Credentials>,
    /// The client certificate in use, if any.
    certificate: Option<String>,
    remote: Remote,
}

impl std::fmt::Debug for Remotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remotes").finish_non_exhaustive()
    }
}

impl Remotes {
    /// No clients yet. `local` reads the Secrets with the identities.
    pub fn new(local: Client) -> Self {
        Self { local, known: Arc::default() }
    }

    /// The client for a cluster that has issued an identity. Every call reads the Secret, so a
    /// renewed identity is used from the next call on, by all clones of the client.
    pub async fn get(&self, cluster: &ForeignCluster) -> Result<Remote, NoIdentity> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let peer = Peer::from_resource(cluster);
        let (Some(namespace), Some(identity)) = (peer.tenant, peer.identity) else {
            return Err(NoIdentity::NotYet(name));
        };
        self.in_namespace(namespace, identity.clone()).await
    }

    /// The same by the local tenant namespace.
    pub async fn in_namespace(
        &self,
        namespace: &str,
        cluster: ClusterIdentity,
    ) -> Result<Remote, NoIdentity> {
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), namespace);
        let secret = secrets.get_opt(IDENTITY_SECRET).await.map_err(|source| NoIdentity::Read {
            namespace: namespace.to_owned(),
            source: Box::new(source),
        })?;
        if secret.is_none() {
            self.forget(namespace);
        }
        let kubeconfig = secret
            .and_then(|secret| secret.data)
            .and_then(|mut data| data.remove(IDENTITY_KUBECONFIG_KEY))
            .ok_or_else(|| NoIdentity::NotYet(cluster.cluster_name.to_string()))?;
        let text = String::from_utf8(kubeconfig.0)
            .map_err(|_| unusable(namespace, "the kubeconfig is not UTF-8"))?;
        self.by_kubeconfig(namespace, cluster, &text).await
    }

    /// Drops the client for the identity in this namespace.
    pub fn forget(&self, namespace: &str) {
        self.lock().remove(namespace);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client for the identity in this namespace, whose kubeconfig is `text`.
    pub async fn by_kubeconfig(
        &self,
        namespace: &str,
        cluster: ClusterIdentity,
        text: &str,
    ) -> Result<Remote, NoIdentity> {
        let kubeconfig = Kubeconfig::from_yaml(text)
            .map_err(|_| unusable(namespace, "the kubeconfig can't be parsed"))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|_| unusable(namespace, "the kubeconfig is incomplete"))?;
        // A watch ends with its connection, not after a time.
        config.read_timeout = None;
        let token = config.auth_info.token.take();
        let token = token.and_then(|token| bearer(secrecy::ExposeSecret::expose_secret(&token)));
        let certificate = config.auth_info.client_certificate_data.clone();
        if token.is_none() && certificate.is_none() {
            let why = "the kubeconfig has neither a token nor a client certificate";
            return Err(unusable(namespace, why));
        }
        let rest =
            format!("{} {} {:?}", config.cluster_url, config.default_namespace, config.root_cert);
        let no_client = |_| unusable(namespace, "the kubeconfig does not make a client");

        let mut known = self.lock();
        if let Some(known) = known.get_mut(namespace)
            && known.rest == rest
            && known.remote.cluster == cluster
        {
            // A new token is set before and an old one removed after the change of certificate, so
            // that every request has credentials.
            if token.is_some() {
                known.credentials.set_token(token.clone());
            }
            if known.certificate != certificate {
                known.credentials.set_certificate(&config).map_err(no_client)?;
                known.certificate = certificate;
            }
            known.credentials.set_token(token);
            return Ok(known.remote.clone());
        }
        let credentials = Credentials::new(&config, token).map_err(no_client)?;
        let client = client::build_with(&config, credentials.clone()).map_err(no_client)?;
        let (namespace_there, url) = (config.default_namespace, config.cluster_url.to_string());
        let remote = Remote::new(client, namespace_there, cluster, url);
        let now = Known { rest, credentials, certificate, remote: remote.clone() };
        known.insert(namespace.to_owned(), now);
        Ok(remote)
    }
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn unusable(namespace: &str, why: &'static str) -> NoIdentity {
    NoIdentity::Unusable { namespace: namespace.to_owned(), why }
}
