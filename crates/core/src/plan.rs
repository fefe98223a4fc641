//! What the data plane should be.
