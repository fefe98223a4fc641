//! Secrets that the auth service needs and must not create itself: the token for other clusters,
//! its certificate, and the key of our nonces.

use std::collections::BTreeMap;

use aws_lc_rs::rand;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::watcher,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use sha2::{Digest, Sha256};
use tombolo_api::{
    ClusterId, Fingerprint,
    auth::Confidential,
    config::ClusterConfig,
    names::{
        AUTH_CERTIFICATE_SECRET, AUTH_SERVICE, AUTH_TOKEN_KEY, AUTH_TOKEN_SECRET, CLUSTER_CONFIG,
        CLUSTER_ID_LABEL, FINGERPRINT_ANNOTATION, NAMESPACE, NONCE_KEY_SECRET,
    },
};
use tombolo_core::{
    digest::hex,
    discovery::advertised_host,
    identity::{nonce, token_in},
};
use tombolo_runtime::{
    observe::{Observer, named},
    writer,
};
use tracing::info;

use super::{Error, MANAGER, failed, generation};
use crate::{
    context::Context,
    key_pair::{self, CERTIFICATE, PRIVATE_KEY},
};

/// Annotation: the configured Secret that the certificate was copied from.
const COPIED_FROM: &str = "discovery.liqo.io/copied-from";

/// Creates missing or empty Secrets, now and after every change, until shutdown.
pub(super) async fn keep(context: &Context) {
    let client = &context.client;
    let secrets = Api::<PartialObjectMeta<Secret>>::namespaced(client.clone(), NAMESPACE);
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    // Any Secret may be the one with the configured certificate, except those of other clusters.
    let own = watcher::Config::default().labels(&format!("!{CLUSTER_ID_LABEL}"));
    let mut observer = Observer::new();
    observer.watch(secrets, own);
    observer.watch(services, named(AUTH_SERVICE));
    observer.share(context.watches.of::<ClusterConfig>());
    observer.run("provisions", &context.shutdown, || ensure(client)).await;
}

async fn ensure(client: &Client) -> Result<(), Error> {
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let token = read(&secrets, AUTH_TOKEN_SECRET).await?;
    if token.as_ref().and_then(token_in).is_none() {
        let token = hex(&random()?).into_bytes();
        put(&secrets, AUTH_TOKEN_SECRET, &[(AUTH_TOKEN_KEY, token)], &[]).await?;
        info!("generated the token for other clusters in Secret {NAMESPACE}/{AUTH_TOKEN_SECRET}");
    }
    generation::current(client).await?;
    let certificate = certificate(client, &secrets).await?;
    announce(client, certificate).await
}

/// The nonce for another cluster with this certificate: always the same.
pub(crate) async fn nonce_for(
    client: &Client,
    peer: &ClusterId,
    shown: Fingerprint,
) -> Result<Confidential, Error> {
    Ok(nonce(&nonce_key(client).await?, peer, shown))
}

/// The key that nonces are derived from.
async fn nonce_key(client: &Client) -> Result<Vec<u8>, Error> {
    const KEY: &str = "key";
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    if let Some(key) = text(read(&secrets, NONCE_KEY_SECRET).await?.as_ref(), KEY) {
        return Ok(key);
    }
    let key = hex(&random()?).into_bytes();
    let secret = Secret {
        metadata: ObjectMeta { name: Some(NONCE_KEY_SECRET.to_owned()), ..ObjectMeta::default() },
        data: Some([(KEY.to_owned(), ByteString(key.clone()))].into()),
        ..Secret::default()
    };
    // Created once and never changed: on a conflict the existing one is used.
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(key),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let made = read(&secrets, NONCE_KEY_SECRET).await?;
            text(made.as_ref(), KEY).ok_or(Error::Random)
        }
        Err(error) => Err(failed(format!("create Secret {NAMESPACE}/{NONCE_KEY_SECRET}"))(error)),
    }
}

/// Cryptographically secure random bytes.
pub(crate) fn random() -> Result<[u8; 32], Error> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}

