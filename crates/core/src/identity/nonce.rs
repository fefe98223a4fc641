//! Nonces: what proves to a peer that two requests come from the same cluster. A cluster's nonce
//! for a peer with a certificate never changes, so it can always ask again, and no peer can guess the
//! others' one. Who only says that it is a peer shows another certificate, and learns nothing that
//! counts at the real one.

use tombolo_api::{ClusterId, Fingerprint, auth::Confidential};

use crate::digest::{hex, sha256};

/// The nonce for a peer that shows this certificate, made of a key that never leaves this cluster.
pub fn nonce(key: &[u8], peer: &ClusterId, shown: Fingerprint) -> Confidential {
    // Twice, as in HMAC: a hash of what starts with a secret can be continued by who has seen it.
    let inner = sha256(&[key, peer.as_str().as_bytes(), &shown.0]);
    hex(&sha256(&[key, &inner])).into()
}

/// What is kept of a peer's nonce.
pub fn hash(nonce: &Confidential) -> String {
    hex(&sha256(&[nonce.reveal().as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_by_peer_and_certificate_and_key_and_by_nothing_else() {
        let (rome, milan) = ("rome".parse().unwrap(), "milan".parse().unwrap());
        let (shown, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let usual = nonce(b"key", &rome, shown);
        assert_eq!(nonce(b"key", &rome, shown), usual);
        assert_ne!(nonce(b"key", &milan, shown), usual);
        assert_ne!(nonce(b"key", &rome, other), usual, "a stranger would know it");
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
