//! Finds other clusters of the local network, and announces this one.
