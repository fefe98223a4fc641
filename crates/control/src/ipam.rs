//! The address service. One task owns the state; every change is stored in the API server before
//! the answer is sent. Requests that come during a write share the next one.

mod authority;
pub mod certificates;
mod config;
mod incoming;
mod nat_mapping_writer;
mod owned_objects;
mod owner;
mod serve;
mod service;
mod store;

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};
use tombolo_core::ipam::{IpamError, IpamState};
use tombolo_runtime::{shutdown::Shutdown, task::Task};
use tracing::info;

use self::{owner::Owner, store::Store};
pub use self::{serve::ServeError, store::StoreError};
use crate::context::Context;

/// A handle of the address service, for use in this process. Clones share the service, which is
/// aborted when the last one is dropped.
#[derive(Clone)]
pub struct AddressService {
    requests: Requests,
    tasks: Arc<ServiceTasks>,
    shutdown: Shutdown,
}

struct ServiceTasks {
    owner: Task,
    _config: Task,
}

/// Sends requests to the task that owns the state.
#[derive(Clone)]
struct Requests {
    sender: mpsc::Sender<owner::Request>,
    /// Notifies of changed settings.
    configured: watch::Sender<()>,
}

/// Returns the current time, for the expiry of quarantines.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Why the service can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings can't be read.
    #[error("read the ClusterConfig and the nodes for the address service")]
    Config(#[source] kube::Error),
    /// The stored state can't be read, or a former writer can't be fenced off.
    #[error("become the writer of IpamStorages and NatMappings, and read them")]
    Read(#[source] StoreError),
    /// No CIDR is free for the ExternalCIDR.
    #[error("choose the ExternalCIDR")]
    External(#[source] IpamError),
    /// The state can't be written.
    #[error("write IpamStorages and NatMappings")]
    Write(#[source] StoreError),
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The change could not be stored.
    #[error("the address service could not store the change: try again")]
    NotStored,
    /// The service has stopped.
    #[error("the address service has stopped")]
    Ended,
    /// The request is invalid, or can't be fulfilled.
    #[error(transparent)]
    Refused(#[from] IpamError),
}

impl AddressService {
    /// Loads the state and answers requests until shutdown. Triggers the shutdown itself when it
    /// can't answer any more, for whatever reason.
    pub async fn start(context: &Context) -> Result<Self, StartError> {
        Self::start_at(context, Arc::new(Timestamp::now)).await
    }

    /// The same, with another clock.
    pub async fn start_at(context: &Context, clock: Clock) -> Result<Self, StartError> {
        let Context { client, watches, settings, shutdown, .. } = context;
        let config = config::read(client, settings).await.map_err(StartError::Config)?;
        let (sender, inbox) = mpsc::channel(QUEUE);
        let owner =
            Owner::start(config, Store::new(client), inbox, shutdown.clone(), clock).await?;
        let state = owner.state();
        info!(
            external_cidr = %state.external_cidr(),
            peers = state.clusters().count(),
            "address service started"
        );

        let requests = Requests { sender, configured: watch::Sender::new(()) };
        let (watches, settings) = (watches.clone(), settings.clone());
        let follow = config::follow(watches, settings, requests.clone(), shutdown.clone());
        let tasks = ServiceTasks {
            owner: Task::spawn("address service", owner.run()),
            _config: Task::spawn("settings of the address service", follow),
        };
        Ok(Self { requests, tasks: Arc::new(tasks), shutdown: shutdown.clone() })
    }

    /// The ExternalCIDR: endpoints that are not pods get their addresses from it.
    pub async fn external_cidr(&self) -> Result<Cidr, AskError> {
        self.submit(|state, _| state.external_cidr()).await
    }

    /// Chooses the translated CIDRs of a peer's networks.
    pub async fn reserve(
        &self,
        cluster: ClusterId,
        pods: Cidr,
        external: Cidr,
    ) -> Result<Subnets, AskError> {
        let reserve =
            move |state: &mut IpamState, now| state.reserve(&cluster, pods, external, now).cloned();
        Ok(self.submit(reserve).await??)
    }

    /// Records the CIDRs to which a peer translates this cluster's networks.
    pub async fn set_local_nat_cidrs(
        &self,
        cluster: ClusterId,
        pods: NatCidr,
        external: NatCidr,
    ) -> Result<(), AskError> {
        Ok(self
            .submit(move |state, _| state.set_local_nat_cidrs(&cluster, pods, external))
            .await??)
    }

    /// Releases the translated CIDRs of a peer and all mappings for it.
    pub async fn release(&self, cluster: ClusterId) -> Result<(), AskError> {
        self.submit(move |state, now| state.release(&cluster, now)).await
    }

    /// Releases all peers except these.
    pub async fn retain(&self, clusters: BTreeSet<ClusterId>) -> Result<(), AskError> {
        self.submit(move |state, now| {
            let gone: Vec<_> =
                state.clusters().filter(|cluster| !clusters.contains(cluster)).cloned().collect();
            for cluster in gone {
                state.release(&cluster, now);
            }
        })
        .await
    }

    /// Notifies of changed settings: translated CIDRs may have to be reserved again.
    pub fn configured(&self) -> watch::Receiver<()> {
        self.requests.configured.subscribe()
    }

    /// After a shutdown, waits until everything is written.
    async fn closed(&self) {
        if self.shutdown.is_triggered() {
            self.tasks.owner.ended().await;
        }
    }

    /// Applies a function to the state in the task that owns it, and stores the changes.
    async fn submit<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut IpamState, Timestamp) -> T + Send + 'static,
    ) -> Result<T, AskError> {
        self.requests.send(act).await
    }
}

impl Requests {
    async fn send<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut IpamState, Timestamp) -> T + Send + 'static,
    ) -> Result<T, AskError> {
        let (reply, answer) = oneshot::channel();
        let request: owner::Request = Box::new(move |state, now| {
            let value = act(state, now);
            // The caller may have stopped waiting.
            Box::new(move |stored| drop(reply.send(stored.then_some(value))))
        });
        self.sender.send(request).await.map_err(|_| AskError::Ended)?;
        answer.await.map_err(|_| AskError::Ended)?.ok_or(AskError::NotStored)
    }
}

impl std::fmt::Debug for AddressService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressService").finish_non_exhaustive()
    }
}

const QUEUE: usize = 4096;