/// The fingerprint of the auth service's certificate, which is generated or copied if necessary.
async fn certificate(client: &Client, secrets: &Api<Secret>) -> Result<Fingerprint, Error> {
    let configs = Api::<ClusterConfig>::all(client.clone());
    let config = configs
        .get_opt(CLUSTER_CONFIG)
        .await
        .map_err(failed(format!("read ClusterConfig {CLUSTER_CONFIG}")))?;
    let wanted = config.and_then(|config| config.spec.auth.certificate);
    let now = read(secrets, AUTH_CERTIFICATE_SECRET).await?;
    if let Some(wanted) = wanted {
        let configured = read(secrets, &wanted).await?;
        let bad = |why| Error::BadCertificate(wanted.clone(), why);
        // A working certificate is replaced only by one that is known to work.
        let print = configured
            .as_ref()
            .ok_or_else(|| "the Secret does not exist".to_owned())
            .and_then(fingerprint)
            .map_err(bad)?;
        let pair = |secret: Option<&Secret>| {
            [CERTIFICATE, PRIVATE_KEY].map(|key| (key, text(secret, key).unwrap_or_default()))
        };
        let wanted_pair = pair(configured.as_ref());
        if pair(now.as_ref()) != wanted_pair {
            let from = [(COPIED_FROM, &*wanted)];
            put(secrets, AUTH_CERTIFICATE_SECRET, &wanted_pair, &from).await?;
            info!("using the certificate in Secret {NAMESPACE}/{wanted} for the auth service");
        }
        return Ok(print);
    }
    let copied = now.as_ref().is_some_and(|secret| secret.annotations().contains_key(COPIED_FROM));
    if !copied && let Some(Ok(print)) = now.as_ref().map(fingerprint) {
        return Ok(print);
    }
    let mut names = vec![format!("{AUTH_SERVICE}.{NAMESPACE}.svc"), AUTH_SERVICE.to_owned()];
    // Some Ingress controllers do not present a certificate that does not name the host.
    let service = service(client).await?;
    names.extend(service.as_ref().and_then(|it| advertised_host(&it.metadata)).map(str::to_owned));
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(names).map_err(Error::Certificate)?;
    let data = [
        (CERTIFICATE, cert.pem().into_bytes()),
        (PRIVATE_KEY, signing_key.serialize_pem().into_bytes()),
    ];
    put(secrets, AUTH_CERTIFICATE_SECRET, &data, &[]).await?;
    info!("generated the auth service's certificate");
    Ok(Fingerprint(Sha256::digest(cert.der()).into()))
}

/// Writes the fingerprint to the Service, for discovery and for users who want to pin it.
async fn announce(client: &Client, fingerprint: Fingerprint) -> Result<(), Error> {
    let Some(service) = service(client).await? else { return Ok(()) };
    if service.annotations().get(FINGERPRINT_ANNOTATION) == Some(&fingerprint.to_string()) {
        return Ok(());
    }
    let annotations = BTreeMap::from([(FINGERPRINT_ANNOTATION, fingerprint.to_string())]);
    let patch = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "annotations": annotations, "uid": service.uid() },
    });
    let params = PatchParams::apply(MANAGER).force();
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let written = services.patch_metadata(AUTH_SERVICE, &params, &Patch::Apply(patch)).await;
    written.map(drop).map_err(failed(format!("annotate Service {NAMESPACE}/{AUTH_SERVICE}")))
}

async fn service(client: &Client) -> Result<Option<PartialObjectMeta<Service>>, Error> {
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let service = services.get_metadata_opt(AUTH_SERVICE).await;
    service.map_err(failed(format!("read Service {NAMESPACE}/{AUTH_SERVICE}")))
}

/// The fingerprint of the certificate in a Secret, or what is wrong with it.
fn fingerprint(secret: &Secret) -> Result<Fingerprint, String> {
    let pair = key_pair::read(secret)?;
    let certificate = pair.end_entity_cert().map_err(|error| error.to_string())?;
    Ok(Fingerprint(Sha256::digest(certificate).into()))
}

async fn read(secrets: &Api<Secret>, name: &str) -> Result<Option<Secret>, Error> {
    secrets.get_opt(name).await.map_err(failed(format!("read Secret {NAMESPACE}/{name}")))
}

fn text(secret: Option<&Secret>, key: &str) -> Option<Vec<u8>> {
    let data = secret?.data.as_ref()?.get(key)?;
    Some(data.0.clone()).filter(|data| !data.is_empty())
}

async fn put(
    secrets: &Api<Secret>,
    name: &str,
    data: &[(&str, Vec<u8>)],
    annotations: &[(&str, &str)],
) -> Result<(), Error> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(annotations.iter().map(owned).collect()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.iter().map(|(key, data)| ((*key).to_owned(), ByteString(data.clone()))).collect(),
        ),
        ..Secret::default()
    };
    let done = writer::apply(secrets, MANAGER, &secret).await;
    done.map(drop).map_err(failed(format!("write Secret {NAMESPACE}/{name}")))
}
