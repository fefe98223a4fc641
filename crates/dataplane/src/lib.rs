//! Tunnels, address translation and overlay: drivers, gateway, agent.

pub mod agent;
pub mod driver;
pub mod gateway;

mod uninstall;
