//! Expiry of entries that were discovered in the local network or in DNS.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::discovery::DiscoveryType;

use crate::view::Entry;

/// When a discovered entry expires, by its own annotations, unless it is announced or listed again;
/// never during a peering, or while one is wanted and possible. Whether a user has set `spec.join`
/// is checked by the caller. Discovery runs since `watching`, so entries do not expire for what it
/// could not have received before.
pub fn expires_at(entry: &Entry<'_>, watching: Timestamp, now: Timestamp) -> Option<Timestamp> {
    if !matches!(entry.kind, DiscoveryType::Lan | DiscoveryType::Wan) || is_held(entry) {
        return None;
    }
    let ttl = SignedDuration::from_secs(entry.ttl?.into());
    // A later time was written by another clock.
    let latest = now.checked_add(ttl).unwrap_or(Timestamp::MAX);
    let seen = entry.last_update.filter(|seen| *seen <= latest).or(entry.created)?;
    seen.max(watching).checked_add(ttl).ok()
}

/// Expiry times by the last announcements and DNS answers, by UID. Entries are not written each
/// time, so their own times are older.
#[derive(Clone, Debug, Default)]
pub struct Expiries(BTreeMap<String, Timestamp>);

impl Expiries {
    /// Records that the cluster of that entry was announced or listed, valid for `ttl` seconds.
    pub fn record(&mut self, entry: &Entry<'_>, seen: Timestamp, ttl: u32) {
        let until = seen.checked_add(SignedDuration::from_secs(ttl.into()));
        if let (Some(uid), Ok(until)) = (entry.uid, until) {
            self.0.insert(uid.to_owned(), until);
        }
    }

    /// When the entry expires: see [`expires_at`].
    pub fn expire_at(
        &self,
        entry: &Entry<'_>,
        watching: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let written = expires_at(entry, watching, now)?;
        let recorded = entry.uid.and_then(|uid| self.0.get(uid));
        Some(recorded.map_or(written, |recorded| written.max(*recorded)))
    }

    /// Forgets all other entries.
    pub fn keep_only(&mut self, known: &[Entry<'_>]) {
        let known: BTreeSet<_> = known.iter().filter_map(|entry| entry.uid).collect();
        self.0.retain(|uid, _| known.contains(uid.as_str()));
    }
}

/// Whether there is a peering, the other cluster requests one, or one is wanted and possible: that
/// cluster has issued an identity.
fn is_held(entry: &Entry<'_>) -> bool {
    let is_there = entry.outgoing.into_iter().chain(entry.incoming).any(|peering| peering.peered);
    let is_asked = entry.incoming.is_some_and(|peering| peering.peering_request.is_some());
    // A peering that is no longer wanted is still being taken down.
    let is_left = entry.outgoing.is_some_and(|peering| peering.peering_request.is_some());
    is_there || is_asked || if entry.join { entry.peer.is_authenticated } else { is_left }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_api::discovery::ForeignCluster;

    use super::*;
    use crate::discovery::entry::tests::{NOW, at, entry};

    const LONG_AGO: &str = "2026-05-01T00:00:00Z";

    fn goes(entry: &ForeignCluster) -> Option<Timestamp> {
        expires_at(&Entry::from_resource(entry), at(LONG_AGO), at(NOW))
    }

    #[test]
    fn entries_expire_unless_there_is_a_peering_or_can_be_one() {
        let request = json!({ "name": "rome", "namespace": "liqo-tenant-milan" });
        let authenticated = json!([{
            "type": "Authenticated", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": NOW,
        }]);
        let asked = json!({ "peered": false, "peeringRequest": request });
        let cases: [(bool, Value, bool); 9] = [
            (false, json!({}), true),
            (false, json!({ "conditions": authenticated }), true),
            (false, json!({ "incoming": { "peered": true } }), false),
            (false, json!({ "incoming": asked }), false),
            (false, json!({ "outgoing": asked }), false),
            (true, json!({ "outgoing": { "peered": true } }), false),
            (true, json!({ "conditions": authenticated }), false),
            // A peering was wanted and never came about.
            (true, json!({}), true),
            (true, json!({ "outgoing": asked }), true),
        ];
        for (join, status, expires) in cases {
            for kind in ["LAN", "WAN"] {
                let mut milan = entry("milan", kind, Some("milan-id"));
                milan.spec.join = join;
                milan.status = serde_json::from_value(status.clone()).unwrap();
                let expected = expires.then(|| at("2026-05-01T12:01:00Z"));
                assert_eq!(goes(&milan), expected, "{kind} {join} {status}");
            }
        }
        for kind in ["Manual", "IncomingPeering"] {
            assert_eq!(goes(&entry("m", kind, Some("x"))), None);
        }
    }

    #[test]
    fn the_ttl_starts_when_discovery_starts() {
        let milan = entry("milan", "LAN", Some("milan-id"));
        let (milan, later) = (Entry::from_resource(&milan), at("2026-05-01T13:00:00Z"));
        assert_eq!(expires_at(&milan, later, later), Some(at("2026-05-01T13:01:00Z")));
    }

    #[test]
    fn a_clock_that_is_ahead_does_not_prolong_an_entry() {
        let mut milan = entry("milan", "LAN", Some("milan-id"));
        for (said, goes_at) in [
            ("2026-05-01T12:01:00Z", "2026-05-01T12:02:00Z"),
            ("2026-05-01T12:01:01Z", "2026-05-01T12:01:00Z"),
            ("2036-05-01T12:00:00Z", "2026-05-01T12:01:00Z"),
        ] {
            let annotations = [("discovery.liqo.io/last-update-time".to_owned(), said.to_owned())];
            milan.metadata.annotations = Some(annotations.into());
            assert_eq!(goes(&milan), Some(at(goes_at)), "{said}");
        }
    }

    #[test]
    fn an_announcement_is_valid_for_its_full_ttl_though_it_was_not_written() {
        let mut expiries = Expiries::default();
        let (milan, turin) = (entry("milan", "WAN", Some("milan-id")), entry("turin", "WAN", None));
        let (milan, turin) = (Entry::from_resource(&milan), Entry::from_resource(&turin));
        let goes = |expiries: &Expiries| expiries.expire_at(&milan, at(LONG_AGO), at(NOW));
        assert_eq!(goes(&expiries), Some(at("2026-05-01T12:01:00Z")));
        expiries.record(&milan, at("2026-05-01T12:00:29Z"), 60);
        assert_eq!(goes(&expiries), Some(at("2026-05-01T12:01:29Z")));
        // From a cache: the same expiry.
        expiries.record(&milan, at("2026-05-01T12:00:29Z"), 31);
        assert_eq!(goes(&expiries), Some(at("2026-05-01T12:01:00Z")));
        expiries.record(&milan, at("2026-05-01T12:00:29Z"), 60);
        expiries.keep_only(&[turin]);
        assert_eq!(goes(&expiries), Some(at("2026-05-01T12:01:00Z")));
        let mut peered = entry("milan", "WAN", Some("milan-id"));
        peered.status = serde_json::from_value(json!({ "outgoing": { "peered": true } })).unwrap();
        let peered = Entry::from_resource(&peered);
        assert_eq!(expiries.expire_at(&peered, at(LONG_AGO), at(NOW)), None);
    }
}
