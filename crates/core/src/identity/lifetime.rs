//! How long a token or a certificate counts, and when to get the next one.

use jiff::Timestamp;

/// The life of a token or a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
}

impl Lifetime {
    /// By seconds since 1970, if there are such times.
    pub fn of_seconds(issued: i64, expires: i64) -> Option<Self> {
        let at = |seconds| Timestamp::from_second(seconds).ok();
        Some(Self { issued: at(issued)?, expires: at(expires)? })
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
    }
}
