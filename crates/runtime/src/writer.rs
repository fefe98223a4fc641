//! Writes to an API server.
