//! Waiting for what can't be watched: a process that starts to answer.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const INTERVAL: Duration = Duration::from_millis(40);

/// Asks again and again until there is an answer. An error ends it at once.
pub(crate) async fn until<T, F>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(Error::Late { what: what.to_owned(), limit, hint: String::new() });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Runs async work to its end from a place that can't await, such as a drop.
pub(crate) fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime for one thread can be built")
                .block_on(work)
        });
        match worker.join() {
            Ok(result) => result,
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
    })
}
