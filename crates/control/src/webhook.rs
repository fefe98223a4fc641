//! The admission webhook: pods of offloaded namespaces get what makes the scheduler put them where
//! their namespace wants them. Every replica serves it, all with the same certificate.

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

/// Port that it is served at.
pub const PORT: u16 = 9443;

/// What could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port can't be had.
    #[error("listen at port {PORT} for the API server's questions about pods")]
    Listen(#[source] std::io::Error),
    /// No certificate.
    #[error("get or make the certificate in Secret {NAMESPACE}/{WEBHOOK_CERTIFICATE}")]
    Certificate(#[source] certificate::Error),
    /// The API server does not know the certificate.
    #[error("put the certificate into MutatingWebhookConfiguration {WEBHOOK_CONFIGURATION}")]
    Publish(#[source] kube::Error),
    /// It does not answer any more.
    #[error("serve the API server's questions about pods")]
    Serve(#[source] std::io::Error),
}

/// From here on questions wait to be answered.
pub fn listen() -> Result<TcpListener, Error> {
    listen::everywhere(PORT).map_err(Error::Listen)
}

/// Serves until the end is asked for.
pub async fn run(ctx: Arc<Context>, listener: TcpListener) {
    if let Err(error) = serve(ctx, listener).await {
        error!("{}", Chain(&error));
    }
}

/// Serves what comes to this listener, until the end is asked for.
pub async fn serve(ctx: Arc<Context>, listener: TcpListener) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), NAMESPACE);
    let certificate = Certificate::get_or_make(&secrets).await.map_err(Error::Certificate)?;
    let serving = Serving::new(certificate).map_err(Error::Certificate)?;

    let mut observer = Observer::new();
    let offloadings = observer.share(ctx.watches.of());
    let seen = Seen {
        client: ctx.client.clone(),
        stored: observer.watch(secrets.clone(), named(WEBHOOK_CERTIFICATE)),
        configurations: observer.watch(Api::all(ctx.client.clone()), named(WEBHOOK_CONFIGURATION)),
        secrets,
        serving: serving.clone(),
    };
    let follow = observer.run("webhook", &ctx.shutdown, || seen.reconcile());

    let questions = Questions { client: ctx.client.clone(), offloadings };
    let router = Router::new().route("/mutate", post(answer)).with_state(Arc::new(questions));
    let handle = Handle::new();
    let server = axum_server::from_tcp_rustls(nonblocking(listener)?, serving.config())
        .map_err(Error::Serve)?
        .handle(handle.clone())
        .serve(router.into_make_service());
    let end = async {
        ctx.shutdown.asked().await;
        handle.graceful_shutdown(Some(Duration::from_secs(5)));
    };
    let (served, (), ()) = tokio::join!(server, follow, end);
    served.map_err(Error::Serve)
}

struct Questions {
    client: Client,
    offloadings: Store<NamespaceOffloading>,
}

impl Questions {
    /// How a namespace is offloaded. Asked only for those that are, so what the index has not
    /// got yet is asked for.
    async fn offloading(&self, namespace: &str) -> kube::Result<Option<Arc<NamespaceOffloading>>> {
        let key = ObjectRef::new(NAMESPACE_OFFLOADING).within(namespace);
        if let Some(offloading) = self.offloadings.get(&key) {
            return Ok(Some(offloading));
        }
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), namespace);
        Ok(api.get_opt(NAMESPACE_OFFLOADING).await?.map(Arc::new))
    }
}

async fn answer(
    State(questions): State<Arc<Questions>>,
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
    let response = match questions.offloading(namespace).await {
        Ok(Some(offloading)) => review::review(response, pod, &offloading.spec),
        Ok(None) => response,
        Err(error) => {
            warn!(namespace, "a pod is refused for now: {}", Chain(&error));
            response.deny("how the namespace is offloaded can't be read now; try again")
        }
    };
    Json(response.into_review())
}

struct Seen {
    client: Client,
    secrets: Api<Secret>,
    stored: Store<Secret>,
    configurations: Store<MutatingWebhookConfiguration>,
    serving: Serving,
}

impl Seen {
    /// Serves with the certificate that is stored, and has the API server know it.
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
