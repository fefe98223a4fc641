//! The address service. One task owns what is known; every answer is in the API server before it
//! is given. Requests that come while one write is under way share the next.

mod authority;
pub mod certificates;
mod config;
mod incoming;
mod kept;
mod owner;
mod serve;
mod service;
mod store;
mod teller;

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

/// The address service, for whoever is in this process. Clones are the same service, which is
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

/// The way to the task that owns the state.
#[derive(Clone)]
struct Requests {
    sender: mpsc::Sender<owner::Request>,
    /// Tells when other networks may be used.
    configured: watch::Sender<()>,
}

/// What time it is: addresses rest for a while after their last use.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The service can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings can't be read.
    #[error("read the settings of the address service")]
    Config(#[source] kube::Error),
    /// What it remembers can't be read, or nobody else be kept from writing it.
    #[error("read the addresses in use")]
    Read(#[source] StoreError),
    /// There is no external network for this cluster.
    #[error("choose this cluster's external network")]
    External(#[source] IpamError),
    /// What it remembers can't be written.
    #[error("write the addresses in use")]
    Write(#[source] StoreError),
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// What would have been answered could not be stored.
    #[error("the address service could not store its answer: try again")]
    NotStored,
    /// The service has ended.
    #[error("the address service has ended")]
    Ended,
    /// It says no.
    #[error(transparent)]
    Refused(#[from] IpamError),
}

impl AddressService {
    /// Reads what is known and starts to answer, until the end is asked for. When it can't answer any
    /// more, for whatever reason, it asks for the end itself.
    pub async fn start(context: &Context) -> Result<Self, StartError> {
        Self::start_at(context, Arc::new(Timestamp::now)).await
    }

    /// The same, by another clock.
    pub async fn start_at(context: &Context, clock: Clock) -> Result<Self, StartError> {
        let Context { client, watches, settings, shutdown, .. } = context;
        let config = config::read(client, settings).await.map_err(StartError::Config)?;
        let (sender, inbox) = mpsc::channel(QUEUE);
        let owner =
            Owner::start(config, Store::new(client), inbox, shutdown.clone(), clock).await?;
        let state = owner.state();
        info!(
            external = %state.external_cidr(),
            peers = state.clusters().count(),
            "the address service knows what is in use"
        );

        let requests = Requests { sender, configured: watch::Sender::new(()) };
        let (watches, settings) = (watches.clone(), settings.clone());
        let follow = config::follow(watches, settings, requests.clone(), shutdown.clone());
        let tasks = ServiceTasks {
            owner: Task::spawn("address service", owner.run()),
            _config: Task::spawn("networks of the address service", follow),
        };
        Ok(Self { requests, tasks: Arc::new(tasks), shutdown: shutdown.clone() })
    }

    /// The network from which endpoints that are no pods get their addresses.
    pub async fn external_cidr(&self) -> Result<Cidr, AskError> {
        self.ask(|state, _| state.external_cidr()).await
    }

    /// Chooses what a peer's networks are called here.
    pub async fn reserve(
        &self,
        cluster: ClusterId,
        pods: Cidr,
        external: Cidr,
    ) -> Result<Subnets, AskError> {
        let reserve =
            move |state: &mut IpamState, now| state.reserve(&cluster, pods, external, now).cloned();
        Ok(self.ask(reserve).await??)
    }

    /// Notes what a peer calls this cluster's networks.
    pub async fn set_local_names(
        &self,
        cluster: ClusterId,
        pods: NatCidr,
        external: NatCidr,
    ) -> Result<(), AskError> {
        Ok(self.ask(move |state, _| state.set_local_names(&cluster, pods, external)).await??)
    }

    /// Frees whatever there is of and for a peer.
    pub async fn release(&self, cluster: ClusterId) -> Result<(), AskError> {
        self.ask(move |state, now| state.release(&cluster, now)).await
    }

    /// Frees whatever belongs to other clusters than these.
    pub async fn retain(&self, clusters: BTreeSet<ClusterId>) -> Result<(), AskError> {
        self.ask(move |state, now| {
            let gone: Vec<_> =
                state.clusters().filter(|cluster| !clusters.contains(cluster)).cloned().collect();
            for cluster in gone {
                state.release(&cluster, now);
            }
        })
        .await
    }

    /// Changes whenever other networks may be used: a name that was free may be so no longer.
    pub fn configured(&self) -> watch::Receiver<()> {
        self.requests.configured.subscribe()
    }

    /// Waits until everything is written, if the end was asked for.
    async fn closed(&self) {
        if self.shutdown.is_asked() {
            self.tasks.owner.ended().await;
        }
    }

    /// Has something done with the state, and stored, by the task that owns it.
    async fn ask<T: Send + 'static>(
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
            // Whoever has asked may have gone: then nobody wants to know.
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
