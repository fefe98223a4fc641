//! Clients of other clusters.
