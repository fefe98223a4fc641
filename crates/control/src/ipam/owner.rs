//! The task that owns the state of the address service. It handles requests in batches: it applies
//! all waiting requests to the state, stores the changes, and only then answers.

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
    nat_mapping_writer::WriterEvent,
    store::{Store, StoreError, Stored},
};

/// Applies a request to the state. The returned function sends the answer.
pub(super) type Request = Box<dyn FnOnce(&mut IpamState, Timestamp) -> Reply + Send>;
/// The argument is whether the state was stored.
type Reply = Box<dyn FnOnce(bool) + Send>;

const RELOAD_RETRY: Duration = Duration::from_millis(500);
/// A batch waits for the next requests of the clients of the previous one, so that all share one
/// write: until no request has come for this long, but at most as long as a write takes.
const GATHER: Duration = Duration::from_millis(2);
/// Quarantined addresses to expire in one write, and the delay after the first expiry.
const EXPIRE: usize = 1024;
const EXPIRE_DELAY: SignedDuration = SignedDuration::from_secs(10);

pub(super) struct Owner {
    state: IpamState,
    store: Store,
    inbox: mpsc::Receiver<Request>,
    shutdown: Shutdown,
    clock: Clock,
    /// The expected size of the next batch: the size of the last one, and the requests that came
    /// during its write.
    expected: usize,
    /// How long the last write took.
    took: Duration,
}

/// The next task.
enum Due {
    /// A request to answer.
    Request(Request),
    /// Quarantines or fences have expired.
    Expiry,
    /// An event of the NatMapping writer.
    NatMappings(WriterEvent),
}

impl Owner {
    /// Becomes the writer and reads the stored state.
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

    /// Answers until shutdown, or until another process is the writer.
    pub(super) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        // Also after a panic: a leader that can't answer would block the other replicas.
        let _end = shutdown.trigger_on_drop();
        while let Some(Some(due)) = shutdown.or(self.next()).await {
            let done = match due {
                Due::Request(first) => {
                    let Some(requests) = shutdown.or(self.gather(first)).await else { break };
                    self.answer(requests).await
                }
                Due::Expiry => {
                    let now = (self.clock)();
                    self.state.expire(now, EXPIRE);
                    self.store.write(&mut self.state, now).await
                }
                Due::NatMappings(WriterEvent::Due) => {
                    self.store.start_nat_mapping_write(&self.state).await
                }
                Due::NatMappings(WriterEvent::Done(outcome)) => outcome,
            };
            if let Err(error) = done {
                warn!(error = %Chain(&error), "can't write IpamStorages or NatMappings: reloading");
                if shutdown.or(self.reload()).await != Some(true) {
                    return;
                }
            }
        }
        if let Err(error) = self.store.close(&self.state).await {
            debug!(error = %Chain(&error), "shards not closed, the next writer has to fence them");
        }
    }

    /// Waits for the next task. `None` when all handles of the service are dropped.
    async fn next(&mut self) -> Option<Due> {
        let left = self.next_expiry().map(|due| due.duration_since((self.clock)()));
        Some(tokio::select! {
            request = self.inbox.recv() => Due::Request(request?),
            () = pass(left) => Due::Expiry,
            event = self.store.next_event() => Due::NatMappings(event),
        })
    }

    /// When the next quarantine or fence expires. Requests in between do not postpone it.
    fn next_expiry(&self) -> Option<Timestamp> {
        let quarantine = self.state.next_expiry().map(|until| until + EXPIRE_DELAY);
        quarantine.into_iter().chain(self.store.fences_end(&self.state)).min()
    }

    /// Applies a batch of requests, stores the changes, and answers.
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

    /// Collects a batch: all waiting requests, and the next requests of clients that were just
    /// answered.
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

    /// Discards unwritten changes and reloads the state from the API server. Returns false if
    /// another process is the writer now.
    async fn reload(&mut self) -> bool {
        loop {
            match load(self.state.config().clone(), &mut self.store, (self.clock)()).await {
                Ok(state) => {
                    self.state = state;
                    return true;
                }
                Err(StartError::Read(error @ StoreError::Deposed)) => {
                    warn!(%error, "stopping the address service");
                    return false;
                }
                Err(error) => warn!(
                    error = %Chain(&error), retry_in = ?RELOAD_RETRY,
                    "can't load the state of the address service"
                ),
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
    store.flush_nat_mappings(&state).await.map_err(StartError::Write)?;
    Ok(state)
}

/// Waits for this time. If it is over, returns without a sleep: even a sleep of zero yields, so
/// constant requests could delay it forever.
async fn pass(left: Option<SignedDuration>) {
    match left.map(Duration::try_from) {
        Some(Ok(left)) => sleep(left).await,
        Some(Err(_)) => {}
        None => std::future::pending().await,
    }
}
