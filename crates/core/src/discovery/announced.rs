//! How announcements in the local network change the entries.

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use tombolo_api::{
    ClusterId,
    config::DiscoveryConfig,
    discovery::{DiscoveryType, ForeignCluster},
};

use super::{
    Announcement, Neighbour,
    entry::{
        is_up_to_date, may_be_changed_by, may_repin, new_entry, object_name, refreshed, repin,
    },
    pin::{PinnedBy, pin},
};
use crate::view::Entry;

/// The change of an entry that a discovery requires.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryChange {
    /// Create an entry.
    Create(Box<ForeignCluster>),
    /// Refresh or take over an entry: the object to apply, with the UID of the entry.
    Update(Box<ForeignCluster>),
    /// The entry is up to date.
    Unchanged,
    /// The entry was written just now: write it later.
    Deferred,
    /// The entry belongs to somebody else, or there must not be one.
    Ignored,
    /// No new entry, because there are too many of that kind.
    TooMany,
}

/// Limit of entries made from announcements: anybody in the local network can invent clusters.
pub const MAX_DISCOVERED: usize = 1000;

/// The cluster that receives announcements.
#[derive(Clone, Copy, Debug)]
pub struct LocalCluster<'a> {
    /// Id of this cluster.
    pub us: &'a ClusterId,
    /// Its addresses in the local networks, with their prefixes.
    pub networks: &'a [IpNet],
    /// Its configuration.
    pub config: &'a DiscoveryConfig,
}

/// The change for a cluster that was announced at this time, if it is of our group. Anybody in the
/// network can announce anything, so an entry with a pinned certificate accepts only announcements
/// of that certificate. If an announcement has pinned it and there is no peering, another
/// announcement may pin another one. An announcement without a certificate is accepted only if it
/// changes nothing.
pub fn announced(
    announcement: &Announcement,
    known: &[Entry<'_>],
    local: &LocalCluster<'_>,
    time: Timestamp,
) -> EntryChange {
    let Some(url) = url_for(announcement, local) else { return EntryChange::Ignored };
    let Some(entry) = entry_of(announcement, &url, known) else {
        let found = known.iter().filter(|entry| entry.kind == DiscoveryType::Lan);
        if found.count() >= MAX_DISCOVERED {
            return EntryChange::TooMany;
        }
        let name = object_name(&announcement.cluster, known);
        let mut new = new_entry(&name, DiscoveryType::Lan, url, announcement.ttl, time);
        new.spec.join = local.config.autojoin;
        pin(&mut new, PinnedBy::Mdns, announcement.fingerprint);
        new.spec.cluster_identity = Some(announcement.cluster.clone());
        return EntryChange::Create(Box::new(new));
    };
    if !accepts(entry, announcement, &url) {
        return EntryChange::Ignored;
    }
    let matches_pin = matches_pin(entry, announcement, &url);
    let mut again = refreshed(entry, DiscoveryType::Lan, url, announcement.ttl, time);
    if !matches_pin {
        repin(&mut again, entry, PinnedBy::Mdns, announcement.fingerprint);
    } else if is_up_to_date(entry, &again, time) {
        return EntryChange::Unchanged;
    }
    EntryChange::Update(Box::new(again))
}

impl Neighbour {
    /// The change for this neighbour. Its entry is written at most once a second, however often its
    /// announcement changes.
    pub fn entry_change(
        &self,
        known: &[Entry<'_>],
        local: &LocalCluster<'_>,
        now: Timestamp,
    ) -> EntryChange {
        let change = announced(&self.announcement, known, local, self.seen);
        let is_early = matches!(change, EntryChange::Update(_))
            && entry_announced(&self.announcement, known, local)
                .is_some_and(|entry| was_just_written(entry, now));
        if is_early { EntryChange::Deferred } else { change }
    }
}

/// The entry that an announcement refreshes.
pub fn entry_announced<'k, 'a>(
    announcement: &Announcement,
    known: &'k [Entry<'a>],
    local: &LocalCluster<'_>,
) -> Option<&'k Entry<'a>> {
    let url = url_for(announcement, local)?;
    entry_of(announcement, &url, known).filter(|entry| accepts(entry, announcement, &url))
}

/// URL of another cluster of our group.
fn url_for(announcement: &Announcement, local: &LocalCluster<'_>) -> Option<String> {
    let is_other = announcement.cluster.cluster_id != *local.us;
    let is_meant = is_other && announcement.group == local.config.group;
    is_meant.then(|| announcement.auth_url(local.networks)).flatten()
}

fn entry_of<'k, 'a>(
    announcement: &Announcement,
    url: &str,
    known: &'k [Entry<'a>],
) -> Option<&'k Entry<'a>> {
    let id = &announcement.cluster.cluster_id;
    let unnamed = |entry: &&Entry<'_>| entry.peer.id().is_none() && entry.auth_url == url;
    known.iter().find(|entry| entry.peer.id() == Some(id)).or_else(|| known.iter().find(unnamed))
}

