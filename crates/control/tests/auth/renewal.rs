//! Renewal does not interrupt clients that use the identity. A token, issued when no signer was
//! available, is replaced with a certificate.

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

/// Rome's certificate is renewed while a client uses it continuously.
pub async fn a_client_in_use_switches_to_the_renewed_certificate(rome: &Side, milan: &Side) {
    let remotes = Remotes::new(rome.client.clone());
    let there = async || remotes.in_namespace(TENANT, milan.cluster()).await.expect("an identity");
    let remote = there().await;
    let first = credential_id(&remote.client).await;
    let (end, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let requests = Api::<ResourceRequest>::namespaced(remote.client.clone(), &remote.namespace);
    let using = async {
        while !end.load(Ordering::Relaxed) {
            requests.list(&Default::default()).await.expect("requests are allowed throughout");
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
        assert!(there().await.is_same(&remote), "the client was replaced");
        let used = count.load(Ordering::Relaxed);
        let more = async || count.load(Ordering::Relaxed);
        eventually("the client sends further requests", more, |now| *now > used + 1).await;
        end.store(true, Ordering::Relaxed);
    };
    tokio::join!(using, renewing);
    assert_ne!(
        credential_id(&remote.client).await,
        first,
        "the client still presents the old certificate"
    );
}

/// Milan's auth service is unreachable, its API server is reachable.
pub async fn a_token_is_renewed_without_the_auth_service(rome: &Side, milan: &Side) {
    let mut kubeconfig = token_form(rome, milan).await;
    let key = milan.cluster.kubeconfig().with_file_name("sa.key");
    let key = PrivateKeyDer::from_pem_file(key).expect("the key of service accounts");
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_der());
    let said = due(&token_in(&kubeconfig));
    let signature = key.expect("P-256").sign(&SystemRandom::new(), said.as_bytes());
    let old = format!("{said}.{}", URL_SAFE_NO_PAD.encode(signature.expect("signed")));
    kubeconfig["users"][0]["user"]["token"] = old.as_str().into();
    let tenant = "liqo-tenant-rome";
    assert_eq!(status_of(&client(&kubeconfig).await, tenant).await, 200, "milan accepts it");

    rome.set_auth_url("milan", "https://127.0.0.1:1").await;
    store(rome, &kubeconfig.to_string()).await;
    touch(rome, "milan").await;
    let now = async || {
        let text = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let renewed = eventually("a renewed token", now, |now| token_in(now) != old).await;
    assert_eq!(status_of(&client(&renewed).await, tenant).await, 200);
    rome.wait_for_reason("milan", "Accepted").await;
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Accepted));
}

/// The token of rome's identity in milan is due for renewal.
pub async fn renewal_replaces_a_token_with_a_certificate(rome: &Side, milan: &Side) {
    let mut kubeconfig = token_form(rome, milan).await;
    let token = token_in(&kubeconfig);
    let signature = token.rsplit('.').next().expect("a signature");
    kubeconfig["users"][0]["user"]["token"] = format!("{}.{signature}", due(&token)).into();

    // The condition reports the failure while milan is unreachable.
    let nowhere = "https://127.0.0.1:1";
    rome.set_auth_url("milan", nowhere).await;
    let text = kubeconfig.to_string().replace(&milan.settings.api_server_url, nowhere);
    store(rome, &text).await;
    touch(rome, "milan").await;
    let message = rome.wait_for_reason("milan", "RenewalFailing").await;
    for part in ["the identity is valid until", "AuthUnreachable", nowhere] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Accepted));

    rome.set_auth_url("milan", &milan.url).await;
    let stored = async || rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    let is_certificate = |now: &String| now.contains("client-key-data");
    eventually("a certificate replaces the token", stored, is_certificate).await;
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.ends_with("in the form of a certificate"), "{message}");
}

/// Requests rome's identity in milan in the form of a token.
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

async fn store(rome: &Side, kubeconfig: &str) {
    let data = Patch::Merge(json!({ "stringData": { "kubeconfig": kubeconfig } }));
    let secrets = rome.within::<Secret>(TENANT);
    secrets.patch("liqo-identity", &PatchParams::default(), &data).await.expect("changed");
}

/// Header and claims of the same token, issued twenty hours ago, without a signature.
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

/// The credential id that the API server derives from the client certificate.
async fn credential_id(client: &Client) -> Vec<String> {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let review = review.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let user = review.expect("an answer").status.and_then(|status| status.user_info);
    let mut extra = user.and_then(|user| user.extra).unwrap_or_default();
    extra.remove("authentication.kubernetes.io/credential-id").expect("the certificate's hash")
}
