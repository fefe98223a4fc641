//! SHA-256 digests in hexadecimal.

use sha2::{Digest as _, Sha256};

/// The SHA-256 of the concatenated parts.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first `bytes` bytes of the SHA-256, in hexadecimal.
pub fn short(content: impl AsRef<[u8]>, bytes: usize) -> String {
    hex(&sha256(&[content.as_ref()])[..bytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_hashed_as_one() {
        let whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(&[b"a", b"bc"])), whole);
        assert_eq!(short("abc", 4), whole[..8]);
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }
}
