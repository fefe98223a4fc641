//! The claims of a ServiceAccount token. They are only read here, not verified: the API server that
//! it is for does that.

use serde::Deserialize;

use super::Lifetime;

/// Claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// Lifetime of the token.
    pub lifetime: Lifetime,
    /// Name of the ServiceAccount.
    pub account: String,
}

/// A text that is not a ServiceAccount token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a ServiceAccount token with an expiry")]
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
        // It is sent in an HTTP header.
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
    fn a_token_has_an_account_and_a_lifetime() {
        let claims =
            br#"{"iat":1000,"exp":4000,"sub":"system:serviceaccount:tenant:liqo-cluster"}"#;
        let decode = |body: &str| (body == "body").then(|| claims.to_vec());
        let claims = TokenClaims::read("head.body.tail", decode).unwrap();
        assert_eq!(claims.lifetime, Lifetime::of_seconds(1000, 4000).unwrap());
        assert_eq!(claims.account, "liqo-cluster");
    }

    #[test]
    fn invalid_tokens_are_rejected() {
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
