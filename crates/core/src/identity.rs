//! Who gets an identity, and what it may do.
