//! How long a token or a certificate counts, and when to get the next one.

use jiff::{SignedDuration, Timestamp};
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

    /// Until when it is kept for a cluster that is not to be found any more since then. It may end
    /// much later: that is for the other cluster to say.
    pub fn kept_until(&self, forgotten: Timestamp) -> Timestamp {
        self.expires.min(forgotten.saturating_add(LONGEST_KEPT).unwrap_or(forgotten))
    }
}

/// As long as what we give to others counts.
const LONGEST_KEPT: SignedDuration = SignedDuration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_renewed_after_two_thirds_of_its_life() {
        let life = Lifetime::of_seconds(1000, 4000).unwrap();
        assert_eq!(life.renew_at().as_second(), 3000);
    }

    #[test]
    fn it_is_kept_as_long_as_it_counts_and_a_day_at_most() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (short, long) = (Lifetime::of_seconds(0, 4000), Lifetime::of_seconds(0, 1 << 37));
        assert_eq!(short.unwrap().kept_until(at(1000)), at(4000));
        assert_eq!(long.unwrap().kept_until(at(1000)), at(1000 + 24 * 3600));
        assert_eq!(long.unwrap().kept_until(Timestamp::MAX), at(1 << 37));
    }

    #[test]
    fn times_that_do_not_exist_are_refused() {
        assert_eq!(Lifetime::of_seconds(0, i64::MAX), None);
        assert_eq!(Lifetime::of_seconds(i64::MIN, 0), None);
        assert_eq!(Lifetime::of_seconds(1, 0), None);
        assert_eq!(Lifetime::of_certificate(b"none"), None);
    }
}
