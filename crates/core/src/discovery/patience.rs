//! How long to leave a cluster alone that could not be met: anybody can announce one that is not there.

use std::time::Duration;

/// A short outage is over soon: for so long it is tried as often as anything else that fails.
const SHORT: Duration = Duration::from_secs(60);
/// Who fails within this costs little.
const QUICK: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);

/// How long to leave a cluster alone that it has been in vain to ask for so long, and that took so long
/// to fail now: the longer, the longer, so that what comes back is noticed after a fraction of the time
/// that it was away. `None`: it may be there any moment.
pub fn patience(in_vain: Duration, took: Duration) -> Option<Duration> {
    let grown = (in_vain >= SHORT).then(|| (in_vain / 4).min(LONGEST));
    grown.max((took >= QUICK).then_some(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(in_vain: u64, took: u64) -> Option<u64> {
        let seconds = Duration::from_secs;
        patience(seconds(in_vain), seconds(took)).map(|wait| wait.as_secs())
    }

    #[test]
    fn who_is_not_there_is_left_alone_for_longer_and_longer() {
        assert_eq!([0, 30, 59].map(|in_vain| after(in_vain, 0)), [None; 3]);
        let long = [60, 120, 480, 86_400].map(|in_vain| after(in_vain, 0));
        assert_eq!(long, [15, 30, 120, 120].map(Some));
    }

    #[test]
    fn who_makes_us_wait_waits_as_long() {
        assert_eq!(after(0, 5), Some(5));
        assert_eq!(after(60, 5), Some(15));
        assert_eq!(after(60, 20), Some(20));
    }
}
