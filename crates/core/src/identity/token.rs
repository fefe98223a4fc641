//! What a service account's token says of itself: whose it is and how long it counts. It is only
//! read here, never believed: the API server that it is shown to checks it.

use serde::Deserialize;

use super::Lifetime;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// How long it counts.
    pub lifetime: Lifetime,
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

impl TokenClaims {
    /// Reads a token. `base64` decodes the URL-safe form without padding.
    pub fn read(token: &str, base64: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, NotAToken> {
        // It is to be shown in a header.
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotAToken);
        }
        let payload = token.split('.').nth(1).and_then(base64).ok_or(NotAToken)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| NotAToken)?;
        let account = claims.sub.rsplit(':').next().unwrap_or_default().to_owned();
        let lifetime = Lifetime::of_seconds(claims.iat, claims.exp).ok_or(NotAToken)?;
        Ok(Self { lifetime, account })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_whose_it_is_and_how_long_it_counts() {
        let claims =
            br#"{"iat":1000,"exp":4000,"sub":"system:serviceaccount:tenant:liqo-cluster"}"#;
        let decode = |body: &str| (body == "body").then(|| claims.to_vec());
        let claims = TokenClaims::read("head.body.tail", decode).unwrap();
        assert_eq!(claims.lifetime, Lifetime::of_seconds(1000, 4000).unwrap());
        assert_eq!(claims.account, "liqo-cluster");
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let plain = |text: &str| Some(text.as_bytes().to_vec());
        for text in ["", "a", "a.b.c", r#"a.{"exp":1}.c"#] {
            assert_eq!(TokenClaims::read(text, plain), Err(NotAToken), "{text:?}");
        }
        assert_eq!(TokenClaims::read("a.b.c", |_| None), Err(NotAToken));
        let claims = |_: &str| Some(br#"{"iat":1,"exp":2,"sub":"a"}"#.to_vec());
        assert!(TokenClaims::read("a.b.c", claims).is_ok());
        assert_eq!(TokenClaims::read("a.b.c\r\nHost: d", claims), Err(NotAToken));
    }
}
