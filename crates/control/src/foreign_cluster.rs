//! Learns who a cluster is, and gets an identity there.
