//! The shared shell: cluster clients, watches, writer, lease, shutdown, telemetry.

pub mod client;
pub mod controller;
pub mod events;
pub mod finalizer;
pub mod health;
pub mod lease;
pub mod remote;
pub mod settings;
pub mod shutdown;
pub mod telemetry;
pub mod writer;
