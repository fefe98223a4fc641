//! The certificate authority (CA) of the address service, and the certificates that it issues.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use tombolo_api::names::{
    IPAM_AUTHORITY_SECRET, IPAM_CLIENT_SECRET, IPAM_SERVER_SECRET, IPAM_SERVICE, NAMESPACE,
    ipam_host,
};
use tombolo_runtime::mutual_tls::{AUTHORITY, CERTIFICATE, Identity, KEY};
use x509_parser::parse_x509_certificate;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LIFE: Duration = DAY.saturating_mul(90);
const RENEW: Duration = DAY.saturating_mul(30);
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3650);
const AUTHORITY_RENEW: Duration = DAY.saturating_mul(365);
/// Certificates are valid from an hour ago, for clients whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// The use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// The CA.
pub(super) struct Authority {
    /// In PEM.
    certificate: String,
    key: KeyPair,
}

impl Authority {
    /// Reads the CA from a Secret. `None` if it is unusable.
    pub(super) fn from_secret(secret: &Secret) -> Option<Self> {
        let text = |key| {
            let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
            String::from_utf8(bytes.clone()).ok()
        };
        let authority =
            Self { certificate: text(CERTIFICATE)?, key: KeyPair::from_pem(&text(KEY)?).ok()? };
        let der = authority.der()?;
        let (_, read) = parse_x509_certificate(&der).ok()?;
        let is_its_key = read.public_key().raw == authority.key.subject_public_key_info();
        (is_its_key && read.is_ca()).then_some(authority)
    }

    /// Generates a new CA.
    pub(super) fn generate(now: Timestamp) -> Result<Self, rcgen::Error> {
        Self::with(KeyPair::generate()?, now)
    }

    /// Extends the validity. The key stays, so issued certificates stay valid.
    pub(super) fn renew(self, now: Timestamp) -> Result<Self, rcgen::Error> {
        Self::with(self.key, now)
    }

    /// Whether it has to be renewed.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let end = self.der().and_then(|der| {
            let (_, read) = parse_x509_certificate(&der).ok()?;
            Some(read.validity().not_after.timestamp())
        });
        end.is_none_or(|end| end - now.as_second() < AUTHORITY_RENEW.as_secs().cast_signed())
    }

    /// The Secret with the CA.
    pub(super) fn secret(&self) -> Secret {
        let key = self.key.serialize_pem();
        secret(IPAM_AUTHORITY_SECRET, [(CERTIFICATE, self.certificate.clone()), (KEY, key)])
    }

    /// Issues a certificate. Returns the Secret with it and its key.
    pub(super) fn issue(&self, role: Role, now: Timestamp) -> Result<Secret, rcgen::Error> {
        let (key, issuer) = (KeyPair::generate()?, self.issuer()?);
        let signed: Certificate = role.params(now)?.signed_by(&key, &issuer)?;
        let parts = [
            (CERTIFICATE, signed.pem()),
            (KEY, key.serialize_pem()),
            (AUTHORITY, self.certificate.clone()),
        ];
        Ok(secret(role.secret_name(), parts))
    }

    /// Whether a stored certificate was issued by this CA and is not due for renewal.
    pub(super) fn is_valid(&self, stored: &Secret, role: Role, now: Timestamp) -> bool {
        let data = stored.data.as_ref();
        let known = data.and_then(|data| data.get(AUTHORITY)).map(|ByteString(pem)| pem.as_slice());
        let (Ok(identity), Some(at)) = (Identity::of(stored), unix_time(now, RENEW)) else {
            return false;
        };
        known == Some(self.certificate.as_bytes())
            && match role {
                Role::Server => ServerName::try_from(ipam_host())
                    .is_ok_and(|name| identity.is_server(&name, at)),
                Role::Client => identity.is_client(at),
            }
    }

    fn with(key: KeyPair, now: Timestamp) -> Result<Self, rcgen::Error> {
        let mut params = params("liqo-ipam", now, AUTHORITY_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // A renewed certificate must have a new serial number. By default it is derived from the
        // key.
        params.serial_number = Some(SerialNumber::from(now.as_millisecond().unsigned_abs()));
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key })
    }

    fn issuer(&self) -> Result<Issuer<'_, &KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_pem(&self.certificate, &self.key)
    }

    fn der(&self) -> Option<CertificateDer<'static>> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()
    }
}

