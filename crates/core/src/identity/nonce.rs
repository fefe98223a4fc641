//! Nonces prove to a peer that two requests come from the same cluster. The nonce for a peer and
//! its certificate never changes, so a request can always be repeated, and no peer can guess the
//! nonce for another one. A server that pretends to be a peer presents another certificate, and
//! learns no nonce that the real peer accepts.

use tombolo_api::{ClusterId, Fingerprint, auth::Confidential};

use crate::digest::{hex, sha256};

/// The nonce for a peer with this certificate, derived from a key that never leaves this cluster.
pub fn nonce(key: &[u8], peer: &ClusterId, shown: Fingerprint) -> Confidential {
    // Two passes, as in HMAC: a plain hash of key and data allows length extension.
    let inner = sha256(&[key, peer.as_str().as_bytes(), &shown.0]);
    hex(&sha256(&[key, &inner])).into()
}

/// The hash of a peer's nonce, which is stored in its place.
pub fn hash(nonce: &Confidential) -> String {
    hex(&sha256(&[nonce.reveal().as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_depend_on_peer_certificate_and_key() {
        let (rome, milan) = ("rome".parse().unwrap(), "milan".parse().unwrap());
        let (shown, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let usual = nonce(b"key", &rome, shown);
        assert_eq!(nonce(b"key", &rome, shown), usual);
        assert_ne!(nonce(b"key", &milan, shown), usual);
        assert_ne!(nonce(b"key", &rome, other), usual, "an impostor would learn it");
        assert_ne!(nonce(b"other", &rome, shown), usual);
        assert_eq!(usual.reveal().len(), 64);
    }

    #[test]
    fn the_hash_is_not_the_nonce() {
        let nonce = nonce(b"key", &"rome".parse().unwrap(), Fingerprint([1; 32]));
        assert_ne!(hash(&nonce), nonce.reveal());
        assert_eq!(
            hash(&"abc".to_owned().into()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
