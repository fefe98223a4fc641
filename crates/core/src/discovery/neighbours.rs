//! The clusters announced in the local network: each stays until its goodbye, or until it does not
//! answer a query. Silent clusters are queried.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::Announcement;

/// Limit of neighbours.
pub const MAX_NEIGHBOURS: usize = 1000;
/// Time that a cluster has to answer a query.
pub const ANSWER_TIMEOUT: SignedDuration = SignedDuration::from_secs(2);
/// Time after which a query has been answered or not, with a margin for the mDNS daemon.
const ANSWER_DEADLINE: SignedDuration = SignedDuration::from_millis(2500);

/// A cluster that is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its last announcement.
    pub announcement: Announcement,
    /// Time of the last announcement or answered query.
    pub seen: Timestamp,
    /// Start of the current query.
    queried: Option<Timestamp>,
}

/// All neighbours, by the full names of their mDNS instances.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(BTreeMap<String, Neighbour>);

/// Effect of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourChange {
    /// The neighbour is new, or its announcement has changed.
    Updated,
    /// The same announcement again.
    Unchanged,
    /// Ignored, because there are too many neighbours.
    TooMany,
}

impl Neighbours {
    /// Records an announcement.
    pub fn announced(
        &mut self,
        name: &str,
        announcement: Announcement,
        now: Timestamp,
    ) -> NeighbourChange {
        let before = self.0.get(name);
        if before.is_none() && self.0.len() >= MAX_NEIGHBOURS {
            return NeighbourChange::TooMany;
        }
        let is_known = before.is_some_and(|before| before.announcement == announcement);
        self.0.insert(name.to_owned(), Neighbour { announcement, seen: now, queried: None });
        if is_known { NeighbourChange::Unchanged } else { NeighbourChange::Updated }
    }

    /// Removes a neighbour that has said goodbye or did not answer.
    pub fn remove(&mut self, name: &str) -> Option<Neighbour> {
        self.0.remove(name)
    }

    /// Removes all neighbours.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Cancels a query that could not be sent; it is due again.
    pub fn cancel_query(&mut self, name: &str) {
        if let Some(neighbour) = self.0.get_mut(name) {
            neighbour.queried = None;
        }
    }

    /// Ends the queries whose deadline has passed. Neighbours that are still there have answered;
    /// returns their names.
    pub fn confirmed(&mut self, now: Timestamp) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (name, neighbour) in &mut self.0 {
            if let Some(queried) =
                neighbour.queried.filter(|queried| after(*queried, ANSWER_DEADLINE) <= now)
            {
                (neighbour.seen, neighbour.queried) = (queried, None);
                names.insert(name.clone());
            }
        }
        names
    }

    /// Starts queries for neighbours without an announcement for half of their TTL, at most `max`
    /// at once. Returns their names.
    pub fn start_queries(&mut self, now: Timestamp, max: usize) -> Vec<String> {
        let overdue = |it: &Neighbour| it.queried.is_none() && after(it.seen, it.half_ttl()) <= now;
        let overdue = self.0.iter_mut().filter(|(_, it)| overdue(it)).take(max);
        overdue
            .map(|(name, neighbour)| {
                neighbour.queried = Some(now);
                name.clone()
            })
            .collect()
    }

    /// When the next query or deadline is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        let due = |it: &Neighbour| match it.queried {
            Some(queried) => after(queried, ANSWER_DEADLINE),
            None => after(it.seen, it.half_ttl()),
        };
        self.0.values().map(due).min()
    }

    /// The neighbour with this name.
    pub fn get(&self, name: &str) -> Option<&Neighbour> {
        self.0.get(name)
    }

    /// All neighbours.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Neighbour)> {
        self.0.iter()
    }
}

impl Neighbour {
    fn half_ttl(&self) -> SignedDuration {
        SignedDuration::from_millis(500 * i64::from(self.announcement.ttl))
    }
}

fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use tombolo_api::ClusterIdentity;

    use super::*;

    fn announcement(port: u16) -> Announcement {
        Announcement {
            cluster: ClusterIdentity {
                cluster_id: "milan-id".parse().unwrap(),
                cluster_name: "milan".parse().unwrap(),
            },
            addresses: ["10.0.0.5".parse().unwrap()].into(),
            port,
            fingerprint: None,
            group: None,
            ttl: 60,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_a_new_announcement_is_an_update() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.announced("milan", announcement(1), at(0)), NeighbourChange::Updated);
        assert_eq!(
            neighbours.announced("milan", announcement(1), at(1)),
            NeighbourChange::Unchanged
        );
        assert_eq!(neighbours.announced("milan", announcement(2), at(2)), NeighbourChange::Updated);
        assert!(neighbours.remove("milan").is_some() && neighbours.remove("milan").is_none());
        assert_eq!(neighbours.announced("milan", announcement(2), at(3)), NeighbourChange::Updated);
    }

    #[test]
    fn an_announced_neighbour_is_never_queried() {
        let mut neighbours = Neighbours::default();
        for second in [0, 20, 40, 60] {
            neighbours.announced("milan", announcement(1), at(second));
            assert_eq!(neighbours.start_queries(at(second + 19), 9), Vec::<String>::new());
            assert_eq!(neighbours.next_due(), Some(at(second + 30)));
        }
    }

    #[test]
    fn a_silent_neighbour_is_queried_and_stays_if_it_answers() {
        let mut neighbours = Neighbours::default();
        neighbours.announced("milan", announcement(1), at(0));
        assert_eq!(neighbours.start_queries(at(30), 9), ["milan"]);
        assert_eq!(
            neighbours.start_queries(at(30), 9),
            Vec::<String>::new(),
            "it has been queried"
        );
        let known = Timestamp::from_millisecond(32_500).unwrap();
        assert_eq!(neighbours.next_due(), Some(known));
        assert!(neighbours.confirmed(at(32)).is_empty(), "it may still answer");
        assert_eq!(neighbours.get("milan").unwrap().seen, at(0));
        assert_eq!(neighbours.confirmed(known), ["milan".to_owned()].into());
        assert_eq!(neighbours.get("milan").unwrap().seen, at(30));
        assert_eq!(neighbours.next_due(), Some(at(60)));
        neighbours.start_queries(at(60), 9);
        neighbours.remove("milan");
        assert!(neighbours.confirmed(at(63)).is_empty());
    }

    #[test]
    fn a_cancelled_query_is_no_answer() {
        let mut neighbours = Neighbours::default();
        neighbours.announced("milan", announcement(1), at(0));
        assert_eq!(neighbours.start_queries(at(30), 9), ["milan"]);
        neighbours.cancel_query("milan");
        assert!(neighbours.confirmed(at(33)).is_empty());
        assert_eq!(neighbours.start_queries(at(33), 9), ["milan"]);
    }

    #[test]
    fn concurrent_queries_are_limited() {
        let mut neighbours = Neighbours::default();
        for name in ["a", "b", "c"] {
            neighbours.announced(name, announcement(1), at(0));
        }
        assert_eq!(neighbours.start_queries(at(30), 2), ["a", "b"]);
        assert_eq!(neighbours.start_queries(at(31), 2), ["c"]);
    }

    #[test]
    fn the_number_of_neighbours_is_limited() {
        let mut neighbours = Neighbours::default();
        for number in 0..MAX_NEIGHBOURS {
            neighbours.announced(&number.to_string(), announcement(1), at(0));
        }
        assert_eq!(
            neighbours.announced("one more", announcement(1), at(0)),
            NeighbourChange::TooMany
        );
        assert_eq!(neighbours.announced("7", announcement(2), at(0)), NeighbourChange::Updated);
        assert_eq!(neighbours.iter().count(), MAX_NEIGHBOURS);
    }
}
