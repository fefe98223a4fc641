//! The kernel interfaces that plans are applied by.
