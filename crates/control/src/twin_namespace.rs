//! Makes the namespaces that other clusters ask for.
