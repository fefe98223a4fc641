//! A node's part of the data plane, as a function of values: no Kubernetes here.

use std::net::IpAddr;

use tombolo_core::plan::agent::{self, Inputs};

use crate::{
    driver::{
        Result,
        namespace::{Network, Report, Watch},
    },
    gateway::machine::{self as gateway, Place},
};

/// The network of a node.
#[derive(Debug)]
pub struct Machine {
    network: Network,
    place: Place,
}

impl Machine {
    /// Opens the network of a node, which may have a gateway at this place.
    pub fn open(place: Place) -> Result<Self> {
        Ok(Self { network: Network::open(place.host.clone())?, place })
    }

    /// MTU of the node's own network, found by the node's address.
    pub async fn mtu(&self, node: IpAddr) -> Result<Option<u32>> {
        self.network.mtu_of(node).await
    }

    /// Makes the node's network what it should be. What a gateway left here that was killed goes
    /// when another node has the gateway.
    pub async fn apply(&self, inputs: &Inputs) -> Result<Report> {
        let left = agent::is_former_gateway(inputs) && gateway::is_left(&self.place).await?;
        if left {
            gateway::remove(&self.place).await?;
        }
        let mut report = self.network.apply(&agent::plan(inputs)).await?;
        report.changed += usize::from(left);
        Ok(report)
    }

    /// Removes everything that [`apply`](Self::apply) made, and what a gateway left.
    pub async fn remove(&self) -> Result<()> {
        gateway::remove(&self.place).await?;
        self.network.clear(&agent::owned()).await
    }

    /// Says when somebody changes the node's network.
    pub fn watch(&self) -> Result<Watch> {
        self.network.watch()
    }
}
