//! The task that owns what the address service knows. It does what it is asked for, as much at a time
//! as there is, stores that, and only then answers.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tombolo_core::ipam::{Config, Ipam as State};
use tombolo_runtime::{chain::Chain, shutdown::Shutdown};
use tracing::{debug, warn};

use super::{
    StartError,
    store::{Store, StoreError, Stored},
};

/// Does something with the state, and says what to do when that is stored.
pub(super) type Request = Box<dyn FnOnce(&mut State) -> Reply + Send>;
/// Called with whether the state was stored.
type Reply = Box<dyn FnOnce(bool) + Send>;

const RELOAD_RETRY: Duration = Duration::from_millis(500);
/// Those who were just answered are waited for, so that all share one write: until nobody has come
/// for this long, but not for longer than a write takes.
const GATHER: Duration = Duration::from_millis(2);
/// How many addresses that have rested are freed at a time, and how long after the first of them.
const WAKE: usize = 1024;
const WAKE_LATER: Duration = Duration::from_secs(10);

pub(super) struct Owner {
    state: State,
    store: Store,
    inbox: mpsc::Receiver<Request>,
    shutdown: Shutdown,
    /// How long the last write took.
    took: Duration,
}

impl Owner {
    /// Reads what is known.
    pub(super) async fn start(
        config: Config,
        mut store: Store,
        inbox: mpsc::Receiver<Request>,
        shutdown: Shutdown,
    ) -> Result<Self, StartError> {
        let state = load(config, &mut store).await?;
        Ok(Self { state, store, inbox, shutdown, took: Duration::ZERO })
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Answers until the end is asked for, or until another process writes.
    pub(super) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        let mut answered = 0;
        while let Some(Some(mut replies)) = shutdown.or(self.next(answered)).await {
            answered = replies.len();
            let begun = Instant::now();
            let stored = self.store.write(&mut self.state).await;
            self.took = begun.elapsed();
            if let Err(error) = &stored {
                warn!("the addresses in use could not be stored: {}", Chain(error));
            }
            for reply in replies.drain(..) {
                reply(stored.is_ok());
            }
            if stored.is_err() && shutdown.or(self.reload()).await != Some(true) {
                return shutdown.ask();
            }
        }
        if let Err(error) = self.store.close().await {
            debug!("the parts in use stay open: {}", Chain(&error));
        }
    }

    /// Waits for something to do, and does it. Nothing when there is nobody who could ask.
    async fn next(&mut self, answered: usize) -> Option<Vec<Reply>> {
        let expected = answered + self.inbox.len();
        let first = tokio::select! {
            request = self.inbox.recv() => request?,
            () = rested(self.state.next_to_wake()) => {
                self.state.wake(Timestamp::now(), WAKE);
                return Some(Vec::new());
            }
        };
        let requests = self.gather(first, expected).await;
        self.state.expect(requests.len());
        Some(requests.into_iter().map(|request| request(&mut self.state)).collect())
    }

    /// All that is asked for by now, and what those ask for who were just answered and ask again at
    /// once.
    async fn gather(&mut self, first: Request, expected: usize) -> Vec<Request> {
        let mut requests = vec![first];
        let end = Instant::now() + self.took;
        loop {
            while let Ok(request) = self.inbox.try_recv() {
                requests.push(request);
            }
            if requests.len() >= expected {
                return requests;
            }
            let quiet = end.min(Instant::now() + GATHER);
            match timeout_at(quiet, self.inbox.recv()).await {
                Ok(Some(request)) => requests.push(request),
                _ => return requests,
            }
        }
    }

    /// What was not stored never was: starts again from what the API server has, unless another
    /// process writes now.
    async fn reload(&mut self) -> bool {
        loop {
            match load(self.state.config().clone(), &mut self.store).await {
                Ok(state) => {
                    self.state = state;
                    return true;
                }
                Err(StartError::Read(error @ StoreError::Deposed)) => {
                    warn!("the address service ends: {error}");
                    return false;
                }
                Err(error) => warn!("the addresses in use can't be read: {}", Chain(&error)),
            }
            sleep(RELOAD_RETRY).await;
        }
    }
}

async fn load(config: Config, store: &mut Store) -> Result<State, StartError> {
    let Stored { storages, mappings } = store.claim().await.map_err(StartError::Read)?;
    let mut state = State::load(config, &storages, &mappings, Timestamp::now())
        .map_err(StartError::External)?;
    store.write(&mut state).await.map_err(StartError::Write)?;
    Ok(state)
}

/// Waits until some time after the first address has rested.
async fn rested(until: Option<Timestamp>) {
    let Some(until) = until else { return std::future::pending().await };
    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    sleep(left + WAKE_LATER).await;
}
