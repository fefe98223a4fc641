//! A certificate and its private key from a Secret of type `kubernetes.io/tls`.

use k8s_openapi::api::core::v1::Secret;
use rustls::{
    Error, InconsistentKeys,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const PRIVATE_KEY: &str = "tls.key";

/// The certificate with its key, or what is wrong. Details of a key are never part of the error.
pub(crate) fn read(secret: &Secret) -> Result<CertifiedKey, String> {
    let chain = CertificateDer::pem_slice_iter(part(secret, CERTIFICATE)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("{CERTIFICATE}: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(part(secret, PRIVATE_KEY)?)
        .map_err(|_| format!("{PRIVATE_KEY} is not a private key in PEM"))?;
    let key = aws_lc_rs::default_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| format!("{PRIVATE_KEY} has an unsupported key type"))?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(Error::InconsistentKeys(_)) => {
            Err(format!("{PRIVATE_KEY} is not the key of {CERTIFICATE}"))
        }
        Err(error) => Err(format!("{CERTIFICATE}: {error}")),
    }
}

fn part<'a>(secret: &'a Secret, key: &str) -> Result<&'a [u8], String> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let bytes = bytes.map(|bytes| bytes.0.as_slice()).filter(|bytes| !bytes.is_empty());
    bytes.ok_or_else(|| format!("the Secret has no {key}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use rcgen::generate_simple_self_signed;

    use super::*;

    fn made() -> (String, String) {
        let made = generate_simple_self_signed(vec!["milan".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn wrong(certificate: &str, key: &str) -> String {
        let data = [(CERTIFICATE, certificate), (PRIVATE_KEY, key)];
        let data = data.map(|(name, pem)| (name.to_owned(), ByteString(pem.as_bytes().to_vec())));
        let read = read(&Secret { data: Some(data.into()), ..Secret::default() });
        read.err().unwrap_or_default()
    }

    #[test]
    fn a_certificate_needs_its_own_key() {
        let ((first, key), (second, other)) = (made(), made());
        assert_eq!(wrong(&first, &key), "");
        // The first certificate of a chain is the server's.
        assert_eq!(wrong(&format!("{first}{second}"), &key), "");
        assert_eq!(wrong(&format!("{second}{first}"), &key), wrong(&first, &other));
        assert_eq!(wrong(&first, &other), "tls.key is not the key of tls.crt");
    }

    #[test]
    fn missing_or_invalid_parts_are_named() {
        let (certificate, key) = made();
        assert_eq!(wrong("", &key), "the Secret has no tls.crt");
        assert_eq!(wrong(&certificate, ""), "the Secret has no tls.key");
        assert_eq!(wrong(&certificate, "s3cret"), "tls.key is not a private key in PEM");
        assert_eq!(wrong(&certificate, &certificate), "tls.key is not a private key in PEM");
        for certificate in ["none", key.as_str(), "-----BEGIN CERTIFICATE-----\nAAAA\n"] {
            let why = wrong(certificate, &key);
            assert!(why.starts_with("tls.crt: "), "{why}");
        }
    }
}
