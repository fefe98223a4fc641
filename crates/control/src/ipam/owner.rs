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
    teller::Turn,
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
    /// How many may ask at once: those who were answered last, and who came meanwhile.
    expected: usize,
    /// How long the last write took.
    took: Duration,
}

/// What there is to do.
enum Due {
    /// Somebody asks.
    Asked(Request),
    /// Addresses have rested.
    Rested,
    /// The gateways are to be told something, or were.
    Turn(Turn),
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
        Ok(Self { state, store, inbox, shutdown, expected: 0, took: Duration::ZERO })
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Answers until the end is asked for, or until another process writes.
    pub(super) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        while let Some(Some(due)) = shutdown.or(self.next()).await {
            let done = match due {
                Due::Asked(first) => {
                    let Some(requests) = shutdown.or(self.gather(first)).await else { break };
                    self.answer(requests).await
                }
                Due::Rested => {
                    self.state.wake(Timestamp::now(), WAKE);
                    self.store.write(&mut self.state).await
                }
                Due::Turn(Turn::Tell) => self.store.tell(&self.state).await,
                Due::Turn(Turn::Told(outcome)) => outcome,
            };
            if let Err(error) = done {
                warn!("the addresses in use could not be stored: {}", Chain(&error));
                if shutdown.or(self.reload()).await != Some(true) {
                    return shutdown.ask();
                }
            }
        }
        if let Err(error) = self.store.close(&self.state).await {
            debug!("the parts in use stay open: {}", Chain(&error));
        }
    }

    /// Waits for something to do. Nothing when there is nobody who could ask.
    async fn next(&mut self) -> Option<Due> {
        Some(tokio::select! {
            request = self.inbox.recv() => Due::Asked(request?),
            () = rested(self.state.next_to_wake()) => Due::Rested,
            turn = self.store.turn() => Due::Turn(turn),
        })
    }

    /// Does what is asked for, stores it, and answers.
    async fn answer(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        self.state.expect(requests.len());
        let replies: Vec<Reply> =
            requests.into_iter().map(|request| request(&mut self.state)).collect();
        let begun = Instant::now();
        let stored = self.store.write(&mut self.state).await;
        self.took = begun.elapsed();
        self.expected = replies.len() + self.inbox.len();
        for reply in replies {
            reply(stored.is_ok());
        }
        stored
    }

    /// All that is asked for by now, and what those ask for who were just answered and ask again at
    /// once.
    async fn gather(&mut self, first: Request) -> Vec<Request> {
        let mut requests = vec![first];
        let end = Instant::now() + self.took;
        loop {
            while let Ok(request) = self.inbox.try_recv() {
                requests.push(request);
            }
            if requests.len() >= self.expected {
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
    store.tell_all(&state).await.map_err(StartError::Write)?;
    Ok(state)
}

/// Waits until some time after the first address has rested.
async fn rested(until: Option<Timestamp>) {
    let Some(until) = until else { return std::future::pending().await };
    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    sleep(left + WAKE_LATER).await;
}
