//! The end.
