//! One virtual node.
