//! Keeps offloaded pods up.
