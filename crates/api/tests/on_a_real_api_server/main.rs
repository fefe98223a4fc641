//! The CRDs on a real API server: it accepts them, refuses invalid objects with a helpful reason,
//! and returns objects as they were stored.

mod cluster;
mod definitions;
mod filled;
mod refused;
mod round_trip;
mod seed;
