//! Starts and ends peerings.
