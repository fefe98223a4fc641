//! Responses of another cluster's auth service: cluster information, an identity or an error.
#![no_main]

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, Uri};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tombolo_api::{
    ClusterIdentity,
    auth::{AuthError, ClusterInfo, IdentityResponse},
};
use tombolo_core::{
    condition::now_is,
    identity::{Access, Credentials, Subject, TokenClaims, is_generation},
};
use tombolo_fuzz::{is_identity, is_label};

fuzz_target!(|body: &[u8]| {
    if let Ok(ClusterInfo { cluster_id, cluster_name, .. }) = serde_json::from_slice(body) {
        is_identity(&ClusterIdentity { cluster_id, cluster_name });
    }
    if let Ok(error) = serde_json::from_slice(body) {
        is_said(&error);
    }
    if let Ok(response) = serde_json::from_slice::<IdentityResponse>(body) {
        is_usable(response.kubeconfig.reveal());
    }
    // The same without nested formats.
    if let Ok(text) = std::str::from_utf8(body) {
        is_usable(text);
        counts(text);
    }
});

fn is_said(error: &AuthError) {
    let epoch = jiff::Timestamp::UNIX_EPOCH;
    let said = now_is(&[], "Authenticated", false, "AuthFailed", &error.error, epoch);
    assert!(said.message.len() <= 32 * 1024);
    if let Some(generation) = error.generation.clone().filter(|text| is_generation(text)) {
        let subject = Subject { cluster_id: "rome".parse().expect("an id"), generation };
        assert_eq!(subject.to_string().parse(), Ok(subject));
    }
}

fn is_usable(kubeconfig: &str) {
    let Ok(value) = serde_saphyr::from_str::<Value>(kubeconfig) else { return };
    let Ok(access) = Access::read(&value) else { return };
    let url: Uri = access.server.parse().expect("a URL");
    assert_eq!(url.scheme_str(), Some("https"));
    assert!(url.host().is_some_and(|host| !host.is_empty()), "{url}");
    assert!(is_label(&access.namespace, 63), "{:?}", access.namespace);

    let kept = access.kubeconfig(&"milan".parse().expect("a name"));
    let again: Value = serde_json::from_str(kept.reveal()).expect("JSON");
    let user = again["users"][0]["user"].as_object().expect("a user");
    let known = ["token", "client-certificate-data", "client-key-data"];
    assert!(user.keys().all(|key| known.contains(&key.as_str())), "more than credentials");
    assert_eq!(Access::read(&again).as_ref(), Ok(&access));
    if let Credentials::Token(token) = &access.credentials {
        counts(token.reveal());
    }
}

fn counts(token: &str) {
    let plain = |text: &str| Some(text.as_bytes().to_vec());
    let encoded = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    for claims in [TokenClaims::read(token, plain), TokenClaims::read(token, encoded)] {
        let Ok(TokenClaims { lifetime, .. }) = claims else { continue };
        assert!(HeaderValue::from_str(&format!("Bearer {token}")).is_ok());
        assert!(lifetime.issued <= lifetime.renew_at() && lifetime.renew_at() <= lifetime.expires);
    }
}
