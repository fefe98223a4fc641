//! The gateway's WireGuard key: made once, kept in a Secret, so that peers know every gateway of
//! this cluster by the same one.

use anyhow::{Context as _, ensure};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::ObjectMeta};
use tombolo_api::names::{GATEWAY_KEY_SECRET, NAMESPACE};
use tombolo_runtime::writer;

use super::session::MANAGER;
use crate::driver::tunnel::PrivateKey;

const FIELD: &str = "privateKey";

/// The key; where there is none, a new one.
pub async fn get_or_make(client: &Client) -> anyhow::Result<PrivateKey> {
    let api = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let found = api.get_opt(GATEWAY_KEY_SECRET).await;
    let found = found.with_context(|| format!("read Secret {NAMESPACE}/{GATEWAY_KEY_SECRET}"))?;
    if let Some(key) = found.and_then(|secret| secret.data?.remove(FIELD)) {
        let bytes = <[u8; 32]>::try_from(key.0.as_slice());
        ensure!(
            bytes.is_ok(),
            "Secret {NAMESPACE}/{GATEWAY_KEY_SECRET} holds no key of 32 bytes in {FIELD}: delete it \
             to get a new one"
        );
        return Ok(PrivateKey::from_bytes(bytes.unwrap_or_default()));
    }
    let key = PrivateKey::generate().context("make a key")?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(GATEWAY_KEY_SECRET.into()),
            labels: Some([("app.kubernetes.io/part-of".into(), "liqo".into())].into()),
            ..ObjectMeta::default()
        },
        data: Some([(FIELD.into(), ByteString(key.expose().to_vec()))].into()),
        ..Secret::default()
    };
    let applied = writer::apply(&api, MANAGER, &secret).await;
    applied.with_context(|| format!("make Secret {NAMESPACE}/{GATEWAY_KEY_SECRET}"))?;
    Ok(key)
}
