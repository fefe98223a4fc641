//! The address service. One task owns what is known; every answer is in the API server before it
//! is given. Requests that come while one write is under way share the next.

mod authority;
pub mod certificates;
mod config;
mod incoming;
mod serve;
mod service;
mod store;

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::{mpsc, oneshot};
use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};
use tombolo_core::ipam::{Ipam as State, IpamError};
use tombolo_runtime::{chain::Chain, shutdown::Shutdown};
use tracing::{info, warn};

pub use self::serve::ServeError;
use self::store::Store;
use crate::context::Context;

/// The address service, for whoever is in this process. Clones are the same service.
#[derive(Clone)]
pub struct Ipam {
    requests: mpsc::Sender<Request>,
}

/// The service can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What it remembers, or the settings, can't be read.
    #[error("read the addresses in use")]
    Read(#[source] kube::Error),
    /// There is no external network for this cluster.
    #[error("choose this cluster's external network")]
    External(#[source] IpamError),
    /// What it remembers can't be written.
    #[error("write the addresses in use")]
    Write(#[source] kube::Error),
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

impl Ipam {
    /// Reads what is known and starts to answer, until the end is asked for.
    pub async fn start(context: &Context) -> Result<Self, StartError> {
        let Context { client, watches, settings, shutdown, .. } = context;
        let config = config::read(client, settings).await.map_err(StartError::Read)?;
        let mut store = Store::new(client.clone());
        let (storages, mappings) = store.read().await.map_err(StartError::Read)?;
        let mut state = State::load(config, &storages, &mappings).map_err(StartError::External)?;
        store.write(&mut state).await.map_err(StartError::Write)?;
        info!(
            external = %state.external_cidr(),
            peers = state.clusters().count(),
            "the address service knows what is in use"
        );

        let (requests, inbox) = mpsc::channel(QUEUE);
        let ipam = Self { requests };
        let owner = Owner { state, store, inbox, shutdown: shutdown.clone() };
        tokio::spawn(owner.run());
        tokio::spawn(config::follow(
            watches.clone(),
            settings.clone(),
            ipam.clone(),
            shutdown.clone(),
        ));
        Ok(ipam)
    }

    /// The network from which endpoints that are no pods get their addresses.
    pub async fn external_cidr(&self) -> Result<Cidr, AskError> {
        self.ask(|state| state.external_cidr()).await
    }

    /// Chooses what a peer's networks are called here.
    pub async fn reserve(
        &self,
        cluster: ClusterId,
        pods: Cidr,
        external: Cidr,
    ) -> Result<Subnets, AskError> {
        let answer = self.ask(move |state| state.reserve(&cluster, pods, external).cloned());
        Ok(answer.await??)
    }

    /// Notes what a peer calls this cluster's networks.
    pub async fn set_local_names(
        &self,
        cluster: ClusterId,
        pods: NatCidr,
        external: NatCidr,
    ) -> Result<(), AskError> {
        Ok(self.ask(move |state| state.set_local_names(&cluster, pods, external)).await??)
    }

    /// Frees whatever there is of and for a peer.
    pub async fn release(&self, cluster: ClusterId) -> Result<(), AskError> {
        self.ask(move |state| state.release(&cluster)).await
    }

    /// Frees whatever belongs to other clusters than these.
    pub async fn retain(&self, clusters: BTreeSet<ClusterId>) -> Result<(), AskError> {
        self.ask(move |state| {
            let gone: Vec<_> =
                state.clusters().filter(|cluster| !clusters.contains(cluster)).cloned().collect();
            for cluster in gone {
                state.release(&cluster);
            }
        })
        .await
    }

    /// Has something done with the state, and stored, by the task that owns it.
    async fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, AskError> {
        let (reply, answer) = oneshot::channel();
        let request: Request = Box::new(move |state| {
            let value = act(state);
            // Whoever has asked may have gone: then nobody wants to know.
            Box::new(move |stored| drop(reply.send(stored.then_some(value))))
        });
        self.requests.send(request).await.map_err(|_| AskError::Ended)?;
        answer.await.map_err(|_| AskError::Ended)?.ok_or(AskError::NotStored)
    }
}

impl std::fmt::Debug for Ipam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ipam").finish_non_exhaustive()
    }
}

const QUEUE: usize = 4096;
const RELOAD_RETRY: Duration = Duration::from_millis(500);

type Request = Box<dyn FnOnce(&mut State) -> Reply + Send>;
/// Called with whether the state was stored.
type Reply = Box<dyn FnOnce(bool) + Send>;

struct Owner {
    state: State,
    store: Store,
    inbox: mpsc::Receiver<Request>,
    shutdown: Shutdown,
}

impl Owner {
    async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        while let Some(Some(first)) = shutdown.or(self.inbox.recv()).await {
            let mut replies = vec![first(&mut self.state)];
            while let Ok(request) = self.inbox.try_recv() {
                replies.push(request(&mut self.state));
            }
            let stored = self.store.write(&mut self.state).await;
            if let Err(error) = &stored {
                warn!("the addresses in use could not be stored: {}", Chain(error));
            }
            for reply in replies {
                reply(stored.is_ok());
            }
            if stored.is_err() && shutdown.or(self.reload()).await.is_none() {
                return;
            }
        }
    }

    /// What was not stored never was: starts again from what the API server has.
    async fn reload(&mut self) {
        loop {
            match self.try_reload().await {
                Ok(()) => return,
                Err(error) => warn!("the addresses in use can't be read: {}", Chain(&error)),
            }
            tokio::time::sleep(RELOAD_RETRY).await;
        }
    }

    async fn try_reload(&mut self) -> Result<(), StartError> {
        let (storages, mappings) = self.store.read().await.map_err(StartError::Read)?;
        let config = self.state.config().clone();
        self.state = State::load(config, &storages, &mappings).map_err(StartError::External)?;
        self.store.write(&mut self.state).await.map_err(StartError::Write)
    }
}
