//! The address service and the joining of networks, on real API servers: answered mappings survive
//! crashes, refused requests say why, and translated CIDRs of two clusters never overlap.

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
mod quarantine;
mod served;
mod side;
mod translated_cidrs;
mod wire;
mod wrong_input;
