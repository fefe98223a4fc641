//! The address service and the joining of networks, on real API servers: what was answered
//! survives, what can't be answered says why, and no two clusters ever share a name.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod certificates;
mod claims;
mod crashes;
mod family;
mod frozen;
mod full;
mod joining;
mod leader;
mod mappings;
mod names;
mod resting;
mod served;
mod side;
mod wire;
mod wrong_input;
