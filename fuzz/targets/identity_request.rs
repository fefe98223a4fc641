//! Bodies of requests to the auth service, and the records created from them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_api::{
    ClusterIdentity,
    auth::{IdentityRelease, IdentityRequest},
};
use tombolo_core::identity::{Admission, Record, admit, hash, name_or_id, tenant_namespaces};
use tombolo_fuzz::{is_identity, is_label};

fuzz_target!(|body: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<IdentityRequest>(body) {
        is_recorded(&request);
    }
    if let Ok(release) = serde_json::from_slice::<IdentityRelease>(body) {
        assert!(is_label(release.cluster_id.as_str(), 63));
        assert_eq!(hash(&release.nonce).len(), 64);
    }
});

fn is_recorded(request: &IdentityRequest) {
    let cluster_name = name_or_id(request.cluster_name.as_ref(), &request.cluster_id);
    let peer = ClusterIdentity { cluster_id: request.cluster_id.clone(), cluster_name };
    is_identity(&peer);
    for name in tenant_namespaces(&peer) {
        assert!(is_label(&name, 63), "{name:?}");
    }

    let record = Record::of(request, "1".to_owned());
    let secret = record.to_secret();
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    assert!(is_label(name, 253), "{name:?}");
    let data = secret.data.as_ref().expect("data");
    let bytes: usize = data.values().map(|value| value.0.len()).sum();
    assert!(bytes < 64 * 1024, "{bytes} bytes in a Secret");
    assert!(record.is_open());
    assert_eq!(Record::read(&secret).as_ref(), Ok(&record));

    // Only a request with the same nonce gets the identity again.
    let again = Record::of(request, "2".to_owned());
    let expected = if request.nonce.is_some() { Admission::Again } else { Admission::Taken };
    assert_eq!(admit(Some(&record), &again), expected);
    assert_eq!(admit(None, &record), Admission::New);

    let left = record.without_secrets().to_secret().data.expect("data");
    assert!(!left.contains_key("returnToken") && !left.contains_key("kubeconfig"));
    let shown = format!("{request:?}");
    for secret in [Some(&request.token), request.nonce.as_ref(), request.return_token.as_ref()] {
        // A short secret may also occur as part of another field.
        let text = secret.map_or("", |secret| secret.reveal());
        assert!(text.len() < 16 || body_says(request, text) || !shown.contains(text));
    }
}

/// Whether a field that is not secret contains the same text.
fn body_says(request: &IdentityRequest, text: &str) -> bool {
    let plain =
        (&request.cluster_id, &request.cluster_name, &request.auth_url, &request.signing_request);
    format!("{plain:?}").contains(text)
}
