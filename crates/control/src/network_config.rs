//! Exchanges what clusters need to know of their networks.
