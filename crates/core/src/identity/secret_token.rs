//! Reads the token of a Secret.

use k8s_openapi::api::core::v1::Secret;
use tombolo_api::{auth::Confidential, names::AUTH_TOKEN_KEY};

/// The token in a Secret, trimmed. `None` if it is blank or not UTF-8.
pub fn token_in(secret: &Secret) -> Option<Confidential> {
    let bytes = &secret.data.as_ref()?.get(AUTH_TOKEN_KEY)?.0;
    let text = std::str::from_utf8(bytes).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned().into())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_blank_token_is_none() {
        let secret = |bytes: &[u8]| Secret {
            data: Some([(AUTH_TOKEN_KEY.to_owned(), ByteString(bytes.to_vec()))].into()),
            ..Secret::default()
        };
        let token = Confidential::from("abc".to_owned());
        assert_eq!(token_in(&secret(b"abc")), Some(token.clone()));
        assert_eq!(token_in(&secret(b" abc\n")), Some(token));
        for none in [&b""[..], b" \t\n", b"\xff\xfe"] {
            assert_eq!(token_in(&secret(none)), None);
        }
        assert_eq!(token_in(&Secret::default()), None);
    }
}
