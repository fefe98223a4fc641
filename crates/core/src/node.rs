//! The virtual node.
