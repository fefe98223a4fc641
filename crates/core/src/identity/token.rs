//! What a service account's token says of itself: whose it is and how long it counts. It is only
//! read here, never believed: the API server that it is shown to checks it.

use jiff::Timestamp;
use serde::Deserialize;

/// The life of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// The ServiceAccount whose token it is.
    pub account: String,
}

/// A text that is no token of a service account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a service account's token with an expiry")]
pub struct NotAToken;

#[derive(Deserialize)]
struct Claims {
    iat: i64,
    exp: i64,
    sub: String,
}

impl Lifetime {
    /// Reads the claims of a token. `base64` decodes the URL-safe form without padding.
    pub fn read(token: &str, base64: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, NotAToken> {
        let payload = token.split('.').nth(1).and_then(base64).ok_or(NotAToken)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| NotAToken)?;
        let at = |seconds| Timestamp::from_second(seconds).map_err(|_| NotAToken);
        let account = claims.sub.rsplit(':').next().unwrap_or_default().to_owned();
        Ok(Self { issued: at(claims.iat)?, expires: at(claims.exp)?, account })
    }

    /// When to get a new one: after two thirds of its life.
    pub fn renew_at(&self) -> Timestamp {
        let seconds = self.expires.as_second() - self.issued.as_second();
        let at = self.issued.as_second() + seconds * 2 / 3;
        Timestamp::from_second(at).unwrap_or(self.expires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_two_thirds_of_its_life() {
        let claims =
            br#"{"iat":1000,"exp":4000,"sub":"system:serviceaccount:tenant:liqo-cluster"}"#;
        let lifetime =
            Lifetime::read("head.body.tail", |body| (body == "body").then(|| claims.to_vec()))
                .unwrap();
        assert_eq!(lifetime.renew_at().as_second(), 3000);
        assert_eq!(lifetime.account, "liqo-cluster");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let plain = |text: &str| Some(text.as_bytes().to_vec());
        for text in ["", "a", "a.b.c", r#"a.{"exp":1}.c"#] {
            assert_eq!(Lifetime::read(text, plain), Err(NotAToken), "{text:?}");
        }
        assert_eq!(Lifetime::read("a.b.c", |_| None), Err(NotAToken));
    }
}
