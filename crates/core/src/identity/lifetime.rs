//! Lifetime of a token or a certificate, and when to renew it.

use jiff::{SignedDuration, Timestamp};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Lifetime of a token or a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

impl Lifetime {
    /// From Unix times. `None` if they are out of range or in the wrong order.
    pub fn of_seconds(issued: i64, expires: i64) -> Option<Self> {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        let life = Self { issued: at(issued)?, expires: at(expires)? };
        (life.issued <= life.expires).then_some(life)
    }

    /// Lifetime of a certificate in DER.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        Self::of_seconds(validity.not_before.timestamp(), validity.not_after.timestamp())
    }

    /// When to renew: after two thirds of the lifetime.
    pub fn renew_at(&self) -> Timestamp {
        let seconds = self.expires.as_second().saturating_sub(self.issued.as_second());
        let at = self.issued.as_second() + seconds / 3 * 2;
        Timestamp::from_second(at).unwrap_or(self.expires)
    }

    /// Until when to retain it for a cluster that is no longer discovered: until it expires, at
    /// most for a day. The other cluster chooses the expiry.
    pub fn retained_until(&self, forgotten: Timestamp) -> Timestamp {
        self.expires.min(forgotten.saturating_add(MAX_RETENTION).unwrap_or(forgotten))
    }
}

/// Lifetime of the identities that this cluster issues.
const MAX_RETENTION: SignedDuration = SignedDuration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_renewed_after_two_thirds_of_its_lifetime() {
        let life = Lifetime::of_seconds(1000, 4000).unwrap();
        assert_eq!(life.renew_at().as_second(), 3000);
    }

    #[test]
    fn an_identity_is_retained_until_it_expires_and_for_a_day_at_most() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (short, long) = (Lifetime::of_seconds(0, 4000), Lifetime::of_seconds(0, 1 << 37));
        assert_eq!(short.unwrap().retained_until(at(1000)), at(4000));
        assert_eq!(long.unwrap().retained_until(at(1000)), at(1000 + 24 * 3600));
        assert_eq!(long.unwrap().retained_until(Timestamp::MAX), at(1 << 37));
    }

    #[test]
    fn invalid_times_are_rejected() {
        assert_eq!(Lifetime::of_seconds(0, i64::MAX), None);
        assert_eq!(Lifetime::of_seconds(i64::MIN, 0), None);
        assert_eq!(Lifetime::of_seconds(1, 0), None);
        assert_eq!(Lifetime::of_certificate(b"none"), None);
    }
}
