//! Gives identities to other clusters.
