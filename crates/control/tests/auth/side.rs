//! One cluster with the controllers and the auth service under test.

use std::{net::TcpListener, ops::Deref, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tombolo_api::{
    ClusterIdentity, Fingerprint,
    config::ClusterConfig,
    discovery::{ForeignCluster, condition::AUTHENTICATED},
};
use tombolo_control::{
    auth,
    testing::{Context, foreign_cluster, identity},
};
use tombolo_runtime::{
    remote::{Remote, Remotes},
    shutdown::Shutdown,
};
use tombolo_testbed::Cluster;

use crate::reset::reset;

pub struct Side {
    base: tombolo_testing::Side,
    /// URL of the auth service.
    pub url: String,
    running: Shutdown,
}

impl Deref for Side {
    type Target = tombolo_testing::Side;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl Side {
    /// Resets the cluster and starts the components as in a fresh installation.
    pub async fn start(cluster: &Cluster) -> Self {
        let base = tombolo_testing::Side::again(cluster).await;
        reset(&base).await;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // A small send buffer, as over a real network.
        set_socket_send_buffer_size(&listener, 16 << 10).expect("a smaller buffer");
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (client, settings, running) =
            (base.client.clone(), base.settings.clone(), Shutdown::new());
        let context = Arc::new(Context::new(client.clone(), settings.clone(), running.clone()));
        tokio::spawn(identity::run(context.clone()));
        tokio::spawn(foreign_cluster::run(context));
        let (ready, mut is_ready) = watch::channel(false);
        tokio::spawn(auth::serve(client, settings, listener, ready, running.clone()));
        is_ready.wait_for(|ready| *ready).await.expect("the auth service starts");
        Self { base, url, running }
    }

    pub fn cluster(&self) -> ClusterIdentity {
        self.settings.cluster()
    }

    pub async fn allow_empty_token(&self, allow: bool) {
        let spec = json!({ "auth": { "emptyToken": allow } });
        self.put::<ClusterConfig>("cluster", json!({ "spec": spec })).await;
    }

    /// Creates a ForeignCluster with only an auth URL.
    pub async fn add_foreign_cluster(&self, name: &str, url: &str) {
        self.put::<ForeignCluster>(name, json!({ "spec": { "authUrl": url } })).await;
    }

    /// Changes the auth URL, as discovery does when a cluster announces another address.
    pub async fn set_auth_url(&self, name: &str, url: &str) {
        let patch = Patch::Merge(json!({ "spec": { "authUrl": url } }));
        let clusters = self.all::<ForeignCluster>();
        clusters.patch(name, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// Creates the Secret with the token for another cluster, as a user would.
    pub async fn add_token(&self, name: &str, cluster: &ClusterIdentity, token: &str) {
        let secret = json!({
            "metadata": { "labels": {
                "discovery.liqo.io/cluster-id": cluster.cluster_id,
                "discovery.liqo.io/auth-token": "",
            } },
            "stringData": { "token": token },
        });
        self.put_in::<Secret>("liqo", name, secret).await;
    }

    pub async fn token(&self) -> String {
        self.secret("liqo", "auth-token", "token").await
    }

    pub async fn secret(&self, namespace: &str, name: &str, key: &str) -> String {
        let secret = self.get_in::<Secret>(namespace, name).await.expect("the Secret");
        let data = secret.data.unwrap_or_default();
        String::from_utf8(data[key].0.clone()).expect("a text")
    }

    /// Fingerprint of the auth service's certificate.
    pub async fn fingerprint(&self) -> Fingerprint {
        let pem = self.secret("liqo", "liqo-auth-cert", "tls.crt").await;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        Fingerprint(Sha256::digest(&certificate).into())
    }

    pub async fn entry(&self, name: &str) -> ForeignCluster {
        self.get(name).await.expect("the ForeignCluster")
    }

    /// Waits until the condition Authenticated has this reason, and returns its message.
    pub async fn wait_for_reason(&self, name: &str, reason: &str) -> String {
        self.base.says(name, AUTHENTICATED, reason).await
    }

    /// This cluster's identity in another cluster.
    pub async fn identity_at(&self, other: &Side) -> Remote {
        let namespace = format!("liqo-tenant-{}", other.settings.cluster_name);
        let remotes = Remotes::new(self.client.clone());
        remotes.in_namespace(&namespace, other.cluster()).await.expect("an identity")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.running.trigger();
    }
}
