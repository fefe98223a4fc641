//! Strict checks of the signing requests of other clusters: a certificate for the wrong name gives
//! away this cluster.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use x509_parser::{
    certification_request::X509CertificationRequest,
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    prelude::FromDer,
    public_key::PublicKey,
    x509::X509Name,
};

use super::{ORGANISATION, Subject};

/// A signing request that is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signing request is rejected: {0}")]
pub struct InvalidSigningRequest(&'static str);

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// The subject of a valid request: one request, signed with its own key, for a [`Subject`] and
/// nothing else. `is_signed` verifies the signature of a request in DER.
pub fn requested(
    pem: &str,
    is_signed: impl FnOnce(&[u8]) -> bool,
) -> Result<Subject, InvalidSigningRequest> {
    let framed = pem.trim().strip_prefix(BEGIN).and_then(|text| text.strip_suffix(END));
    let body = framed
        .filter(|text| !text.contains('-') && text.starts_with(['\r', '\n']))
        .ok_or(InvalidSigningRequest("it is not exactly one CERTIFICATE REQUEST in PEM"))?;
    // Stricter than PEM parsers, which skip lines and characters that are not base64.
    let body: String = body.split_ascii_whitespace().collect();
    let der = BASE64_STANDARD.decode(body).map_err(|_| InvalidSigningRequest("it is not PEM"))?;
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|_| InvalidSigningRequest("it is not a PKCS#10 request"))?;
    if !rest.is_empty() {
        return Err(InvalidSigningRequest("there is data after the request"));
    }
    if !is_signed(&der) {
        return Err(InvalidSigningRequest("it is not signed with its own key"));
    }
    // The bytes around the signed part are not signed, and parsed less strictly.
    if as_der(&request) != der {
        return Err(InvalidSigningRequest("it is not in canonical DER"));
    }
    let info = &request.certification_request_info;
    if !info.attributes().is_empty() {
        return Err(InvalidSigningRequest("it requests other names or extensions"));
    }
    if !is_supported(
        &info.subject_pki.parsed().map_err(|_| InvalidSigningRequest("it has no valid key"))?,
    ) {
        return Err(InvalidSigningRequest(
            "the key is neither P-256, P-384 nor RSA of at least 2048 bits",
        ));
    }
    named(&info.subject)
        .ok_or(InvalidSigningRequest("it is not for O=liqo.io, CN=liqo:<id>:<generation>"))
}

/// The request in canonical DER.
fn as_der(request: &X509CertificationRequest<'_>) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    let algorithm = &request.signature_algorithm;
    let no_parameters: &[u8] = if algorithm.parameters.is_some() { &[0x05, 0] } else { &[] };
    let name = element(0x06, &[algorithm.algorithm.as_bytes()]);
    let algorithm = element(SEQUENCE, &[&name, no_parameters]);
    let signature = element(0x03, &[&[0], &request.signature_value.data]);
    element(SEQUENCE, &[request.certification_request_info.raw, &algorithm, &signature])
}

fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let length = match content.len() {
        0..0x80 => vec![length[length.len() - 1]],
        _ => [&[0x80 + (length.len() - zeros) as u8], &length[zeros..]].concat(),
    };
    [&[tag], &*length, &content].concat()
}

fn is_supported(key: &PublicKey<'_>) -> bool {
    match key {
        PublicKey::EC(point) => [256, 384].contains(&point.key_size()),
        PublicKey::RSA(key) => (2048..=8192).contains(&key.key_size()),
        _ => false,
    }
}

fn named(name: &X509Name<'_>) -> Option<Subject> {
    let (mut common_name, mut organisation) = (None, None);
    for part in name.iter_rdn() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else { return None };
        let value = attribute.as_str().ok()?;
        let kind = attribute.attr_type();
        let before = if *kind == OID_X509_COMMON_NAME {
            common_name.replace(value)
        } else if *kind == OID_X509_ORGANIZATION_NAME {
            organisation.replace(value)
        } else {
            return None;
        };
        if before.is_some() {
            return None;
        }
    }
    (organisation? == ORGANISATION).then_some(())?;
    common_name?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For O=liqo.io, CN=liqo:rome:7d2c, with a P-256 key.
    const GOOD: &str = include_str!("../../../../fuzz/corpus/signing_request/good.pem");

    #[test]
    fn a_signed_request_is_accepted() {
        let subject = requested(GOOD, |_| true).unwrap();
        assert_eq!(subject.to_string(), "liqo:rome:7d2c");
        let unsigned = InvalidSigningRequest("it is not signed with its own key");
        assert_eq!(requested(GOOD, |_| false), Err(unsigned));
    }

    #[test]
    fn text_before_or_after_the_request_is_rejected() {
        for text in [
            "",
            "PEM",
            &GOOD.replace("REQUEST", "X"),
            &format!("{GOOD}{GOOD}"),
            &format!("a\n{GOOD}"),
            &format!("{GOOD}a"),
            &GOOD.replacen("-----\n", "-----a\n", 1),
        ] {
            assert!(requested(text, |_| true).is_err(), "{text}");
        }
        assert!(requested(&format!("\n{GOOD}\n\n"), |_| true).is_ok());
    }
}
