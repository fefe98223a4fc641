//! The admission webhook: amends pods of offloaded namespaces so that the scheduler follows the
//! namespace's strategy. Every replica serves it, with the same certificate.

mod certificate;
mod review;

use std::{net::TcpListener, sync::Arc, time::Duration};

use axum::{Json, Router, extract::State, routing::post};
use axum_server::Handle;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::json;
use tombolo_api::names::{
    NAMESPACE, NAMESPACE_OFFLOADING, WEBHOOK_CERTIFICATE, WEBHOOK_CONFIGURATION,
};
use tombolo_api::offloading::NamespaceOffloading;
use tombolo_runtime::{
    chain::Chain,
    listen,
    observe::{Observer, named},
};
use tracing::{error, warn};

use crate::context::Context;
use certificate::{Certificate, Serving};

/// Port of the webhook.
pub const PORT: u16 = 9443;

/// A failure of the webhook.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is not available.
    #[error("listen on port {PORT} for admission reviews")]
    Listen(#[source] std::io::Error),
    /// There is no certificate.
    #[error("read or create the certificate in Secret {NAMESPACE}/{WEBHOOK_CERTIFICATE}")]
    Certificate(#[source] certificate::Error),
    /// The CA bundle could not be written.
    #[error("write the CA bundle of MutatingWebhookConfiguration {WEBHOOK_CONFIGURATION}")]
    Publish(#[source] kube::Error),
    /// The server has stopped.
    #[error("serve admission reviews")]
    Serve(#[source] std::io::Error),
}

/// Opens the port: reviews queue up until they are served.
pub fn listen() -> Result<TcpListener, Error> {
    listen::everywhere(PORT).map_err(Error::Listen)
}

/// Serves until shutdown.
pub async fn run(ctx: Arc<Context>, listener: TcpListener) {
    if let Err(error) = serve(ctx, listener).await {
        error!("webhook failed: {}", Chain(&error));
    }
}

/// Serves on this listener until shutdown.
pub async fn serve(ctx: Arc<Context>, listener: TcpListener) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), NAMESPACE);
    let certificate = Certificate::get_or_make(&secrets).await.map_err(Error::Certificate)?;
    let serving = Serving::new(certificate).map_err(Error::Certificate)?;

    let mut observer = Observer::new();
    let offloadings = observer.share(ctx.watches.of());
    let sync = CertificateSync {
        client: ctx.client.clone(),
        stored: observer.watch(secrets.clone(), named(WEBHOOK_CERTIFICATE)),
        configurations: observer.watch(Api::all(ctx.client.clone()), named(WEBHOOK_CONFIGURATION)),
        secrets,
        serving: serving.clone(),
    };
    let follow = observer.run("webhook", &ctx.shutdown, || sync.reconcile());

    let reviewer = Reviewer { client: ctx.client.clone(), offloadings };
    let router = Router::new().route("/mutate", post(mutate)).with_state(Arc::new(reviewer));
    let handle = Handle::new();
    let server = axum_server::from_tcp_rustls(nonblocking(listener)?, serving.config())
        .map_err(Error::Serve)?
        .handle(handle.clone())
        .serve(router.into_make_service());
    let end = async {
        ctx.shutdown.triggered().await;
        handle.graceful_shutdown(Some(Duration::from_secs(5)));
    };
    let (served, (), ()) = tokio::join!(server, follow, end);
    served.map_err(Error::Serve)
}

struct Reviewer {
    client: Client,
    offloadings: Store<NamespaceOffloading>,
}

impl Reviewer {
    /// The NamespaceOffloading of a namespace. Reviews are sent for offloaded namespaces only, so
    /// if it is not in the index yet, it is read from the API server.
    async fn offloading(&self, namespace: &str) -> kube::Result<Option<Arc<NamespaceOffloading>>> {
        let key = ObjectRef::new(NAMESPACE_OFFLOADING).within(namespace);
        if let Some(offloading) = self.offloadings.get(&key) {
            return Ok(Some(offloading));
        }
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), namespace);
        Ok(api.get_opt(NAMESPACE_OFFLOADING).await?.map(Arc::new))
    }
}

async fn mutate(
    State(reviewer): State<Arc<Reviewer>>,
    Json(review): Json<AdmissionReview<Pod>>,
) -> Json<AdmissionReview<DynamicObject>> {
    let request: AdmissionRequest<Pod> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return Json(AdmissionResponse::invalid(error).into_review()),
    };
    let response = AdmissionResponse::from(&request);
    let Some(pod) = &request.object else {
        return Json(response.into_review());
    };
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let response = match reviewer.offloading(namespace).await {
        Ok(Some(offloading)) => review::review(response, pod, &offloading.spec),
        Ok(None) => response,
        Err(error) => {
            warn!(namespace, "denied a pod, can't read the NamespaceOffloading: {}", Chain(&error));
            response
                .deny("the NamespaceOffloading of the namespace can't be read right now; try again")
        }
    };
    Json(response.into_review())
}

struct CertificateSync {
    client: Client,
    secrets: Api<Secret>,
    stored: Store<Secret>,
    configurations: Store<MutatingWebhookConfiguration>,
    serving: Serving,
}

impl CertificateSync {
    /// Serves the stored certificate, and writes it to the webhook configuration.
    async fn reconcile(&self) -> Result<(), Error> {
        let stored = self.stored.state().into_iter().next();
        let certificate = match stored.and_then(|secret| Certificate::of(&secret)) {
            Some(certificate) => certificate,
            None => Certificate::get_or_make(&self.secrets).await.map_err(Error::Certificate)?,
        };
        self.serving.follow(&certificate).map_err(Error::Certificate)?;
        for configuration in self.configurations.state() {
            self.publish(&configuration, &certificate).await.map_err(Error::Publish)?;
        }
        Ok(())
    }

    async fn publish(
        &self,
        configuration: &MutatingWebhookConfiguration,
        certificate: &Certificate,
    ) -> kube::Result<()> {
        let bundle = k8s_openapi::ByteString(certificate.chain.clone().into_bytes());
        let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
        if webhooks.iter().all(|hook| hook.client_config.ca_bundle.as_ref() == Some(&bundle)) {
            return Ok(());
        }
        let webhooks: Vec<_> = webhooks
            .iter()
            .map(|hook| json!({ "name": hook.name, "clientConfig": { "caBundle": bundle } }))
            .collect();
        let patch = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": configuration.name_any(), "uid": configuration.uid() },
            "webhooks": webhooks,
        });
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let params = PatchParams::apply("liqo-control/webhook").force();
        api.patch(&configuration.name_any(), &params, &Patch::Apply(patch)).await.map(drop)
    }
}

fn nonblocking(listener: TcpListener) -> Result<TcpListener, Error> {
    listener.set_nonblocking(true).map_err(Error::Serve)?;
    Ok(listener)
}
