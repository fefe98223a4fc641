//! Two real clusters with the same CIDRs discover each other, peer, and run one unmodified
//! application.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod bad_input;
mod failures;
mod grpc;
mod installed;
mod objects;
mod peered;
mod requests;
mod rollout;
mod story;
mod way_back;
