//! Shutdown of a component: triggered once, observed by all its tasks.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::task::Task;

/// A shutdown signal. Clones share it; a child can also be triggered alone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A signal that is not triggered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A signal that SIGTERM and SIGINT trigger while the task runs.
    pub fn on_signals() -> std::io::Result<(Self, Task)> {
        let shutdown = Self::new();
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let token = shutdown.clone();
        let task = Task::spawn("signals", async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            token.trigger();
        });
        Ok((shutdown, task))
    }

    /// Triggers the shutdown.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Triggers the shutdown when the guard is dropped, also by a panic.
    #[must_use]
    pub fn trigger_on_drop(&self) -> DropGuard {
        self.0.clone().drop_guard()
    }

    /// Whether the shutdown was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the shutdown is triggered.
    pub async fn triggered(&self) {
        self.0.cancelled().await;
    }

    /// The same as a future that borrows nothing.
    pub fn triggered_owned(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.0.clone().cancelled_owned()
    }

    /// A signal that is triggered with this one, or alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Runs `work` until it is done. `None`: the shutdown came first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }
}
