//! The current generation of issued identities: a random name, public. Revoking an identity of that
//! generation starts another one, and none is ever used again.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tombolo_api::names::{GENERATION_KEY, GENERATION_SECRET, NAMESPACE};
use tombolo_runtime::writer;
use tracing::info;
use uuid::Uuid;

use super::{Error, MANAGER, failed};

/// The current generation, read from the API server; created if there is none. Read after a record,
/// it is never older than the last revocation for that record's cluster.
pub(super) async fn current(client: &Client) -> Result<String, Error> {
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    if let Some(generation) = read(&secrets).await? {
        return Ok(generation);
    }
    let first = new_generation();
    match secrets.create(&PostParams::default(), &first).await {
        Ok(created) => Ok(generation_in(&created).unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            read(&secrets).await?.ok_or(Error::NoGeneration)
        }
        Err(error) => Err(failed(format!("create Secret {NAMESPACE}/{GENERATION_SECRET}"))(error)),
    }
}

/// Starts another generation if `used` is the current one, or unknown.
pub(super) async fn end(client: &Client, used: Option<&str>) -> Result<(), Error> {
    if used.is_some() && used != Some(current(client).await?.as_str()) {
        return Ok(());
    }
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let ended = writer::apply(&secrets, MANAGER, &new_generation()).await;
    ended.map_err(failed(format!("write Secret {NAMESPACE}/{GENERATION_SECRET}")))?;
    info!("started a new generation of identities");
    Ok(())
}

async fn read(secrets: &Api<Secret>) -> Result<Option<String>, Error> {
    let secret = secrets.get_opt(GENERATION_SECRET).await;
    let secret = secret.map_err(failed(format!("read Secret {NAMESPACE}/{GENERATION_SECRET}")))?;
    match secret.as_ref().map(generation_in) {
        Some(None) => Err(Error::NoGeneration),
        other => Ok(other.flatten()),
    }
}

fn new_generation() -> Secret {
    let name = Uuid::new_v4().to_string();
    Secret {
        metadata: ObjectMeta { name: Some(GENERATION_SECRET.to_owned()), ..ObjectMeta::default() },
        data: Some([(GENERATION_KEY.to_owned(), ByteString(name.into_bytes()))].into()),
        ..Secret::default()
    }
}

/// The generation in the Secret, if there is one.
pub(crate) fn generation_in(secret: &Secret) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(GENERATION_KEY)?;
    String::from_utf8(bytes.0.clone()).ok().filter(|text| !text.is_empty())
}
