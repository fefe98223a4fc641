//! Certificate fingerprints, for pinning.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::schema;

/// The SHA-256 fingerprint of a DER certificate. Parsed with or without colons, in either case, as
/// printed by `openssl x509 -fingerprint -sha256` and browsers; displayed in lower case without
/// colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub [u8; 32]);

/// An invalid [`Fingerprint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons")]
pub struct NotAFingerprint(String);

impl FromStr for Fingerprint {
    type Err = NotAFingerprint;

    fn from_str(text: &str) -> Result<Self, NotAFingerprint> {
        let pairs: Option<Vec<&[u8]>> = match text.len() {
            64 => Some(text.as_bytes().chunks(2).collect()),
            95 => {
                let pairs: Vec<_> = text.as_bytes().split(|b| *b == b':').collect();
                pairs.iter().all(|pair| pair.len() == 2).then_some(pairs)
            }
            _ => None,
        };
        pairs
            .and_then(|pairs| pairs.into_iter().map(byte).collect::<Option<Vec<u8>>>())
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| NotAFingerprint(text.to_owned()))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NotAFingerprint;

    fn try_from(text: String) -> Result<Self, NotAFingerprint> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

schema::checked_by!(Fingerprint, schema::fingerprint);

fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |b: u8| char::from(b).to_digit(16);
    let value = digit(pair[0])? * 16 + digit(pair[1])?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colons_and_case_do_not_matter() {
        let plain = "0f".repeat(32);
        let openssl = vec!["0F"; 32].join(":");
        assert_eq!(plain.parse(), openssl.parse::<Fingerprint>());
        assert_eq!(plain.parse::<Fingerprint>().unwrap().to_string(), plain);
    }

    #[test]
    fn anything_else_is_refused() {
        let misplaced = format!("{}:", vec!["0F"; 31].join(":"));
        for bad in ["", "0f", &"0g".repeat(32), &"0".repeat(95), &misplaced] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad:?} was taken");
        }
        assert!("é".repeat(32).parse::<Fingerprint>().is_err());
    }
}
