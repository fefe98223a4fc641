//! Checks signing requests of other clusters, including their signatures.

use rcgen::CertificateSigningRequestParams;
use tombolo_core::identity::{InvalidSigningRequest, Subject, requested};

/// The subject of a valid request.
pub(super) fn check(pem: &str) -> Result<Subject, InvalidSigningRequest> {
    requested(pem, |der| CertificateSigningRequestParams::from_der(&der.into()).is_ok())
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DnType, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
    };
    use x509_parser::pem::parse_x509_pem;

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
    fn a_request_for_a_cluster_is_accepted() {
        assert_eq!(check(&pem(&good())).unwrap().to_string(), "liqo:rome:7d2c");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let request = good().serialize_request(&key).unwrap().pem().unwrap();
        assert!(check(&request).is_ok());
    }

    #[test]
    fn a_request_for_another_subject_is_rejected() {
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
    fn a_corrupt_request_is_rejected() {
        let good = pem(&good());
        let junk = good.replacen("\n", "\n\u{b}\n", 1);
        for text in ["", "PEM", &good.replace("REQUEST", "X"), &format!("{good}{good}"), &junk] {
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
    fn requests_of_other_implementations_are_accepted() {
        let rsa = include_str!("signing_request/rsa.pem");
        let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let p384 = good().serialize_request(&p384).unwrap().pem().unwrap();
        for text in [rsa, &p384, &pem(&good())] {
            assert_eq!(check(text).map(|subject| subject.to_string()), Ok("liqo:rome:7d2c".into()));
        }
    }
}
