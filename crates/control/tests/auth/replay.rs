//! Requests that were heard somewhere and are sent again, and clusters that say they are another one.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, ResourceExt};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tombolo_testbed::eventually;

use crate::{
    caller::{Answer, Caller},
    hostile::names,
    side::Side,
};

pub const NONCE: &str = "n0nce-of-lucca";

const PATH: &str = "/identity/certificate";
const TENANT: &str = "liqo-tenant-lucca";

/// A cluster with a certificate, and the request by which it got it.
pub struct Lucca {
    caller: Caller,
    /// Of its certificate.
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
        let answer = lucca.asks(&lucca.request).await;
        assert_eq!((answer.status, answer.reason()), (422, "OtherGeneration"));
        let generation = answer.body["generation"].as_str().expect("one").to_owned();
        lucca.request = lucca.request(&token, &generation);
        assert_eq!(lucca.asks(&lucca.request).await.status, 200);
        lucca
    }

    /// The same from another address.
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

    pub async fn asks(&self, request: &Value) -> Answer {
        self.caller.posts(PATH, request).await
    }
}

/// The same again gives the same, and makes nothing.
pub async fn a_request_that_is_sent_again_makes_nothing_new(milan: &Side, lucca: &Lucca) {
    let (records, account) = (names(milan).await, account(milan).await);
    for _ in 0..3 {
        let answer = lucca.asks(&lucca.request).await;
        assert_eq!(answer.status, 200, "{}", answer.error());
        let text = answer.body["kubeconfig"].as_str().expect("a kubeconfig");
        assert!(!text.contains("client-key-data"), "only lucca has the key");
    }
    // Without the nonce it is not the same.
    for nonce in [json!("an0ther"), json!(""), json!(format!("{NONCE} "))] {
        let mut other = lucca.request.clone();
        other["nonce"] = nonce;
        let answer = lucca.asks(&other).await;
        assert_eq!((answer.status, answer.reason()), (409, "IdentityTaken"));
    }
    assert_eq!((names(milan).await, self::account(milan).await), (records, account));
}

/// Who only knows the id of a cluster neither gets nor ends its identity, nor keeps it from its own.
pub async fn a_stolen_id_is_of_no_use(milan: &Side, lucca: &Lucca) {
    let thief = Caller::new(milan, [127, 0, 0, 8]).await;
    let token = milan.token().await;
    let (records, account) = (names(milan).await, account(milan).await);
    for turn in 0..40 {
        let nonce = format!("stolen-{turn}");
        let ask = json!({ "clusterID": "id-of-lucca", "token": token, "nonce": nonce });
        let end = json!({ "clusterID": "id-of-lucca", "nonce": nonce });
        let mut sign = lucca.request.clone();
        sign["nonce"] = json!(nonce);
        for (method, path, body) in
            [("POST", "/identity", ask), ("DELETE", "/identity", end), ("POST", PATH, sign)]
        {
            let answer = thief.asks(method, path, &body.to_string()).await;
            assert_eq!((answer.status, answer.reason()), (409, "IdentityTaken"), "{method} {path}");
        }
    }
    assert_eq!(lucca.asks(&lucca.request).await.status, 200, "lucca's own limit was used up");
    assert_eq!((names(milan).await, self::account(milan).await), (records, account));
}

/// Nobody has the identity yet, and several want it at the same time, each with a nonce of its own.
pub async fn of_two_that_come_at_once_one_gets_it(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 11]).await;
    let token = milan.token().await;
    for turn in 0..10 {
        let asks = ["one", "another"].map(|nonce| {
            let id = format!("id-of-contested-{turn}");
            let request = json!({ "clusterID": id, "token": token, "nonce": nonce });
            let caller = &caller;
            async move { caller.posts("/identity", &request).await }
        });
        let answers = join_all(asks).await;
        let given = |answer: &&Answer| answer.status == 200;
        assert_eq!(answers.iter().filter(given).count(), 1, "{answers:?}");
        let other = answers.iter().find(|answer| answer.status != 200).expect("the other one");
        assert_eq!((other.status, other.reason()), (409, "IdentityTaken"));
        assert!(other.body["kubeconfig"].is_null());
    }
}

/// What was asked for before the identity was taken away gives nothing afterwards.
pub async fn an_old_request_gives_nothing_after_the_identity_was_taken_away(
    milan: &Side,
    lucca: &Lucca,
) {
    let before = account(milan).await;
    milan.delete_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    let now = async || account(milan).await;
    eventually("the account is gone", now, |now| *now != before).await;
    let again = async || {
        let answer = lucca.asks(&lucca.request).await;
        (answer.status, answer.reason().to_owned(), answer.body["kubeconfig"].is_null())
    };
    let refused = |answer: &(u16, String, bool)| {
        assert!(answer.2, "it got an identity");
        (answer.0, &*answer.1) == (422, "OtherGeneration")
    };
    eventually("it is refused for its generation", again, refused).await;

    // Nor when the token is another one by now, and it is not known any more.
    milan.delete_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-lucca").await;
    let token = milan.token().await;
    let other = json!({ "stringData": { "token": "an0ther-token-from-now-on" } });
    milan.put_in::<Secret>("liqo", "auth-token", other).await;
    let refused = |answer: &(u16, String, bool)| {
        assert!(answer.2, "it got an identity");
        (answer.0, &*answer.1) == (401, "WrongToken")
    };
    eventually("it is refused for its token", again, refused).await;
    milan.put_in::<Secret>("liqo", "auth-token", json!({ "stringData": { "token": token } })).await;
    let known = async || lucca.asks(&lucca.request).await.status;
    eventually("the token counts again", known, |status| *status == 422).await;
}

/// The uid of lucca's account, if it has one.
async fn account(milan: &Side) -> Option<String> {
    let accounts = Api::<ServiceAccount>::namespaced(milan.client.clone(), TENANT);
    accounts.get_opt("liqo-cluster").await.expect("an answer").and_then(|it| it.uid())
}
