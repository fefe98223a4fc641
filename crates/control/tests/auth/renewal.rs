//! Who uses an identity does not notice when it is renewed; and one that is a token, because nobody
//! signed a certificate, becomes one when it is renewed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tombolo_api::discovery::{AuthStatus, ResourceRequest};
use tombolo_runtime::remote::Remotes;
use tombolo_testbed::eventually;

use crate::{
    certificate::{client, status_of},
    service::call,
    side::Side,
    story::touch,
};

const TENANT: &str = "liqo-tenant-milan";

/// Rome has a certificate at milan, and somebody who uses it all the time.
pub async fn a_client_in_use_shows_the_next_certificate(rome: &Side, milan: &Side) {
    let remotes = Remotes::new(rome.client.clone());
    let there = async || remotes.in_namespace(TENANT, milan.cluster()).await.expect("an identity");
    let remote = there().await;
    let first = shown(&remote.client).await;
    let (end, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let requests = Api::<ResourceRequest>::namespaced(remote.client.clone(), &remote.namespace);
    let using = async {
        while !end.load(Ordering::Relaxed) {
            requests.list(&Default::default()).await.expect("it is allowed all the time");
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let renewing = async {
        rome.delete_in::<Secret>(TENANT, "liqo-identity").await;
        touch(rome, "milan").await;
        let has_another = |secret: &Secret| {
            secret.data.as_ref().is_some_and(|data| data.contains_key("kubeconfig"))
        };
        rome.until_in::<Secret>(TENANT, "liqo-identity", has_another).await;
        assert!(there().await.is_same(&remote), "it is another client");
        let used = count.load(Ordering::Relaxed);
        let more = async || count.load(Ordering::Relaxed);
        eventually("it is used again", more, |now| *now > used + 1).await;
        end.store(true, Ordering::Relaxed);
    };
    tokio::join!(using, renewing);
    assert_ne!(shown(&remote.client).await, first, "the client shows the old certificate");
}

/// Nobody is where milan's auth service was, and its API server answers.
pub async fn a_token_is_renewed_by_itself_where_there_is_no_auth_service(
    rome: &Side,
    milan: &Side,
) {
    let mut kubeconfig = token_form(rome, milan).await;
    let key = milan.cluster.kubeconfig().with_file_name("sa.key");
    let key = PrivateKeyDer::from_pem_file(key).expect("the key of service accounts");
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_der());
    let said = due(&token_in(&kubeconfig));
    let signature = key.expect("P-256").sign(&SystemRandom::new(), said.as_bytes());
    let old = format!("{said}.{}", URL_SAFE_NO_PAD.encode(signature.expect("signed")));
    kubeconfig["users"][0]["user"]["token"] = old.as_str().into();
    let tenant = "liqo-tenant-rome";
    assert_eq!(status_of(&client(&kubeconfig).await, tenant).await, 200, "milan knows it");

    rome.moves("milan", "https://127.0.0.1:1").await;
    stores(rome, &kubeconfig.to_string()).await;
    touch(rome, "milan").await;
    let now = async || {
        let text = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let renewed = eventually("another token", now, |now| token_in(now) != old).await;
    assert_eq!(status_of(&client(&renewed).await, tenant).await, 200);
    rome.says("milan", "Accepted").await;
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Accepted));
}

/// The token of rome's identity at milan is to be renewed.
pub async fn a_token_becomes_a_certificate_when_it_is_renewed(rome: &Side, milan: &Side) {
    let mut kubeconfig = token_form(rome, milan).await;
    let token = token_in(&kubeconfig);
    let signature = token.rsplit('.').next().expect("a signature");
    kubeconfig["users"][0]["user"]["token"] = format!("{}.{signature}", due(&token)).into();

    // As long as nobody is there who could renew it, that is said.
    let nowhere = "https://127.0.0.1:1";
    rome.moves("milan", nowhere).await;
    let text = kubeconfig.to_string().replace(&milan.settings.api_server_url, nowhere);
    stores(rome, &text).await;
    touch(rome, "milan").await;
    let message = rome.says("milan", "RenewalFailing").await;
    for part in ["the identity is valid until", "AuthUnreachable", nowhere] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Accepted));

    rome.moves("milan", &milan.url).await;
    let stored = async || rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    let is_certificate = |now: &String| now.contains("client-key-data");
    eventually("a certificate in its place", stored, is_certificate).await;
    let message = rome.says("milan", "Accepted").await;
    assert!(message.ends_with("in the form of a certificate"), "{message}");
}

/// Rome's identity at milan in the form of a token, as milan gives it.
async fn token_form(rome: &Side, milan: &Side) -> Value {
    let nonce = rome.secret(TENANT, "liqo-identity", "nonce").await;
    let request = json!({
        "clusterID": "id-of-rome", "clusterName": "rome", "nonce": nonce,
        "token": milan.token().await,
    });
    let (status, answer) = call(milan, "POST", "/identity", &request.to_string()).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    let text = answer["kubeconfig"].as_str().expect("a kubeconfig");
    serde_json::from_str(text).expect("JSON")
}

fn token_in(kubeconfig: &Value) -> String {
    kubeconfig["users"][0]["user"]["token"].as_str().expect("a token").to_owned()
}

async fn stores(rome: &Side, kubeconfig: &str) {
    let data = Patch::Merge(json!({ "stringData": { "kubeconfig": kubeconfig } }));
    let secrets = rome.within::<Secret>(TENANT);
    secrets.patch("liqo-identity", &PatchParams::default(), &data).await.expect("changed");
}

/// What the same token would say if it had been given twenty hours ago, without a signature.
fn due(token: &str) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let claims = URL_SAFE_NO_PAD.decode(parts[1]).expect("base64");
    let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
    let now = Timestamp::now().as_second();
    (claims["iat"], claims["exp"]) = (json!(now - 20 * 3600), json!(now + 4 * 3600));
    claims["nbf"] = claims["iat"].clone();
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    [parts[0], &claims].join(".")
}

/// Which certificate the API server has seen.
async fn shown(client: &Client) -> Vec<String> {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let review = review.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let user = review.expect("an answer").status.and_then(|status| status.user_info);
    let mut extra = user.and_then(|user| user.extra).unwrap_or_default();
    extra.remove("authentication.kubernetes.io/credential-id").expect("the certificate's hash")
}
