//! Backoff for clusters that can't be reached: anybody can announce a cluster that does not exist.

use std::time::Duration;

/// Within this time the usual retries of a queue apply: short outages end soon.
const SHORT_OUTAGE: Duration = Duration::from_secs(60);
/// An attempt that fails faster than this costs little.
const CHEAP_ATTEMPT: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(120);

/// How long to wait before the next attempt, where attempts have failed for `failing_for` and the
/// last one took `took`. Grows with the outage, so that recovery is noticed after a fraction of its
/// length. `None`: no extra pause.
pub fn connect_backoff(failing_for: Duration, took: Duration) -> Option<Duration> {
    let grown = (failing_for >= SHORT_OUTAGE).then(|| (failing_for / 4).min(MAX_BACKOFF));
    grown.max((took >= CHEAP_ATTEMPT).then_some(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(failing_for: u64, took: u64) -> Option<u64> {
        let seconds = Duration::from_secs;
        connect_backoff(seconds(failing_for), seconds(took)).map(|wait| wait.as_secs())
    }

    #[test]
    fn the_pause_grows_with_the_outage() {
        assert_eq!([0, 30, 59].map(|failing_for| after(failing_for, 0)), [None; 3]);
        let long = [60, 120, 480, 86_400].map(|failing_for| after(failing_for, 0));
        assert_eq!(long, [15, 30, 120, 120].map(Some));
    }

    #[test]
    fn the_pause_is_at_least_as_long_as_the_attempt() {
        assert_eq!(after(0, 5), Some(5));
        assert_eq!(after(60, 5), Some(15));
        assert_eq!(after(60, 20), Some(20));
    }
}
