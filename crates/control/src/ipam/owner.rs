//! The task that owns what the address service knows. It does what it is asked for, as much at a time
//! as there is, stores that, and only then answers.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tombolo_core::ipam::{Config, IpamState};
use tombolo_runtime::{chain::Chain, shutdown::Shutdown};
use tracing::{debug, warn};

use super::{
    Clock, StartError,
    store::{Store, StoreError, Stored},
    teller::Turn,
};

/// Does something with the state, now, and says what to do when that is stored.
pub(super) type Request = Box<dyn FnOnce(&mut IpamState, Timestamp) -> Reply + Send>;
/// Called with whether the state was stored.
type Reply = Box<dyn FnOnce(bool) + Send>;

const RELOAD_RETRY: Duration = Duration::from_millis(500);
/// Those who were just answered are waited for, so that all share one write: until nobody has come
/// for this long, but not for longer than a write takes.
const GATHER: Duration = Duration::from_millis(2);
/// How many addresses that have rested are freed at a time, and how long after the first of them.
const WAKE: usize = 1024;
const WAKE_LATER: SignedDuration = SignedDuration::from_secs(10);

pub(super) struct Owner {
    state: IpamState,
    store: Store,
    inbox: mpsc::Receiver<Request>,
    shutdown: Shutdown,
    clock: Clock,
    /// How many may ask at once: those who were answered last, and who came meanwhile.
    expected: usize,
    /// How long the last write took.
    took: Duration,
}

/// What there is to do.
enum Due {
    /// Somebody asks.
    Asked(Request),
    /// Addresses have rested, or nobody has to be kept any more from making an object.
    Time,
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
        clock: Clock,
    ) -> Result<Self, StartError> {
        let state = load(config, &mut store, clock()).await?;
        Ok(Self { state, store, inbox, shutdown, clock, expected: 0, took: Duration::ZERO })
    }

    pub(super) fn state(&self) -> &IpamState {
        &self.state
    }

    /// Answers until the end is asked for, or until another process writes.
    pub(super) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        // Also after a panic: a leader that can't answer keeps those from it who could.
        let _end = shutdown.ask_on_drop();
        while let Some(Some(due)) = shutdown.or(self.next()).await {
            let done = match due {
                Due::Asked(first) => {
                    let Some(requests) = shutdown.or(self.gather(first)).await else { break };
                    self.answer(requests).await
                }
                Due::Time => {
                    let now = (self.clock)();
                    self.state.wake(now, WAKE);
                    self.store.write(&mut self.state, now).await
                }
                Due::Turn(Turn::Tell) => self.store.tell(&self.state).await,
                Due::Turn(Turn::Told(outcome)) => outcome,
            };
            if let Err(error) = done {
                warn!("the addresses in use could not be stored: {}", Chain(&error));
                if shutdown.or(self.reload()).await != Some(true) {
                    return;
                }
            }
        }
        if let Err(error) = self.store.close(&self.state).await {
            debug!("the parts in use stay open: {}", Chain(&error));
        }
    }

    /// Waits for something to do. Nothing when there is nobody who could ask.
    async fn next(&mut self) -> Option<Due> {
        let left = self.next_time().map(|due| due.duration_since((self.clock)()));
        Some(tokio::select! {
            request = self.inbox.recv() => Due::Asked(request?),
            () = pass(left) => Due::Time,
            turn = self.store.turn() => Due::Turn(turn),
        })
    }

    /// When there is something to do though nobody asks. It is the same moment however often others
    /// ask meanwhile.
    fn next_time(&self) -> Option<Timestamp> {
        let rested = self.state.next_to_wake().map(|until| until + WAKE_LATER);
        rested.into_iter().chain(self.store.fences_end(&self.state)).min()
    }

    /// Does what is asked for, stores it, and answers.
    async fn answer(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        let now = (self.clock)();
        self.state.expect(requests.len());
        let replies: Vec<Reply> =
            requests.into_iter().map(|request| request(&mut self.state, now)).collect();
        let begun = Instant::now();
        let stored = self.store.write(&mut self.state, now).await;
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
            match load(self.state.config().clone(), &mut self.store, (self.clock)()).await {
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

async fn load(config: Config, store: &mut Store, now: Timestamp) -> Result<IpamState, StartError> {
    let Stored { storages, mappings } = store.claim(now).await.map_err(StartError::Read)?;
    let mut state =
        IpamState::load(config, &storages, &mappings, now).map_err(StartError::External)?;
    store.write(&mut state, now).await.map_err(StartError::Write)?;
    store.tell_all(&state).await.map_err(StartError::Write)?;
    Ok(state)
}

/// Waits until this time has passed. When nothing is left of it, there is not even a sleep of no time:
/// whoever asks would always come before.
async fn pass(left: Option<SignedDuration>) {
    match left.map(Duration::try_from) {
        Some(Ok(left)) => sleep(left).await,
        Some(Err(_)) => {}
        None => std::future::pending().await,
    }
}
