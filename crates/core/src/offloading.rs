//! How namespaces reach into other clusters.
