//! What other clusters ask to have signed, checked to the last bit: who approves a certificate for
//! the wrong name has given away the cluster.

use rcgen::CertificateSigningRequestParams;
use tombolo_core::identity::{ORGANISATION, Subject};
use x509_parser::{
    certification_request::X509CertificationRequest,
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    pem::parse_x509_pem,
    prelude::FromDer,
    public_key::PublicKey,
    x509::X509Name,
};

/// A signing request that nobody signs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signing request can't be taken: {0}")]
pub(crate) struct Unacceptable(&'static str);

/// Whom the request is for, if there is nothing wrong with it: one certificate, signed with its own
/// key, for a [`Subject`] and nothing else.
pub(super) fn check(pem: &str) -> Result<Subject, Unacceptable> {
    let (rest, block) = parse_x509_pem(pem.as_bytes()).map_err(|_| Unacceptable("no PEM"))?;
    if block.label != "CERTIFICATE REQUEST" || !rest.trim_ascii().is_empty() {
        return Err(Unacceptable("not one CERTIFICATE REQUEST and nothing else"));
    }
    let (rest, request) = X509CertificationRequest::from_der(&block.contents)
        .map_err(|_| Unacceptable("no signing request"))?;
    if !rest.is_empty() {
        return Err(Unacceptable("something follows it"));
    }
    let der = block.contents.as_slice().into();
    CertificateSigningRequestParams::from_der(&der)
        .map_err(|_| Unacceptable("the signature is not by its key"))?;
    let info = &request.certification_request_info;
    // What is around the signed part is nobody's signature, and is read less strictly.
    if as_der(&request) != block.contents {
        return Err(Unacceptable("it is not in the one form that DER has for it"));
    }
    if !info.attributes().is_empty() {
        return Err(Unacceptable("it asks for other names or extensions"));
    }
    if !is_sane(&info.subject_pki.parsed().map_err(|_| Unacceptable("no key"))?) {
        return Err(Unacceptable("the key is neither P-256, P-384 nor RSA of at least 2048 bits"));
    }
    named(&info.subject).ok_or(Unacceptable("it is not for O=liqo.io, CN=liqo:<id>:<generation>"))
}

/// The request as it has to be written.
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

fn is_sane(key: &PublicKey<'_>) -> bool {
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
    use rcgen::{
        CertificateParams, DnType, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
    };

    use super::*;

    fn params(parts: &[(DnType, &str)]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params
    }

    fn good() -> CertificateParams {
        let name = "liqo:rome:7d2c";
        params(&[(DnType::OrganizationName, "liqo.io"), (DnType::CommonName, name)])
    }

    fn pem(params: &CertificateParams) -> String {
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    #[test]
    fn a_request_for_a_cluster_is_taken() {
        assert_eq!(check(&pem(&good())).unwrap().to_string(), "liqo:rome:7d2c");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let request = good().serialize_request(&key).unwrap().pem().unwrap();
        assert!(check(&request).is_ok());
    }

    #[test]
    fn a_request_for_anybody_or_anything_else_is_not() {
        use DnType::{CommonName as Cn, CountryName as C, OrganizationName as O};
        for parts in [
            vec![(Cn, "liqo:rome:7d2c")],
            vec![(O, "liqo.io")],
            vec![(O, "system:masters"), (Cn, "liqo:rome:7d2c")],
            vec![(O, "liqo.io"), (Cn, "kubernetes-admin")],
            vec![(O, "liqo.io"), (Cn, "system:serviceaccount:liqo:liqo-control")],
            vec![(O, "liqo.io"), (Cn, "liqo:rome:7d2c"), (C, "IT")],
        ] {
            assert!(check(&pem(&params(&parts))).is_err(), "{parts:?}");
        }
        let mut more = good();
        more.subject_alt_names = vec![SanType::DnsName("rome".try_into().unwrap())];
        assert!(check(&pem(&more)).is_err());
        let mut more = good();
        more.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        assert!(check(&pem(&more)).is_err());
        let odd = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        assert!(check(&good().serialize_request(&odd).unwrap().pem().unwrap()).is_err());
    }

    #[test]
    fn what_is_garbled_is_not_taken() {
        let good = pem(&good());
        for text in ["", "PEM", &good.replace("REQUEST", "X"), &format!("{good}{good}")] {
            assert!(check(text).is_err(), "{text}");
        }
        let der = parse_x509_pem(good.as_bytes()).unwrap().1.contents;
        for place in 0..der.len() {
            for bit in 0..8 {
                let mut bad = der.clone();
                bad[place] ^= 1 << bit;
                let text = crate::identity::base64::standard(&bad);
                let text = format!(
                    "-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n"
                );
                assert!(check(&text).is_err(), "bit {bit} of byte {place}");
            }
        }
    }

    #[test]
    fn a_request_is_written_as_others_write_it() {
        let rsa = include_str!("signing_request/rsa.pem");
        let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let p384 = good().serialize_request(&p384).unwrap().pem().unwrap();
        for text in [rsa, &p384, &pem(&good())] {
            assert_eq!(check(text).map(|subject| subject.to_string()), Ok("liqo:rome:7d2c".into()));
        }
    }
}