impl Role {
    pub(super) const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// The name of the Secret with the certificate.
    pub(super) fn secret_name(self) -> &'static str {
        match self {
            Self::Server => IPAM_SERVER_SECRET,
            Self::Client => IPAM_CLIENT_SECRET,
        }
    }

    fn params(self, now: Timestamp) -> Result<CertificateParams, rcgen::Error> {
        let mut params = params(self.secret_name(), now, LIFE);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        match self {
            Self::Server => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                let short = format!("{IPAM_SERVICE}.{NAMESPACE}");
                let names = [short.clone(), ipam_host(), format!("{short}.svc.cluster.local")];
                params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
            }
            Self::Client => params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
        Ok(params)
    }
}

fn params(name: &str, now: Timestamp, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let now =
        rcgen::date_time_ymd(1970, 1, 1) + now.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + life;
    params
}

fn unix_time(now: Timestamp, later: Duration) -> Option<UnixTime> {
    let now = u64::try_from(now.as_second()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(now) + later))
}

fn secret<const N: usize>(name: &str, parts: [(&str, String); N]) -> Secret {
    let data = parts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    let labels = [("app.kubernetes.io/part-of".to_owned(), "liqo".to_owned())];
    let mut secret = Secret {
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.into()),
        ..Secret::default()
    };
    secret.metadata.name = Some(name.into());
    secret.metadata.labels = Some(labels.into());
    secret
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn days(days: i64) -> SignedDuration {
        SignedDuration::from_hours(24 * days)
    }

    #[test]
    fn a_certificate_is_valid_until_it_is_due_for_renewal() {
        let now = Timestamp::now();
        let authority = Authority::generate(now).unwrap();
        for role in Role::ALL {
            let issued = authority.issue(role, now).unwrap();
            assert!(authority.is_valid(&issued, role, now), "{role:?}");
            assert!(authority.is_valid(&issued, role, now + days(59)), "{role:?}");
            assert!(!authority.is_valid(&issued, role, now + days(61)), "{role:?}");
        }
        let server = authority.issue(Role::Server, now).unwrap();
        assert!(
            !authority.is_valid(&server, Role::Client, now),
            "a server certificate is no client certificate"
        );
    }

    #[test]
    fn a_renewed_authority_accepts_earlier_certificates() {
        let now = Timestamp::now();
        let authority = Authority::generate(now).unwrap();
        assert!(!authority.is_due(now + days(3280)));
        assert!(authority.is_due(now + days(3290)));
        let client = authority.issue(Role::Client, now).unwrap();
        let stored =
            Authority::from_secret(&authority.secret()).expect("it can be stored and read");
        let renewed = stored.renew(now + days(3290)).unwrap();
        assert!(!renewed.is_due(now + days(3290)));
        // A peer that knows only the renewed CA accepts a certificate issued before the renewal.
        let mut mixed = client;
        let known = renewed.certificate.clone().into_bytes();
        mixed.data.as_mut().unwrap().insert(AUTHORITY.into(), ByteString(known));
        assert!(renewed.is_valid(&mixed, Role::Client, now));
        let other = Authority::generate(now).unwrap();
        let known = other.certificate.clone().into_bytes();
        mixed.data.as_mut().unwrap().insert(AUTHORITY.into(), ByteString(known));
        assert!(!other.is_valid(&mixed, Role::Client, now), "issued by another CA");
    }

    #[test]
    fn an_authority_whose_key_does_not_match_is_unusable() {
        let now = Timestamp::now();
        let mut secret = Authority::generate(now).unwrap().secret();
        let key = KeyPair::generate().unwrap().serialize_pem().into_bytes();
        secret.data.as_mut().unwrap().insert(KEY.into(), ByteString(key));
        assert!(Authority::from_secret(&secret).is_none());
    }
}
