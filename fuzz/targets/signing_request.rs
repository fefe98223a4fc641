//! Signing requests, in PEM and in DER. The signature check is replaced by one that always
//! succeeds, because random input would never pass it. Other tests cover the real check.
#![no_main]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use libfuzzer_sys::fuzz_target;
use tombolo_core::identity::{ORGANISATION, Subject, requested};
use tombolo_fuzz::is_label;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        check(text);
    }
    let text = pem(data);
    if check(&text) {
        let holds = |part: &str| data.windows(part.len()).any(|bytes| bytes == part.as_bytes());
        assert!(holds(ORGANISATION) && holds("liqo:"));
        let longer = [data, b"\0"].concat();
        assert!(requested(&pem(&longer), |_| true).is_err(), "something follows");
    }
});

fn pem(der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
}

fn check(text: &str) -> bool {
    assert!(requested(text, |_| false).is_err(), "accepted without a valid signature");
    let mut signed = None;
    let Ok(subject) = requested(text, |der| {
        signed = Some(der.to_vec());
        true
    }) else {
        return false;
    };
    // The signature check saw exactly the bytes of the request.
    let said = text.trim().trim_start_matches("-----BEGIN CERTIFICATE REQUEST-----");
    let said = said.trim_end_matches("-----END CERTIFICATE REQUEST-----");
    let said: String = said.split_ascii_whitespace().collect();
    assert_eq!(STANDARD.decode(said).ok(), signed);
    assert!(is_label(subject.cluster_id.as_str(), 63));
    assert_eq!(subject.to_string().parse::<Subject>(), Ok(subject));
    true
}
