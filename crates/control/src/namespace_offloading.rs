//! Namespaces that reach into other clusters.
