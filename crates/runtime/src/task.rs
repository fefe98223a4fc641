//! Tasks with a name and an owner. A task is aborted when its owner is dropped. A panic is logged
//! with the name of the task, and so is an error that ends it. clippy.toml bans `tokio::spawn`:
//! such a task outlives its owner, and its end goes unnoticed.

use std::{
    any::Any,
    borrow::Cow,
    error::Error,
    fmt::{self, Debug},
    panic::{AssertUnwindSafe, resume_unwind},
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures::FutureExt;
use tokio::{
    sync::oneshot,
    task::{JoinError, JoinSet},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::error;

use crate::chain::Chain;

/// Name of a task in the log.
pub type Name = Cow<'static, str>;

/// A task, aborted on drop. As a future it yields the result, or the panic or abort.
#[must_use = "a task is aborted when it is dropped"]
pub struct Task<T = ()> {
    name: Name,
    handle: AbortOnDropHandle<T>,
    ended: CancellationToken,
}

impl<T: Send + 'static> Task<T> {
    /// Starts a task that reports its own errors, or has none.
    pub fn spawn(name: impl Into<Name>, work: impl Future<Output = T> + Send + 'static) -> Self {
        let (name, ended) = (name.into(), CancellationToken::new());
        let (guard, work) = (ended.clone().drop_guard(), log_panic(name.clone(), work));
        #[expect(clippy::disallowed_methods, reason = "the only place where tasks are started")]
        let handle = tokio::spawn(async move {
            let _guard = guard;
            work.await
        });
        Self { name, handle: AbortOnDropHandle::new(handle), ended }
    }

    /// Waits for the end of the task, including a panic or abort. For owners that share it.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Aborts the task, and waits until it has released its resources.
    pub async fn stop(self) {
        self.handle.abort();
        // An error is the abort, or a panic that is already logged.
        let _ = self.await;
    }
}

impl<T: Send + 'static, E: Error + Send + 'static> Task<Result<T, E>> {
    /// Starts a task whose error is logged as soon as it occurs.
    pub fn spawn_fallible(
        name: impl Into<Name>,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Self {
        let name = name.into();
        Self::spawn(name.clone(), log_error(name, work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.handle.poll_unpin(context)
    }
}

impl<T> Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Task").field(&self.name).finish()
    }
}

/// Tasks of one owner, which takes their results. All are aborted on drop.
pub struct Tasks<T = ()>(JoinSet<T>);

impl<T: Send + 'static> Tasks<T> {
    /// An empty set.
    pub fn new() -> Self {
        Self(JoinSet::new())
    }

    /// Starts a task that reports its own errors, or has none.
    pub fn spawn(&mut self, name: impl Into<Name>, work: impl Future<Output = T> + Send + 'static) {
        #[expect(clippy::disallowed_methods, reason = "the only place where tasks are started")]
        self.0.spawn(log_panic(name.into(), work));
    }

    /// The result of the next task that ends. `None`: there is no task.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.join_next().await
    }

    /// Waits for the end of all tasks, including panics and aborts.
    pub async fn join_all(&mut self) {
        while self.join_next().await.is_some() {}
    }

    /// Number of tasks whose results were not taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no such tasks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Tasks {
    /// Starts a task whose error is logged as soon as it occurs.
    pub fn spawn_fallible<E: Error + Send + 'static>(
        &mut self,
        name: impl Into<Name>,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let name = name.into();
        self.spawn(name.clone(), log_error(name, work).map(drop));
    }
}

impl<T: Send + 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Debug for Tasks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tasks").field(&self.0.len()).finish()
    }
}

/// Tasks that continue without their starter, such as a request whose client has disconnected.
/// Their owner waits for them at the end; when it is dropped, they are aborted.
#[derive(Debug, Default)]
pub struct Background(Mutex<Tasks>);

impl Background {
    /// Starts a task.
    pub fn spawn(&self, name: impl Into<Name>, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock();
        while tasks.0.try_join_next().is_some() {}
        tasks.spawn(name, work);
    }

    /// Runs a task to its end, even if the caller stops waiting for the result. `None`: it panicked
    /// or was aborted.
    pub async fn complete<T: Send + 'static>(
        &self,
        name: impl Into<Name>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        // Without a caller the result is dropped.
        self.spawn(name, async move { drop(done.send(work.await)) });
        result.await.ok()
    }

    /// Waits until no task is left. If the future is dropped, the tasks are aborted.
    pub async fn join(&self) {
        loop {
            let mut tasks = std::mem::take(&mut *self.lock());
            if tasks.is_empty() {
                return;
            }
            tasks.join_all().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a panic, then resumes it for the owner of the task.
async fn log_panic<T>(name: Name, work: impl Future<Output = T>) -> T {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            error!(task = %name, "panicked: {}", message(&*panic));
            resume_unwind(panic)
        }
    }
}

