//! Makes the TunnelEndpoint of a peer.
