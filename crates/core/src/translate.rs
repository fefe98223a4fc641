//! Addresses of one cluster as another one knows them.
