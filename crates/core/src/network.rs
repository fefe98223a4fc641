//! What two clusters tell each other about their networks.
