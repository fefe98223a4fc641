//! Copies custom resources to other clusters.
