//! Offers resources to other clusters.