/// Whether an announcement may change an entry.
fn accepts(entry: &Entry<'_>, announcement: &Announcement, url: &str) -> bool {
    entry.deleted.is_none()
        && may_be_changed_by(entry, DiscoveryType::Lan)
        && (matches_pin(entry, announcement, url)
            || may_repin(entry, PinnedBy::Mdns, announcement.fingerprint))
}

/// Whether an announcement agrees with the pinned certificate.
fn matches_pin(entry: &Entry<'_>, announcement: &Announcement, url: &str) -> bool {
    match (entry.fingerprint, announcement.fingerprint) {
        (None, _) => true,
        (Some(pin), Some(said)) => pin == said,
        // It announces no certificate, so the one presented first was pinned.
        (Some(_), None) => {
            entry.kind == DiscoveryType::Lan
                && entry.pinned_by() == Some(PinnedBy::FirstUse)
                && entry.auth_url == url
        }
    }
}

/// A time in the future was written by another clock.
fn was_just_written(entry: &Entry<'_>, now: Timestamp) -> bool {
    let just_now = SignedDuration::ZERO..SignedDuration::from_secs(1);
    entry.last_update.is_some_and(|last| just_now.contains(&now.duration_since(last)))
}

#[cfg(test)]
mod tests {
    use tombolo_api::ClusterIdentity;

    use super::*;
    use crate::discovery::{
        Neighbours,
        entry::tests::{NOW, at, entry, views},
    };

    fn announcement(id: &str) -> Announcement {
        Announcement {
            cluster: ClusterIdentity {
                cluster_id: id.parse().unwrap(),
                cluster_name: "milan".parse().unwrap(),
            },
            addresses: ["10.0.0.5".parse().unwrap()].into(),
            port: 31200,
            fingerprint: Some("0f".repeat(32).parse().unwrap()),
            group: None,
            ttl: 60,
        }
    }

    fn change_by(
        announcement: &Announcement,
        known: &[ForeignCluster],
        config: &DiscoveryConfig,
        time: &str,
    ) -> EntryChange {
        let local = LocalCluster { us: &"rome-id".parse().unwrap(), networks: &[], config };
        announced(announcement, &views(known), &local, at(time))
    }

    fn change(id: &str, known: &[ForeignCluster]) -> EntryChange {
        change_by(&announcement(id), known, &DiscoveryConfig::default(), LATER)
    }

    /// More than half of the TTL after the last update.
    const LATER: &str = "2026-05-01T12:00:31Z";

    #[test]
    fn an_unknown_cluster_gets_an_entry() {
        let EntryChange::Create(new) = change("milan-id", &[]) else { panic!("not new") };
        assert_eq!(new.metadata.name.as_deref(), Some("milan"));
        assert_eq!(new.spec.auth_url, "https://10.0.0.5:31200");
        assert_eq!(new.spec.ttl, Some(60));
        assert!(new.spec.fingerprint.is_some() && !new.spec.join);
        assert_eq!(Entry::from_resource(&new).kind, DiscoveryType::Lan);
    }

    #[test]
    fn another_cluster_of_that_name_gets_part_of_its_id() {
        let known = [entry("milan", "LAN", Some("other-id"))];
        let EntryChange::Create(new) = change("milan-id", &known) else { panic!("not new") };
        assert_eq!(new.metadata.name.as_deref(), Some("milan-milan"));
    }

    #[test]
    fn an_entry_is_refreshed_or_taken_over_but_never_joined_or_pinned_again() {
        for kind in ["LAN", "IncomingPeering"] {
            let known = [entry("there", kind, Some("milan-id"))];
            let EntryChange::Update(again) = change("milan-id", &known) else { panic!("{kind}") };
            assert_eq!(again.metadata.name.as_deref(), Some("there"));
            assert_eq!(again.metadata.uid, known[0].metadata.uid);
            assert_eq!(again.spec.fingerprint, None);
            assert!(!again.spec.join);
        }
    }

