//! Events for people.
