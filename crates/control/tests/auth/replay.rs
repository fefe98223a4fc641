//! Replayed requests, and clusters that impersonate another one.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, ResourceExt};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tombolo_testbed::eventually;

use crate::{
    caller::{Answer, Caller},
    hostile::record_names,
    side::Side,
};

pub const NONCE: &str = "n0nce-of-lucca";

const PATH: &str = "/identity/certificate";
const TENANT: &str = "liqo-tenant-lucca";

/// A cluster with a certificate, and the request for it.
pub struct Lucca {
    caller: Caller,
    /// Private key of its certificate.
    key: KeyPair,
    pub request: Value,
}

impl Lucca {
    pub async fn start(milan: &Side) -> Self {
        let caller = Caller::new(milan, [127, 0, 0, 7]).await;
        let key = KeyPair::generate().expect("a key");
        let token = milan.token().await;
        let mut lucca = Self { caller, key, request: Value::Null };
        lucca.request = lucca.request(&token, "0");
        let answer = lucca.send(&lucca.request).await;
        assert_eq!((answer.status, answer.reason()), (422, "OtherGeneration"));
        let generation = answer.body["generation"].as_str().expect("one").to_owned();
        lucca.request = lucca.request(&token, &generation);
        assert_eq!(lucca.send(&lucca.request).await.status, 200);
        lucca
    }

    /// The same cluster with another source address.
    pub fn at(self, from: [u8; 4]) -> Self {
        Self { caller: self.caller.at(from), ..self }
    }

    fn request(&self, token: &str, generation: &str) -> Value {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "liqo.io");
        let name = format!("liqo:id-of-lucca:{generation}");
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        let pem = params.serialize_request(&self.key).expect("a request").pem().expect("PEM");
        json!({
            "clusterID": "id-of-lucca", "clusterName": "lucca", "token": token, "nonce": NONCE,
            "signingRequest": pem,
        })
    }

    pub async fn send(&self, request: &Value) -> Answer {
        self.caller.post(PATH, request).await
    }
}

/// A repeated request gets the same response and creates no objects.
pub async fn a_replayed_request_changes_nothing(milan: &Side, lucca: &Lucca) {
    let (records, account) = (record_names(milan).await, account(milan).await);
    for _ in 0..3 {
        let answer = lucca.send(&lucca.request).await;
        assert_eq!(answer.status, 200, "{}", answer.error());
        let text = answer.body["kubeconfig"].as_str().expect("a kubeconfig");
        assert!(!text.contains("client-key-data"), "only lucca has the key");
    }
    // With another nonce the request is rejected.
    for nonce in [json!("an0ther"), json!(""), json!(format!("{NONCE} "))] {
        let mut other = lucca.request.clone();
        other["nonce"] = nonce;
        let answer = lucca.send(&other).await;
        assert_eq!((answer.status, answer.reason()), (409, "IdentityTaken"));
    }
    assert_eq!((record_names(milan).await, self::account(milan).await), (records, account));
}

/// An attacker that only knows a cluster's id can neither get nor revoke its identity, nor use up
/// its rate limit.
pub async fn a_stolen_cluster_id_is_useless(milan: &Side, lucca: &Lucca) {
    let thief = Caller::new(milan, [127, 0, 0, 8]).await;
    let token = milan.token().await;
    let (records, account) = (record_names(milan).await, account(milan).await);
    for turn in 0..40 {
        let nonce = format!("stolen-{turn}");
        let ask = json!({ "clusterID": "id-of-lucca", "token": token, "nonce": nonce });
        let end = json!({ "clusterID": "id-of-lucca", "nonce": nonce });
        let mut sign = lucca.request.clone();
        sign["nonce"] = json!(nonce);
        for (method, path, body) in
            [("POST", "/identity", ask), ("DELETE", "/identity", end), ("POST", PATH, sign)]
        {
            let answer = thief.request(method, path, &body.to_string()).await;
            assert_eq!((answer.status, answer.reason()), (409, "IdentityTaken"), "{method} {path}");
        }
    }
    assert_eq!(lucca.send(&lucca.request).await.status, 200, "lucca's rate limit was used up");
    assert_eq!((record_names(milan).await, self::account(milan).await), (records, account));
}

/// Two concurrent requests for the same new cluster id, with different nonces.
pub async fn one_of_two_concurrent_requests_succeeds(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 11]).await;
    let token = milan.token().await;
    for turn in 0..10 {
        let requests = ["one", "another"].map(|nonce| {
            let id = format!("id-of-contested-{turn}");
            let request = json!({ "clusterID": id, "token": token, "nonce": nonce });
            let caller = &caller;
            async move { caller.post("/identity", &request).await }
        });
        let answers = join_all(requests).await;
        let given = |answer: &&Answer| answer.status == 200;
        assert_eq!(answers.iter().filter(given).count(), 1, "{answers:?}");
        let other = answers.iter().find(|answer| answer.status != 200).expect("the other one");
        assert_eq!((other.status, other.reason()), (409, "IdentityTaken"));
        assert!(other.body["kubeconfig"].is_null());
    }
}

/// A request from before the revocation is rejected afterwards.
pub async fn a_request_from_before_the_revocation_is_rejected(milan: &Side, lucca: &Lucca) {
    let before = account(milan).await;
    milan.delete_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    let now = async || account(milan).await;
    eventually("the service account is deleted", now, |now| *now != before).await;
    let again = async || {
        let answer = lucca.send(&lucca.request).await;
        (answer.status, answer.reason().to_owned(), answer.body["kubeconfig"].is_null())
    };
    let refused = |answer: &(u16, String, bool)| {
        assert!(answer.2, "an identity was issued");
        (answer.0, &*answer.1) == (422, "OtherGeneration")
    };
    eventually("rejected because of the generation", again, refused).await;

    // It is also rejected once the record is deleted and the token has changed.
    milan.delete_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    let token = milan.token().await;
    let other = json!({ "stringData": { "token": "an0ther-token-from-now-on" } });
    milan.put_in::<Secret>("liqo", "auth-token", other).await;
    let refused = |answer: &(u16, String, bool)| {
        assert!(answer.2, "an identity was issued");
        (answer.0, &*answer.1) == (401, "WrongToken")
    };
    eventually("rejected because of the token", again, refused).await;
    milan.put_in::<Secret>("liqo", "auth-token", json!({ "stringData": { "token": token } })).await;
    let known = async || lucca.send(&lucca.request).await.status;
    eventually("the token is accepted again", known, |status| *status == 422).await;
}

/// UID of lucca's service account, if it exists.
async fn account(milan: &Side) -> Option<String> {
    let accounts = Api::<ServiceAccount>::namespaced(milan.client.clone(), TENANT);
    accounts.get_opt("liqo-cluster").await.expect("an answer").and_then(|it| it.uid())
}
