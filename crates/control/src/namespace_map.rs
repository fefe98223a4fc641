//! Which namespaces are wanted in which cluster.
