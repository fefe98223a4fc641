//! The HTTPS service by which other clusters get an identity.
