//! Tunnels and address translation.
