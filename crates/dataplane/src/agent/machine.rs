//! A node's part of the data plane, as a function of values: no Kubernetes here.

use std::net::IpAddr;

use tombolo_core::plan::agent::{self, Inputs};

use crate::driver::{
    Result,
    namespace::{Network, Report, Watch},
    netns::Netns,
};

/// The network of a node.
#[derive(Debug)]
pub struct Machine {
    network: Network,
}

impl Machine {
    /// Opens the network of a node.
    pub fn open(host: Netns) -> Result<Self> {
        Ok(Self { network: Network::open(host)? })
    }

    /// MTU of the node's own network, found by the node's address.
    pub async fn mtu(&self, node: IpAddr) -> Result<Option<u32>> {
        self.network.mtu_of(node).await
    }

    /// Makes the node's network what it should be.
    pub async fn apply(&self, inputs: &Inputs) -> Result<Report> {
        self.network.apply(&agent::plan(inputs)).await
    }

    /// Removes everything that [`apply`](Self::apply) made.
    pub async fn remove(&self) -> Result<()> {
        self.network.clear(&agent::removable()).await
    }

    /// Says when somebody changes the node's network.
    pub fn watch(&self) -> Result<Watch> {
        self.network.watch()
    }
}
