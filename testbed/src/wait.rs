//! Waiting for what can't be watched: a process that starts to answer, and whatever a test asks for.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const INTERVAL: Duration = Duration::from_millis(40);

/// How soon a test asks again, at first and at last: what it asks may start a program each time.
const FIRST_TEST_INTERVAL: Duration = Duration::from_millis(25);
const LAST_TEST_INTERVAL: Duration = Duration::from_millis(100);

/// Longer than anything takes that a test waits for without a limit of its own.
const PATIENCE: Duration = Duration::from_secs(90);

/// Asks until the answer is as wanted, and returns it.
///
/// # Panics
/// With the last answer when it takes too long.
pub async fn eventually<T: Debug>(
    what: &str,
    ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    ask_until(PATIENCE, what, ask, wanted).await.0
}

/// Asks until there is an answer.
///
/// # Panics
/// When it takes too long.
pub async fn answer_to<T: Debug>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually(what, ask, Option::is_some).await.expect("there is one")
}

/// Asks until the answer is as wanted; says, and returns, how long that took.
///
/// # Panics
/// With the last answer when it takes longer than the limit.
pub async fn within<T: Debug>(
    limit: Duration,
    what: &str,
    ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> Duration {
    let took = ask_until(limit, what, ask, wanted).await.1;
    eprintln!("{what}: after {:.1} s", took.as_secs_f32());
    took
}

/// The answer, and when it was asked for.
async fn ask_until<T: Debug>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> (T, Duration) {
    let start = Instant::now();
    loop {
        let asked = start.elapsed();
        let answer = ask().await;
        if wanted(&answer) {
            return (answer, asked);
        }
        assert!(asked < limit, "not within {limit:?}: {what}: {answer:#?}");
        tokio::time::sleep(test_interval(start.elapsed())).await;
    }
}

/// In proportion to the time waited so far: what happens soon is seen soon.
fn test_interval(waited: Duration) -> Duration {
    (waited / 4).clamp(FIRST_TEST_INTERVAL, LAST_TEST_INTERVAL)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_asks_less_often_the_longer_it_waits() {
        let after = |millis| test_interval(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 100, 200, 400, 9000].map(after), [25, 25, 50, 100, 100]);
    }
}
