//! How long a token or a certificate counts, and when to get the next one.

use jiff::Timestamp;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// The life of a token or a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

impl Lifetime {
    /// By seconds since 1970, if there are such times, in this order.
    pub fn of_seconds(issued: i64, expires: i64) -> Option<Self> {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        let life = Self { issued: at(issued)?, expires: at(expires)? };
        (life.issued <= life.expires).then_some(life)
    }

    /// Of a certificate, in DER, if it is one.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        Self::of_seconds(validity.not_before.timestamp(), validity.not_after.timestamp())
    }

    /// When to get a new one: after two thirds of its life.
    pub fn renew_at(&self) -> Timestamp {
        let seconds = self.expires.as_second().saturating_sub(self.issued.as_second());
        let at = self.issued.as_second() + seconds / 3 * 2;
        Timestamp::from_second(at).unwrap_or(self.expires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_renewed_after_two_thirds_of_its_life() {
        let life = Lifetime::of_seconds(1000, 4000).unwrap();
        assert_eq!(life.renew_at().as_second(), 3000);
    }

    #[test]
    fn times_that_do_not_exist_are_refused() {
        assert_eq!(Lifetime::of_seconds(0, i64::MAX), None);
        assert_eq!(Lifetime::of_seconds(i64::MIN, 0), None);
        assert_eq!(Lifetime::of_seconds(1, 0), None);
        assert_eq!(Lifetime::of_certificate(b"none"), None);
    }
}
