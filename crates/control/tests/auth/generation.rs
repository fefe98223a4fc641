//! One request is enough for a certificate, and no generation that was taken away ever counts again,
//! whoever asks for it.

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

/// Two clusters that know how to ask, and one of which wants its old certificate back.
pub async fn a_generation_is_told_before_and_never_comes_again(milan: &Side) {
    let (lucca, pisa) = (Asking::new("lucca"), Asking::new("pisa"));
    let first = current(milan).await;
    let (status, answer) = lucca.ask(milan, &first).await;
    assert_eq!(status, 200, "one request is enough: {}", answer["error"]);
    let old = lucca.client(&answer).await;
    assert_eq!(status_of(&old, "liqo-tenant-lucca").await, 200);
    assert_eq!(pisa.ask(milan, &first).await.0, 200);

    let records = milan.within::<Secret>("liqo-auth");
    records.delete("identity-id-of-lucca", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    assert_eq!(status_of(&old, "liqo-tenant-lucca").await, 403);
    let told = async || current(milan).await;
    let second = eventually("another generation is told", told, |now| *now != first).await;

    // What it had is not given again.
    let (status, answer) = lucca.ask(milan, &first).await;
    assert_eq!((status, &answer["generation"]), (422, &json!(second)), "{answer}");
    let (status, answer) = lucca.ask(milan, &second).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    let new = lucca.client(&answer).await;
    assert_eq!(status_of(&new, "liqo-tenant-lucca").await, 200);
    assert_eq!(status_of(&old, "liqo-tenant-lucca").await, 403, "it counts again");
    assert_eq!(lucca.ask(milan, &first).await.0, 422, "it is given again");

    // Nobody else has noticed: the other one is of the first generation still, and stays so.
    let (status, answer) = pisa.ask(milan, &first).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    assert_eq!(status_of(&pisa.client(&answer).await, "liqo-tenant-pisa").await, 200);
    assert_eq!(pisa.ask(milan, &second).await.0, 422);

    // When it goes, the current generation is another one already.
    records.delete("identity-id-of-pisa", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-pisa").await;
    assert_eq!(stored(milan).await, second);
    records.delete("identity-id-of-lucca", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    assert_ne!(stored(milan).await, second);
}

/// As the auth service tells everybody.
async fn current(milan: &Side) -> String {
    let (_, info) = call(milan, "GET", "/info", "").await;
    info["generation"].as_str().expect("a generation").to_owned()
}

async fn stored(milan: &Side) -> String {
    milan.secret("liqo", "liqo-generation", "generation").await
}

/// A cluster with a key.
struct Asking {
    name: &'static str,
    key: KeyPair,
}

impl Asking {
    fn new(name: &'static str) -> Self {
        Self { name, key: KeyPair::generate().expect("a key") }
    }

    async fn ask(&self, milan: &Side, generation: &str) -> (u16, Value) {
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