async fn log_error<T, E: Error>(
    name: Name,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    work.await.inspect_err(|error| error!(task = %name, "failed: {}", Chain(error)))
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::{future::pending, io, sync::Arc, time::Duration};

    use tokio::{
        sync::oneshot::error::TryRecvError,
        time::{sleep, timeout},
    };

    use super::*;
    use crate::log_record::LogRecord;

    const SECOND: Duration = Duration::from_secs(1);

    /// A future without an end, and a receiver that fails when the future is dropped.
    fn endless() -> (impl Future<Output = ()> + Send + 'static, oneshot::Receiver<()>) {
        let (held, dropped) = oneshot::channel();
        let work = async move {
            let _held: oneshot::Sender<()> = held;
            pending::<()>().await;
        };
        (work, dropped)
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_aborted_with_their_owner() {
        let (work, dropped) = endless();
        drop(Task::spawn("endless", work));
        dropped.await.expect_err("aborted");

        let ((one, one_dropped), (other, other_dropped)) = (endless(), endless());
        let mut tasks = Tasks::new();
        tasks.spawn("one", one);
        tasks.spawn("other", other);
        drop(tasks);
        one_dropped.await.expect_err("aborted");
        other_dropped.await.expect_err("aborted");

        let (work, dropped) = endless();
        let background = Background::default();
        background.spawn("endless", work);
        drop(background);
        dropped.await.expect_err("aborted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_task_has_released_its_resources() {
        let (work, mut dropped) = endless();
        let task = Task::spawn("endless", work);
        timeout(SECOND, task.ended()).await.expect_err("it goes on");
        task.stop().await;
        assert_eq!(dropped.try_recv(), Err(TryRecvError::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_a_task_goes_to_its_owner() {
        let mut task = Task::spawn("sum", async {
            sleep(SECOND).await;
            1 + 1
        });
        timeout(SECOND / 2, &mut task).await.expect_err("it takes longer");
        assert_eq!(task.await.unwrap(), 2);

        let mut tasks = Tasks::new();
        tasks.spawn("late", async { sleep(SECOND).await });
        tasks.spawn_fallible("early", async { Err(io::Error::other("no")) });
        assert_eq!(tasks.len(), 2);
        tasks.join_next().await.unwrap().unwrap();
        tasks.join_all().await;
        assert!(tasks.is_empty() && tasks.join_next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_logged_with_the_name_of_the_task() {
        let log = LogRecord::default();
        let _guard = log.start();
        let fails = || async { Err::<(), _>(io::Error::other("the port is taken")) };
        let task = Task::spawn_fallible("probes", fails());
        task.await.unwrap().expect_err("its owner gets it, too");
        let mut tasks = Tasks::new();
        tasks.spawn_fallible("webhook".to_owned(), fails());
        tasks.join_all().await;
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, name) in lines.iter().zip(["probes", "webhook"]) {
            assert!(line.contains("ERROR") && line.contains(&format!("task={name}")), "{line}");
            assert!(line.contains("the port is taken"), "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_logged_with_the_name_of_the_task() {
        let log = LogRecord::default();
        let _guard = log.start();
        let panics = |text: &'static str| async move { panic!("{text} is wrong") };
        let task: Task = Task::spawn("controller", panics("one"));
        assert!(task.await.unwrap_err().is_panic());
        let mut tasks: Tasks = Tasks::new();
        tasks.spawn("connection", panics("another"));
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        let background = Background::default();
        assert_eq!(background.complete::<()>("request", panics("a third")).await, None);
        let lines = log.lines();
        let expected = [("controller", "one"), ("connection", "another"), ("request", "a third")];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, (name, text)) in lines.iter().zip(expected) {
            assert!(line.contains(&format!("task={name}")), "{line}");
            assert!(line.contains(&format!("panicked: {text} is wrong")), "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_abort_is_not_logged() {
        let log = LogRecord::default();
        let _guard = log.start();
        Task::spawn("endless", endless().0).stop().await;
        assert_eq!(log.lines(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_background_task_continues_without_its_caller() {
        let (background, done) = (Background::default(), Arc::new(Mutex::new(false)));
        let set_done = done.clone();
        let work = async move {
            sleep(10 * SECOND).await;
            *set_done.lock().unwrap() = true;
        };
        timeout(SECOND, background.complete("slow", work)).await.expect_err("it takes longer");
        background.join().await;
        assert!(*done.lock().unwrap());
        assert_eq!(background.complete("fast", async { 7 }).await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn background_tasks_are_aborted_when_their_owner_stops_waiting() {
        let (background, (work, dropped)) = (Background::default(), endless());
        background.spawn("endless", work);
        timeout(SECOND, background.join()).await.expect_err("it never ends");
        dropped.await.expect_err("aborted");
        background.join().await;
    }

    #[tokio::test(start_paused = true)]
    async fn ended_background_tasks_are_removed() {
        let background = Background::default();
        for _ in 0..100 {
            background.complete("short", async {}).await;
        }
        assert!(background.lock().len() <= 2);
    }
}
