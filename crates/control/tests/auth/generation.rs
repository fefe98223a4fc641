//! Generations of certificates. One request is enough for a certificate, and a revoked generation
//! is never valid again.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tombolo_testbed::eventually;

use crate::{
    certificate::{client, status_of},
    service::call,
    side::Side,
};

/// Two clusters with certificates of the same generation. One is revoked and requests its old
/// generation again.
pub async fn a_revoked_generation_is_never_issued_again(milan: &Side) {
    let (lucca, pisa) = (Requester::new("lucca"), Requester::new("pisa"));
    let first = current(milan).await;
    let (status, answer) = lucca.request(milan, &first).await;
    assert_eq!(status, 200, "one request is enough: {}", answer["error"]);
    let old = lucca.client(&answer).await;
    assert_eq!(status_of(&old, "liqo-tenant-lucca").await, 200);
    assert_eq!(pisa.request(milan, &first).await.0, 200);

    let records = milan.within::<Secret>("liqo-auth");
    records.delete("identity-id-of-lucca", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    assert_eq!(status_of(&old, "liqo-tenant-lucca").await, 403);
    let told = async || current(milan).await;
    let second = eventually("/info returns another generation", told, |now| *now != first).await;

    // The revoked generation is not issued again.
    let (status, answer) = lucca.request(milan, &first).await;
    assert_eq!((status, &answer["generation"]), (422, &json!(second)), "{answer}");
    let (status, answer) = lucca.request(milan, &second).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    let new = lucca.client(&answer).await;
    assert_eq!(status_of(&new, "liqo-tenant-lucca").await, 200);
    assert_eq!(
        status_of(&old, "liqo-tenant-lucca").await,
        403,
        "the revoked certificate is valid again"
    );
    assert_eq!(
        lucca.request(milan, &first).await.0,
        422,
        "the revoked generation was issued again"
    );

    // The other cluster is not affected: it keeps the first generation.
    let (status, answer) = pisa.request(milan, &first).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    assert_eq!(status_of(&pisa.client(&answer).await, "liqo-tenant-pisa").await, 200);
    assert_eq!(pisa.request(milan, &second).await.0, 422);

    // Revoking a certificate of an old generation does not change the current one.
    records.delete("identity-id-of-pisa", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-pisa").await;
    assert_eq!(stored(milan).await, second);
    records.delete("identity-id-of-lucca", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    assert_ne!(stored(milan).await, second);
}

/// The generation in the response to `GET /info`.
async fn current(milan: &Side) -> String {
    let (_, info) = call(milan, "GET", "/info", "").await;
    info["generation"].as_str().expect("a generation").to_owned()
}

async fn stored(milan: &Side) -> String {
    milan.secret("liqo", "liqo-generation", "generation").await
}

/// A cluster that requests certificates for its key.
struct Requester {
    name: &'static str,
    key: KeyPair,
}

impl Requester {
    fn new(name: &'static str) -> Self {
        Self { name, key: KeyPair::generate().expect("a key") }
    }

    async fn request(&self, milan: &Side, generation: &str) -> (u16, Value) {
        let Self { name, key } = self;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "liqo.io");
        let user = format!("liqo:id-of-{name}:{generation}");
        params.distinguished_name.push(DnType::CommonName, user);
        let request = params.serialize_request(key).expect("a request").pem().expect("PEM");
        let body = json!({
            "clusterID": format!("id-of-{name}"), "clusterName": name, "signingRequest": request,
            "token": milan.token().await, "nonce": format!("{name}-nonce"),
        });
        call(milan, "POST", "/identity/certificate", &body.to_string()).await
    }

    async fn client(&self, answer: &Value) -> Client {
        let text = answer["kubeconfig"].as_str().expect("a kubeconfig");
        let mut kubeconfig: Value = serde_json::from_str(text).expect("JSON");
        let key = STANDARD.encode(self.key.serialize_pem());
        kubeconfig["users"][0]["user"]["client-key-data"] = key.into();
        client(&kubeconfig).await
    }
}
