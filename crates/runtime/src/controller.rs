//! Runs a controller.
