//! The private key of our certificate for another cluster: made here, stored here, never sent.

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tombolo_api::auth::Confidential;
use tombolo_core::identity::{Lifetime, ORGANISATION, Subject};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::identity::base64;

/// A key that can't be generated or used.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("can't {0} the private key of the certificate for another cluster")]
pub(super) struct BadKey(&'static str);

/// A certificate that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadCertificate(&'static str);

/// A new key, in PEM.
pub(super) fn make() -> Result<Confidential, BadKey> {
    Ok(KeyPair::generate().map_err(|_| BadKey("generate"))?.serialize_pem().into())
}

/// A signing request for `subject`, in PEM.
pub(super) fn signing_request(key: &Confidential, subject: &Subject) -> Result<String, BadKey> {
    let key = KeyPair::from_pem(key.reveal()).map_err(|_| BadKey("read"))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANISATION);
    params.distinguished_name.push(DnType::CommonName, subject.to_string());
    let request = params.serialize_request(&key).map_err(|_| BadKey("sign with"))?;
    request.pem().map_err(|_| BadKey("sign with"))
}

/// Lifetime of a certificate, in base64 of PEM.
pub(super) fn lifetime(certificate: &str) -> Result<Lifetime, BadCertificate> {
    let life = Lifetime::of_certificate(&der(certificate)?);
    life.ok_or(BadCertificate("not a certificate with an expiry"))
}

/// Checks that a certificate is for this key.
pub(super) fn matches(certificate: &str, key: &Confidential) -> Result<(), BadCertificate> {
    let other = BadCertificate("the certificate is for another key");
    let key = KeyPair::from_pem(key.reveal()).map_err(|_| other)?;
    let der = der(certificate)?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| NOT_A_CERTIFICATE)?;
    let same = certificate.public_key().raw == key.subject_public_key_info();
    if same { Ok(()) } else { Err(other) }
}

const NOT_A_CERTIFICATE: BadCertificate = BadCertificate("not a certificate");

fn der(certificate: &str) -> Result<CertificateDer<'static>, BadCertificate> {
    let pem = base64::from_standard(certificate).ok_or(NOT_A_CERTIFICATE)?;
    CertificateDer::from_pem_slice(&pem).map_err(|_| NOT_A_CERTIFICATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_matches_only_its_own_key() {
        let (ours, others) = (make().unwrap(), make().unwrap());
        let key = KeyPair::from_pem(ours.reveal()).unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap().pem();
        let certificate = base64::standard(certificate.as_bytes());
        assert_eq!(matches(&certificate, &ours), Ok(()));
        assert!(matches(&certificate, &others).is_err());
        let life = lifetime(&certificate).unwrap();
        assert!(life.issued < life.renew_at() && life.renew_at() < life.expires);
        assert!(lifetime("").is_err() && lifetime("UEVN").is_err());
    }
}
