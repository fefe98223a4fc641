//! The two base64 alphabets of identities.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

/// Encodes for a kubeconfig.
pub(crate) fn standard(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes a field of a kubeconfig.
pub(crate) fn from_standard(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Decodes a part of a JWT.
pub(crate) fn url_safe(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
