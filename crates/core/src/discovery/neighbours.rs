//! Who is there in the local network: those who were heard, until they say goodbye or, asked
//! because they have been silent, do not answer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::Announcement;

/// As many clusters of a local network are used.
pub const MOST_HEARD: usize = 1000;
/// How long a cluster may take to answer that it is still there.
pub const ANSWER: SignedDuration = SignedDuration::from_secs(2);
/// After so long it is known whether it has: who asks on our behalf takes a moment to begin.
const KNOWN: SignedDuration = SignedDuration::from_millis(2500);

/// A cluster that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// What it says.
    pub announcement: Announcement,
    /// When it was heard last, or was asked and has answered.
    pub seen: Timestamp,
    /// When it was asked whether it is still there.
    asked: Option<Timestamp>,
}

/// All of them, by the full names of their announcements.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(BTreeMap<String, Neighbour>);

/// What it means that somebody was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nobody knew it, or it said something else.
    New,
    /// It is still there.
    Known,
    /// There are too many already.
    TooMany,
}

impl Neighbours {
    /// Somebody was heard.
    pub fn hear(&mut self, name: &str, announcement: Announcement, now: Timestamp) -> News {
        let before = self.0.get(name);
        if before.is_none() && self.0.len() >= MOST_HEARD {
            return News::TooMany;
        }
        let is_known = before.is_some_and(|before| before.announcement == announcement);
        self.0.insert(name.to_owned(), Neighbour { announcement, seen: now, asked: None });
        if is_known { News::Known } else { News::New }
    }

    /// Somebody has said goodbye, or has not answered.
    pub fn lose(&mut self, name: &str) -> Option<Neighbour> {
        self.0.remove(name)
    }

    /// Nobody listens any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Somebody could not be asked, and is to be asked again.
    pub fn not_asked(&mut self, name: &str) {
        if let Some(neighbour) = self.0.get_mut(name) {
            neighbour.asked = None;
        }
    }

    /// Those who were asked, had the time to answer, and are still there: they have.
    pub fn answered(&mut self, now: Timestamp) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (name, neighbour) in &mut self.0 {
            if let Some(asked) = neighbour.asked.filter(|asked| after(*asked, KNOWN) <= now) {
                (neighbour.seen, neighbour.asked) = (asked, None);
                names.insert(name.clone());
            }
        }
        names
    }

    /// Whom to ask now, as they were not heard for half of the time for which their word holds: at
    /// most so many at once.
    pub fn ask(&mut self, now: Timestamp, most: usize) -> Vec<String> {
        let silent = |it: &Neighbour| it.asked.is_none() && after(it.seen, it.half()) <= now;
        let silent = self.0.iter_mut().filter(|(_, it)| silent(it)).take(most);
        silent
            .map(|(name, neighbour)| {
                neighbour.asked = Some(now);
                name.clone()
            })
            .collect()
    }

    /// When there is somebody to ask, or an answer is due.
    pub fn next(&self) -> Option<Timestamp> {
        let due = |it: &Neighbour| match it.asked {
            Some(asked) => after(asked, KNOWN),
            None => after(it.seen, it.half()),
        };
        self.0.values().map(due).min()
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Neighbour> {
        self.0.get(name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Neighbour)> {
        self.0.iter()
    }
}

impl Neighbour {
    fn half(&self) -> SignedDuration {
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
    fn only_what_is_new_is_news() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.hear("milan", announcement(1), at(0)), News::New);
        assert_eq!(neighbours.hear("milan", announcement(1), at(1)), News::Known);
        assert_eq!(neighbours.hear("milan", announcement(2), at(2)), News::New);
        assert!(neighbours.lose("milan").is_some() && neighbours.lose("milan").is_none());
        assert_eq!(neighbours.hear("milan", announcement(2), at(3)), News::New);
    }

    #[test]
    fn who_is_heard_is_never_asked() {
        let mut neighbours = Neighbours::default();
        for second in [0, 20, 40, 60] {
            neighbours.hear("milan", announcement(1), at(second));
            assert_eq!(neighbours.ask(at(second + 19), 9), Vec::<String>::new());
            assert_eq!(neighbours.next(), Some(at(second + 30)));
        }
    }

    #[test]
    fn who_is_silent_is_asked_and_seen_if_it_answers() {
        let mut neighbours = Neighbours::default();
        neighbours.hear("milan", announcement(1), at(0));
        assert_eq!(neighbours.ask(at(30), 9), ["milan"]);
        assert_eq!(neighbours.ask(at(30), 9), Vec::<String>::new(), "it has been asked");
        let known = Timestamp::from_millisecond(32_500).unwrap();
        assert_eq!(neighbours.next(), Some(known));
        assert!(neighbours.answered(at(32)).is_empty(), "it may still be silent");
        assert_eq!(neighbours.get("milan").unwrap().seen, at(0));
        assert_eq!(neighbours.answered(known), ["milan".to_owned()].into());
        assert_eq!(neighbours.get("milan").unwrap().seen, at(30));
        assert_eq!(neighbours.next(), Some(at(60)));
        neighbours.ask(at(60), 9);
        neighbours.lose("milan");
        assert!(neighbours.answered(at(63)).is_empty());
    }

    #[test]
    fn who_could_not_be_asked_has_not_answered() {
        let mut neighbours = Neighbours::default();
        neighbours.hear("milan", announcement(1), at(0));
        assert_eq!(neighbours.ask(at(30), 9), ["milan"]);
        neighbours.not_asked("milan");
        assert!(neighbours.answered(at(33)).is_empty());
        assert_eq!(neighbours.ask(at(33), 9), ["milan"]);
    }

    #[test]
    fn not_all_are_asked_at_once() {
        let mut neighbours = Neighbours::default();
        for name in ["a", "b", "c"] {
            neighbours.hear(name, announcement(1), at(0));
        }
        assert_eq!(neighbours.ask(at(30), 2), ["a", "b"]);
        assert_eq!(neighbours.ask(at(31), 2), ["c"]);
    }

    #[test]
    fn a_crowd_is_not_listened_to() {
        let mut neighbours = Neighbours::default();
        for number in 0..MOST_HEARD {
            neighbours.hear(&number.to_string(), announcement(1), at(0));
        }
        assert_eq!(neighbours.hear("one more", announcement(1), at(0)), News::TooMany);
        assert_eq!(neighbours.hear("7", announcement(2), at(0)), News::New);
        assert_eq!(neighbours.iter().count(), MOST_HEARD);
    }
}
