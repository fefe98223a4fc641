//! `tombolo discovery`: finds other clusters in the local network, by mDNS, and is found by them.
