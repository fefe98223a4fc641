//! The node object and its lease.
