//! Waiting by polling, where no watch is possible: for processes to answer, and for conditions of
//! tests.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const INTERVAL: Duration = Duration::from_millis(40);

/// How long a test waits between two checks, at first and at last: a check may start a program.
const FIRST_TEST_INTERVAL: Duration = Duration::from_millis(25);
const LAST_TEST_INTERVAL: Duration = Duration::from_millis(100);

/// Timeout of waits without a limit of their own.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Polls until the answer is as wanted, and returns it.
///
/// # Panics
/// On timeout, with the last answer.
pub async fn eventually<T: Debug>(
    what: &str,
    ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    poll_until(TIMEOUT, what, ask, wanted).await.0
}

/// Polls until there is an answer.
///
/// # Panics
/// On timeout.
pub async fn answer_to<T: Debug>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually(what, ask, Option::is_some).await.expect("there is one")
}

/// Polls until the answer is as wanted; prints and returns the elapsed time.
///
/// # Panics
/// On timeout, with the last answer.
pub async fn within<T: Debug>(
    limit: Duration,
    what: &str,
    ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> Duration {
    let took = poll_until(limit, what, ask, wanted).await.1;
    eprintln!("{what}: after {:.1} s", took.as_secs_f32());
    took
}

/// The answer, and the time of its request.
async fn poll_until<T: Debug>(
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

/// In proportion to the time waited so far: short waits get short intervals.
fn test_interval(waited: Duration) -> Duration {
    (waited / 4).clamp(FIRST_TEST_INTERVAL, LAST_TEST_INTERVAL)
}

/// Polls until there is an answer. An error ends it immediately.
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

/// Runs a future to completion from synchronous code, such as a drop.
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
