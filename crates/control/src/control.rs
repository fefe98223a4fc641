//! Starts the controllers.
