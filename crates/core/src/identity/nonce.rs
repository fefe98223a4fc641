//! Nonces: what proves to a peer that two requests come from the same cluster. A cluster's nonce
//! for a peer never changes, so it can always ask again, and no peer can guess the others' one.

use sha2::{Digest, Sha256};
use tombolo_api::{ClusterId, auth::Confidential};

/// The nonce for a peer, made of a key that never leaves this cluster.
pub fn nonce(key: &[u8], peer: &ClusterId) -> Confidential {
    let digest = |parts: [&[u8]; 2]| {
        let mut hasher = Sha256::new();
        parts.iter().for_each(|part| hasher.update(part));
        hasher.finalize()
    };
    // Twice, as in HMAC: a hash of what starts with a secret can be continued by who has seen it.
    hex(&digest([key, &digest([key, peer.as_str().as_bytes()])])).into()
}

/// What is kept of a peer's nonce.
pub fn hash(nonce: &Confidential) -> String {
    hex(&Sha256::digest(nonce.reveal().as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_by_peer_and_by_key_and_by_nothing_else() {
        let (rome, milan) = ("rome".parse().unwrap(), "milan".parse().unwrap());
        assert_eq!(nonce(b"key", &rome), nonce(b"key", &rome));
        assert_ne!(nonce(b"key", &rome), nonce(b"key", &milan));
        assert_ne!(nonce(b"key", &rome), nonce(b"other", &rome));
        assert_eq!(nonce(b"key", &rome).reveal().len(), 64);
    }

    #[test]
    fn the_hash_is_not_the_nonce() {
        let nonce = nonce(b"key", &"rome".parse().unwrap());
        assert_ne!(hash(&nonce), nonce.reveal());
        assert_eq!(
            hash(&"abc".to_owned().into()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
