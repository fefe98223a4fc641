//! The address service.
