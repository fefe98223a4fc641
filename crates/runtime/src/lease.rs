//! One leader.
