//! The client of this cluster.
