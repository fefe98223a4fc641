//! Copies of custom resources in another cluster.