    #[test]
    fn a_pinned_entry_accepts_only_its_own_certificate() {
        let mut pinned = entry("there", "LAN", Some("milan-id"));
        pinned.spec.fingerprint = announcement("milan-id").fingerprint;
        assert!(matches!(change("milan-id", &[pinned.clone()]), EntryChange::Update(_)));
        for fingerprint in [None, Some("00".repeat(32).parse().unwrap())] {
            let addresses = ["10.0.0.66".parse().unwrap()].into();
            let spoofed = Announcement { fingerprint, addresses, ..announcement("milan-id") };
            let (known, config) = ([pinned.clone()], DiscoveryConfig::default());
            let said = change_by(&spoofed, &known, &config, LATER);
            assert_eq!(said, EntryChange::Ignored);
            let local =
                LocalCluster { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
            let known = views(&known);
            assert!(entry_announced(&spoofed, &known, &local).is_none());
            assert!(entry_announced(&announcement("milan-id"), &known, &local).is_some());
        }
    }

    #[test]
    fn an_announcement_replaces_an_announced_pin_unless_there_is_a_peering() {
        let EntryChange::Create(new) = change("milan-id", &[]) else { panic!("not new") };
        let pinned_by = |entry: &ForeignCluster| Entry::from_resource(entry).pinned_by();
        assert_eq!(pinned_by(&new), Some(PinnedBy::Mdns));
        let fingerprint = Some("00".repeat(32).parse().unwrap());
        let rotated = Announcement { fingerprint, ..announcement("milan-id") };
        let change_of = |entry: &ForeignCluster, it: &Announcement| {
            change_by(it, std::slice::from_ref(entry), &DiscoveryConfig::default(), NOW)
        };
        let EntryChange::Update(again) = change_of(&new, &rotated) else { panic!("left alone") };
        let pinned = (again.spec.fingerprint, pinned_by(&again));
        assert_eq!(pinned, (fingerprint, Some(PinnedBy::Mdns)));
        let silent = Announcement { fingerprint: None, ..rotated.clone() };
        assert_eq!(change_of(&new, &silent), EntryChange::Ignored);
        let mut peered = new.clone();
        peered.spec.join = true;
        assert_eq!(change_of(&peered, &rotated), EntryChange::Ignored);
        for by in [PinnedBy::FirstUse, PinnedBy::Dns, PinnedBy::Hand] {
            let mut other = new.clone();
            pin(&mut other, by, new.spec.fingerprint);
            assert_eq!(change_of(&other, &rotated), EntryChange::Ignored, "{by:?}");
        }
    }

    #[test]
    fn manual_entries_are_ignored() {
        for known in [entry("m", "Manual", Some("milan-id")), entry("m", "Manual", None)] {
            assert_eq!(change("milan-id", &[known]), EntryChange::Ignored);
        }
    }

    #[test]
    fn own_announcements_and_other_groups_are_ignored() {
        assert_eq!(change("rome-id", &[]), EntryChange::Ignored);
        let mut other = announcement("milan-id");
        other.group = Some("campus".to_owned());
        let config = DiscoveryConfig::default();
        assert_eq!(change_by(&other, &[], &config, NOW), EntryChange::Ignored);
        let config = DiscoveryConfig { group: Some("campus".to_owned()), ..config };
        assert!(matches!(change_by(&other, &[], &config, NOW), EntryChange::Create(_)));
    }

    #[test]
    fn an_unchanged_entry_is_written_after_half_of_its_ttl() {
        let (known, config) =
            ([entry("there", "LAN", Some("milan-id"))], DiscoveryConfig::default());
        let milan = announcement("milan-id");
        assert_eq!(change_by(&milan, &known, &config, NOW), EntryChange::Unchanged);
        let soon = "2026-05-01T12:00:29Z";
        assert_eq!(change_by(&milan, &known, &config, soon), EntryChange::Unchanged);
        assert!(matches!(change_by(&milan, &known, &config, LATER), EntryChange::Update(_)));
        let moved = Announcement { port: 443, ..milan.clone() };
        assert!(matches!(change_by(&moved, &known, &config, NOW), EntryChange::Update(_)));
        let longer = Announcement { ttl: 61, ..milan.clone() };
        assert!(matches!(change_by(&longer, &known, &config, NOW), EntryChange::Update(_)));
        let known = [entry("there", "IncomingPeering", Some("milan-id"))];
        assert!(matches!(change_by(&milan, &known, &config, NOW), EntryChange::Update(_)));
    }

    #[test]
    fn an_entry_is_written_at_most_once_a_second() {
        let config = DiscoveryConfig::default();
        let local =
            LocalCluster { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
        let known = [entry("there", "LAN", Some("milan-id"))];
        let change_at = |announcement: Announcement, now: &str| {
            let mut neighbours = Neighbours::default();
            neighbours.announced("milan", announcement, at(NOW));
            neighbours.get("milan").unwrap().entry_change(&views(&known), &local, at(now))
        };
        let milan = announcement("milan-id");
        assert_eq!(change_at(milan.clone(), NOW), EntryChange::Unchanged);
        let moved = Announcement { port: 443, ..milan.clone() };
        let brief = Announcement { ttl: 1, ..milan };
        for other in [moved, brief] {
            for now in [NOW, "2026-05-01T12:00:00.999Z"] {
                assert_eq!(change_at(other.clone(), now), EntryChange::Deferred);
            }
            // However old the announcement, and though a clock was set back.
            for now in ["2026-05-01T12:00:01Z", "2026-05-01T11:00:00Z"] {
                assert!(matches!(change_at(other.clone(), now), EntryChange::Update(_)), "{now}");
            }
        }
    }

    #[test]
    fn an_announcement_without_a_certificate_is_accepted_at_the_same_url() {
        let silent = Announcement { fingerprint: None, ..announcement("milan-id") };
        let config = DiscoveryConfig::default();
        let change_of = |entry: &ForeignCluster, it: &Announcement| {
            change_by(it, std::slice::from_ref(entry), &config, LATER)
        };
        let pinned = |kind: &str, by: PinnedBy| {
            let mut entry = entry("there", kind, Some("milan-id"));
            pin(&mut entry, by, Some("0f".repeat(32).parse().unwrap()));
            entry
        };
        let there = pinned("LAN", PinnedBy::FirstUse);
        let EntryChange::Update(again) = change_of(&there, &silent) else { panic!("left alone") };
        assert_eq!((again.spec.fingerprint, &again.metadata.resource_version), (None, &None));
        let local =
            LocalCluster { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
        assert!(entry_announced(&silent, &[Entry::from_resource(&there)], &local).is_some());
        let elsewhere = Announcement { port: 443, ..silent.clone() };
        assert_eq!(change_of(&there, &elsewhere), EntryChange::Ignored);
        for by in [PinnedBy::Mdns, PinnedBy::Dns, PinnedBy::Hand] {
            assert_eq!(change_of(&pinned("LAN", by), &silent), EntryChange::Ignored, "{by:?}");
        }
        let asked = pinned("IncomingPeering", PinnedBy::FirstUse);
        assert_eq!(change_of(&asked, &silent), EntryChange::Ignored);
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let name = |number: usize| format!("cluster-{number}");
        let made = |number| entry(&name(number), "LAN", Some(&name(number)));
        let mut known: Vec<ForeignCluster> = (1..MAX_DISCOVERED).map(made).collect();
        known.push(entry("other", "WAN", Some("other-id")));
        assert!(matches!(change("milan-id", &known), EntryChange::Create(_)));
        known.push(made(0));
        assert_eq!(change("milan-id", &known), EntryChange::TooMany);
        assert!(
            matches!(change(&name(7), &known), EntryChange::Update(_)),
            "existing entries are still refreshed"
        );
    }

    #[test]
    fn an_unreachable_cluster_gets_no_entry() {
        let mut milan = announcement("milan-id");
        let networks = ["10.0.0.5/24".parse().unwrap()];
        let config = DiscoveryConfig::default();
        let local =
            LocalCluster { us: &"rome-id".parse().unwrap(), networks: &networks, config: &config };
        assert_eq!(announced(&milan, &[], &local, at(NOW)), EntryChange::Ignored);
        milan.addresses.insert("10.0.0.6".parse().unwrap());
        let EntryChange::Create(new) = announced(&milan, &[], &local, at(NOW)) else {
            panic!("not new")
        };
        assert_eq!(new.spec.auth_url, "https://10.0.0.6:31200");
    }
}
