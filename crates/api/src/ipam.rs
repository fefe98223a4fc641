//! The messages of `proto/ipam.proto` and, with the feature `grpc`, its client and server.

// Written by prost and tonic: their style is theirs.
#![allow(clippy::all, clippy::pedantic, missing_debug_implementations)]

include!(concat!(env!("OUT_DIR"), "/_.rs"));

/// How many requests a batch may have.
pub const MAX_BATCH: usize = 10_000;

/// `proto/ipam.proto` as a FileDescriptorSet, for those that ask a server what it serves.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ipam.descriptors"));

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn fields_have_the_numbers_that_clients_know() {
        let request = GetRemotePodIpRequest { cluster_id: "a".into(), ip: "b".into() };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01a\x12\x01b");
        let response = GetRemotePodIpResponse { remote_ip: "c".into() };
        assert_eq!(response.encode_to_vec(), b"\x0a\x01c");
    }

    #[cfg(feature = "grpc")]
    #[test]
    fn the_service_is_in_no_package() {
        assert_eq!(ipam_server::SERVICE_NAME, "ipam");
    }
}
