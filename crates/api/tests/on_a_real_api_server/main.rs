//! The definitions on a real API server: it takes them, refuses what is wrong with a reason that
//! helps, and gives back what it was given.

mod cluster;
mod definitions;
mod filled;
mod refused;
mod round_trip;
mod seed;
