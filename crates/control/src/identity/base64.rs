//! The two kinds of base64 that identities need.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

/// As in a kubeconfig.
pub(crate) fn standard(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// What is in a kubeconfig.
pub(crate) fn from_standard(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// As in a token.
pub(crate) fn url_safe(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
