//! Reflects services, endpoints, configuration and secrets.
