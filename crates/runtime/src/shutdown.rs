//! The end of a component: asked for once, heard everywhere.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::task::Task;

/// Whether it is time to stop. Clones hear the same; children can also be stopped alone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// One that nobody has asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asked for by SIGTERM and SIGINT, as long as the task is there.
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
            token.ask();
        });
        Ok((shutdown, task))
    }

    /// Asks for the end.
    pub fn ask(&self) {
        self.0.cancel();
    }

    /// Asks for the end when what is returned is dropped, also by a panic.
    #[must_use]
    pub fn ask_on_drop(&self) -> DropGuard {
        self.0.clone().drop_guard()
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it is asked for.
    pub async fn asked(&self) {
        self.0.cancelled().await;
    }

    /// The same, for whoever has to own what it waits for.
    pub fn asked_owned(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.0.clone().cancelled_owned()
    }

    /// One that ends with this one, or alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Runs until done or until the end is asked for, whichever comes first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }
}
