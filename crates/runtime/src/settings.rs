//! Which cluster this is.
