//! Issues the certificates for mutual TLS between the address service and its clients, stores them
//! in Secrets, and renews them long before they expire.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _, api::PostParams};
use rustls::ServerConfig;
use tokio::sync::watch;
use tombolo_api::names::{IPAM_AUTHORITY_SECRET, NAMESPACE};
use tombolo_runtime::{
    mutual_tls::{self, Identity},
    observe::{Observer, named},
};
use tracing::info;

use super::authority::{Authority, Role};
use crate::context::Context;

/// The current TLS configuration of the server; `None` until the first certificate exists.
pub type Tls = watch::Receiver<Option<Arc<ServerConfig>>>;

/// How often to check for certificates that are due for renewal.
const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);

/// Maintains the certificates until shutdown, and publishes the server's TLS configuration.
pub async fn keep(context: Arc<Context>, serving: watch::Sender<Option<Arc<ServerConfig>>>) {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let mut observer = Observer::new();
    observer.reconcile_every(LOOK_AGAIN);
    for name in [IPAM_AUTHORITY_SECRET].into_iter().chain(Role::ALL.map(Role::secret_name)) {
        observer.watch(secrets.clone(), named(name));
    }
    let keeper = Keeper { secrets, serving };
    observer.run("ipam-certificates", &context.shutdown, || keeper.reconcile()).await;
}

/// The action that failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("read Secret {NAMESPACE}/{0}")]
    Read(&'static str, #[source] kube::Error),
    #[error("write Secret {NAMESPACE}/{0}")]
    Write(&'static str, #[source] kube::Error),
    #[error("issue the certificate in Secret {NAMESPACE}/{0}")]
    Make(&'static str, #[source] rcgen::Error),
    #[error(
        "certificates issued by the CA in Secret {NAMESPACE}/{IPAM_AUTHORITY_SECRET} are not \
         valid: delete the Secret, a new CA is generated"
    )]
    Useless,
    #[error("configure TLS with the certificate in Secret {NAMESPACE}/{0}")]
    Serve(&'static str, #[source] mutual_tls::Error),
}

struct Keeper {
    secrets: Api<Secret>,
    serving: watch::Sender<Option<Arc<ServerConfig>>>,
}

impl Keeper {
    async fn reconcile(&self) -> Result<(), Error> {
        let now = Timestamp::now();
        let authority = self.authority(now).await?;
        for role in Role::ALL {
            let secret = self.certificate(&authority, role, now).await?;
            if role == Role::Server {
                let unusable = |error| Error::Serve(role.secret_name(), error);
                let config = Identity::of(&secret).and_then(|identity| identity.server());
                self.serving.send_replace(Some(Arc::new(config.map_err(unusable)?)));
            }
        }
        Ok(())
    }

    async fn authority(&self, now: Timestamp) -> Result<Authority, Error> {
        let failed = |error| Error::Make(IPAM_AUTHORITY_SECRET, error);
        let stored = self.read(IPAM_AUTHORITY_SECRET).await?;
        let authority = match stored.as_ref().and_then(Authority::from_secret) {
            Some(authority) if !authority.is_due(now) => return Ok(authority),
            Some(authority) => authority.renew(now).map_err(failed)?,
            None => Authority::generate(now).map_err(failed)?,
        };
        self.write(IPAM_AUTHORITY_SECRET, stored, authority.secret()).await?;
        Ok(authority)
    }

    async fn certificate(
        &self,
        authority: &Authority,
        role: Role,
        now: Timestamp,
    ) -> Result<Secret, Error> {
        let name = role.secret_name();
        let stored = self.read(name).await?;
        match stored {
            Some(secret) if authority.is_valid(&secret, role, now) => Ok(secret),
            stored => {
                let issued =
                    authority.issue(role, now).map_err(|error| Error::Make(name, error))?;
                if !authority.is_valid(&issued, role, now) {
                    return Err(Error::Useless);
                }
                self.write(name, stored, issued.clone()).await?;
                Ok(issued)
            }
        }
    }

    async fn read(&self, name: &'static str) -> Result<Option<Secret>, Error> {
        self.secrets.get_opt(name).await.map_err(|error| Error::Read(name, error))
    }

    /// Replaces the version that was read: a new leader may have written the Secret meanwhile.
    async fn write(
        &self,
        name: &'static str,
        stored: Option<Secret>,
        mut secret: Secret,
    ) -> Result<(), Error> {
        let params = PostParams::default();
        let written = match stored {
            None => self.secrets.create(&params, &secret).await,
            Some(stored) => {
                secret.metadata.resource_version = stored.resource_version();
                self.secrets.replace(name, &params, &secret).await
            }
        };
        written.map_err(|error| Error::Write(name, error))?;
        info!(secret = name, namespace = NAMESPACE, "certificate issued");
        Ok(())
    }
}
