//! The certificates that the address service and its clients show each other: made, kept in Secrets,
//! and renewed long before they end.

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

/// How connections are secured, once that is known.
pub type Tls = watch::Receiver<Option<Arc<ServerConfig>>>;

/// Nothing has to be renewed sooner after it is due.
const LOOK_AGAIN: Duration = Duration::from_secs(60 * 60);

/// Keeps them until the end is asked for, and tells how to serve with them.
pub async fn keep(context: Arc<Context>, serving: watch::Sender<Option<Arc<ServerConfig>>>) {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let mut observer = Observer::new();
    observer.look_again_after(LOOK_AGAIN);
    for name in [IPAM_AUTHORITY_SECRET].into_iter().chain(Role::ALL.map(Role::secret_name)) {
        observer.watch(secrets.clone(), named(name));
    }
    let keeper = Keeper { secrets, serving };
    observer.run("ipam-certificates", &context.shutdown, || keeper.reconcile()).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("read Secret {NAMESPACE}/{0}")]
    Read(&'static str, #[source] kube::Error),
    #[error("write Secret {NAMESPACE}/{0}")]
    Write(&'static str, #[source] kube::Error),
    #[error("make the certificate in Secret {NAMESPACE}/{0}")]
    Make(&'static str, #[source] rcgen::Error),
    #[error("what is made of Secret {NAMESPACE}/{IPAM_AUTHORITY_SECRET} can't be used: delete it")]
    Useless,
    #[error("serve with Secret {NAMESPACE}/{0}")]
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
        let authority = match stored.as_ref().and_then(Authority::of) {
            Some(authority) if !authority.is_due(now) => return Ok(authority),
            Some(authority) => authority.renew(now).map_err(failed)?,
            None => Authority::make(now).map_err(failed)?,
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
            Some(secret) if authority.stands_for(&secret, role, now) => Ok(secret),
            stored => {
                let issued =
                    authority.issue(role, now).map_err(|error| Error::Make(name, error))?;
                if !authority.stands_for(&issued, role, now) {
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

    /// Over what was read: somebody who leads by now has written something else.
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
        info!(secret = name, "a certificate is made");
        Ok(())
    }
}
