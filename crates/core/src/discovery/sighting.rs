//! What it means for the database of clusters that one was seen in the local network.

use std::borrow::Borrow;

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
        first_sighted, follows, gives_way, kind, last_update, object_name, pin_anew, says_already,
        sighted_again,
    },
    pin::{PinnedBy, pin},
};
use crate::tenant::id_of;

/// What a sighting of a cluster leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum Sighting {
    /// A new entry.
    New(Box<ForeignCluster>),
    /// An entry is seen again, or taken over: what is to be applied to it, and to no other that
    /// has its name by then.
    Again(Box<ForeignCluster>),
    /// The entry says so already.
    Unchanged,
    /// The entry was written just now, and has to be written again later.
    TooSoon,
    /// The entry is somebody else's, or there must not be one.
    LeftAlone,
    /// There would be a new entry, but there are too many of that kind.
    TooMany,
}

/// As many entries are made of what the local network says: whoever is in it can invent clusters.
pub const MOST_FOUND: usize = 1000;

/// The cluster that looks around.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    /// Its id.
    pub us: &'a ClusterId,
    /// Its addresses in the local networks, with their networks.
    pub networks: &'a [IpNet],
    /// Its settings.
    pub config: &'a DiscoveryConfig,
}

/// A cluster was seen in the local network at that time, which means something here if its group
/// is ours. Anybody in the network can say anything: about an entry whose certificate is pinned,
/// only who announces that certificate is heard. Where it was an announcement that has pinned it, and
/// there is no peering, another announcement may as well pin another one. Who announces none is heard
/// where the entry has it: that says nothing new.
pub fn seen(
    announcement: &Announcement,
    known: &[impl Borrow<ForeignCluster>],
    here: &Here<'_>,
    time: Timestamp,
) -> Sighting {
    let Some(url) = url_here(announcement, here) else { return Sighting::LeftAlone };
    let Some(entry) = entry_of(announcement, &url, known) else {
        let is_found = |entry: &&ForeignCluster| kind(entry) == DiscoveryType::Lan;
        if known.iter().map(Borrow::borrow).filter(is_found).count() >= MOST_FOUND {
            return Sighting::TooMany;
        }
        let name = object_name(&announcement.cluster, known);
        let mut new = first_sighted(&name, DiscoveryType::Lan, url, announcement.ttl, time);
        new.spec.join = here.config.autojoin;
        pin(&mut new, PinnedBy::Mdns, announcement.fingerprint);
        new.spec.cluster_identity = Some(announcement.cluster.clone());
        return Sighting::New(Box::new(new));
    };
    if !listens_to(entry, announcement, &url) {
        return Sighting::LeftAlone;
    }
    let is_vouched_for = is_vouched_for(entry, announcement, &url);
    let mut again = sighted_again(entry, DiscoveryType::Lan, url, announcement.ttl, time);
    if !is_vouched_for {
        pin_anew(&mut again, entry, PinnedBy::Mdns, announcement.fingerprint);
    } else if says_already(entry, &again, time) {
        return Sighting::Unchanged;
    }
    Sighting::Again(Box::new(again))
}

impl Neighbour {
    /// What it means now that it is there. However often it says something else, its entry is written
    /// at most once a second.
    pub fn sighting(
        &self,
        known: &[impl Borrow<ForeignCluster>],
        here: &Here<'_>,
        now: Timestamp,
    ) -> Sighting {
        let sighting = seen(&self.announcement, known, here, self.seen);
        let is_early = matches!(sighting, Sighting::Again(_))
            && entry_seen(&self.announcement, known, here)
                .is_some_and(|entry| is_just_written(entry, now));
        if is_early { Sighting::TooSoon } else { sighting }
    }
}

/// The entry for which it counts that a cluster is seen.
pub fn entry_seen<'a>(
    announcement: &Announcement,
    known: &'a [impl Borrow<ForeignCluster>],
    here: &Here<'_>,
) -> Option<&'a ForeignCluster> {
    let url = url_here(announcement, here)?;
    entry_of(announcement, &url, known).filter(|entry| listens_to(entry, announcement, &url))
}

/// Where a cluster is reached that means something here.
fn url_here(announcement: &Announcement, here: &Here<'_>) -> Option<String> {
    let is_other = announcement.cluster.cluster_id != *here.us;
    let is_meant = is_other && announcement.group == here.config.group;
    is_meant.then(|| announcement.auth_url(here.networks)).flatten()
}

fn entry_of<'a>(
    announcement: &Announcement,
    url: &str,
    known: &'a [impl Borrow<ForeignCluster>],
) -> Option<&'a ForeignCluster> {
    let id = &announcement.cluster.cluster_id;
    let mut known = known.iter().map(Borrow::borrow);
    let unnamed = |entry: &&ForeignCluster| {
        entry.spec.cluster_identity.is_none() && entry.spec.auth_url == url
    };
    known.clone().find(|entry| id_of(entry) == Some(id)).or_else(|| known.find(unnamed))
}

/// Whether an entry may be changed by what is announced.
fn listens_to(entry: &ForeignCluster, announcement: &Announcement, url: &str) -> bool {
    entry.metadata.deletion_timestamp.is_none()
        && gives_way(entry, DiscoveryType::Lan)
        && (is_vouched_for(entry, announcement, url)
            || follows(entry, PinnedBy::Mdns, announcement.fingerprint))
}

/// Whether what is announced goes with the certificate that the entry is pinned to.
fn is_vouched_for(entry: &ForeignCluster, announcement: &Announcement, url: &str) -> bool {
    match (entry.spec.fingerprint, announcement.fingerprint) {
        (None, _) => true,
        (Some(pin), Some(said)) => pin == said,
        // It never names one, so the first that it has shown was pinned.
        (Some(_), None) => {
            kind(entry) == DiscoveryType::Lan
                && PinnedBy::of(entry) == Some(PinnedBy::FirstUse)
                && entry.spec.auth_url == url
        }
    }
}

/// A time ahead of ours was written by another clock.
fn is_just_written(entry: &ForeignCluster, now: Timestamp) -> bool {
    let just_now = SignedDuration::ZERO..SignedDuration::from_secs(1);
    last_update(entry).is_some_and(|last| just_now.contains(&now.duration_since(last)))
}

#[cfg(test)]
mod tests {
    use tombolo_api::ClusterIdentity;

    use super::*;
    use crate::discovery::{
        Neighbours,
        entry::tests::{NOW, at, entry},
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

    fn sighting_by(
        announcement: &Announcement,
        known: &[ForeignCluster],
        config: &DiscoveryConfig,
        time: &str,
    ) -> Sighting {
        let here = Here { us: &"rome-id".parse().unwrap(), networks: &[], config };
        seen(announcement, known, &here, at(time))
    }

    fn sighting(id: &str, known: &[ForeignCluster]) -> Sighting {
        sighting_by(&announcement(id), known, &DiscoveryConfig::default(), LATER)
    }

    /// More than half of the TTL after what the entries say.
    const LATER: &str = "2026-05-01T12:00:31Z";

    #[test]
    fn an_unknown_cluster_becomes_an_entry() {
        let Sighting::New(new) = sighting("milan-id", &[]) else { panic!("not new") };
        assert_eq!(new.metadata.name.as_deref(), Some("milan"));
        assert_eq!(new.spec.auth_url, "https://10.0.0.5:31200");
        assert_eq!(new.spec.ttl, Some(60));
        assert!(new.spec.fingerprint.is_some() && !new.spec.join);
        assert_eq!(kind(&new), DiscoveryType::Lan);
    }

    #[test]
    fn another_cluster_of_that_name_gets_part_of_its_id() {
        let known = [entry("milan", "LAN", Some("other-id"))];
        let Sighting::New(new) = sighting("milan-id", &known) else { panic!("not new") };
        assert_eq!(new.metadata.name.as_deref(), Some("milan-milan"));
    }

    #[test]
    fn an_entry_is_refreshed_or_taken_over_but_never_joined_or_pinned_again() {
        for kind in ["LAN", "IncomingPeering"] {
            let known = [entry("there", kind, Some("milan-id"))];
            let Sighting::Again(again) = sighting("milan-id", &known) else { panic!("{kind}") };
            assert_eq!(again.metadata.name.as_deref(), Some("there"));
            assert_eq!(again.metadata.uid, known[0].metadata.uid);
            assert_eq!(again.spec.fingerprint, None);
            assert!(!again.spec.join);
        }
    }

    #[test]
    fn a_pinned_entry_listens_only_to_its_own_certificate() {
        let mut pinned = entry("there", "LAN", Some("milan-id"));
        pinned.spec.fingerprint = announcement("milan-id").fingerprint;
        assert!(matches!(sighting("milan-id", &[pinned.clone()]), Sighting::Again(_)));
        for fingerprint in [None, Some("00".repeat(32).parse().unwrap())] {
            let addresses = ["10.0.0.66".parse().unwrap()].into();
            let spoofed = Announcement { fingerprint, addresses, ..announcement("milan-id") };
            let (known, config) = ([pinned.clone()], DiscoveryConfig::default());
            let said = sighting_by(&spoofed, &known, &config, LATER);
            assert_eq!(said, Sighting::LeftAlone);
            let here = Here { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
            assert_eq!(entry_seen(&spoofed, &known, &here), None);
            assert_eq!(entry_seen(&announcement("milan-id"), &known, &here), Some(&known[0]));
        }
    }

    #[test]
    fn what_an_announcement_has_pinned_another_pins_anew_unless_there_is_a_peering() {
        let Sighting::New(new) = sighting("milan-id", &[]) else { panic!("not new") };
        assert_eq!(PinnedBy::of(&new), Some(PinnedBy::Mdns));
        let fingerprint = Some("00".repeat(32).parse().unwrap());
        let rotated = Announcement { fingerprint, ..announcement("milan-id") };
        let hears = |entry: &ForeignCluster, it: &Announcement| {
            sighting_by(it, std::slice::from_ref(entry), &DiscoveryConfig::default(), NOW)
        };
        let Sighting::Again(again) = hears(&new, &rotated) else { panic!("left alone") };
        let pinned = (again.spec.fingerprint, PinnedBy::of(&again));
        assert_eq!(pinned, (fingerprint, Some(PinnedBy::Mdns)));
        let silent = Announcement { fingerprint: None, ..rotated.clone() };
        assert_eq!(hears(&new, &silent), Sighting::LeftAlone);
        let mut peered = new.clone();
        peered.spec.join = true;
        assert_eq!(hears(&peered, &rotated), Sighting::LeftAlone);
        for by in [PinnedBy::FirstUse, PinnedBy::Dns, PinnedBy::Hand] {
            let mut other = new.clone();
            pin(&mut other, by, new.spec.fingerprint);
            assert_eq!(hears(&other, &rotated), Sighting::LeftAlone, "{by:?}");
        }
    }

    #[test]
    fn what_somebody_made_is_left_alone() {
        for known in [entry("m", "Manual", Some("milan-id")), entry("m", "Manual", None)] {
            assert_eq!(sighting("milan-id", &[known]), Sighting::LeftAlone);
        }
    }

    #[test]
    fn a_cluster_never_finds_itself_nor_another_group() {
        assert_eq!(sighting("rome-id", &[]), Sighting::LeftAlone);
        let mut other = announcement("milan-id");
        other.group = Some("campus".to_owned());
        let config = DiscoveryConfig::default();
        assert_eq!(sighting_by(&other, &[], &config, NOW), Sighting::LeftAlone);
        let config = DiscoveryConfig { group: Some("campus".to_owned()), ..config };
        assert!(matches!(sighting_by(&other, &[], &config, NOW), Sighting::New(_)));
    }

    #[test]
    fn an_entry_is_written_no_more_often_than_it_must() {
        let (known, config) =
            ([entry("there", "LAN", Some("milan-id"))], DiscoveryConfig::default());
        let milan = announcement("milan-id");
        assert_eq!(sighting_by(&milan, &known, &config, NOW), Sighting::Unchanged);
        let soon = "2026-05-01T12:00:29Z";
        assert_eq!(sighting_by(&milan, &known, &config, soon), Sighting::Unchanged);
        assert!(matches!(sighting_by(&milan, &known, &config, LATER), Sighting::Again(_)));
        let moved = Announcement { port: 443, ..milan.clone() };
        assert!(matches!(sighting_by(&moved, &known, &config, NOW), Sighting::Again(_)));
        let longer = Announcement { ttl: 61, ..milan.clone() };
        assert!(matches!(sighting_by(&longer, &known, &config, NOW), Sighting::Again(_)));
        let known = [entry("there", "IncomingPeering", Some("milan-id"))];
        assert!(matches!(sighting_by(&milan, &known, &config, NOW), Sighting::Again(_)));
    }

    #[test]
    fn whatever_a_cluster_says_its_entry_is_written_once_a_second() {
        let config = DiscoveryConfig::default();
        let here = Here { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
        let known = [entry("there", "LAN", Some("milan-id"))];
        let says = |announcement: Announcement, now: &str| {
            let mut neighbours = Neighbours::default();
            neighbours.hear("milan", announcement, at(NOW));
            neighbours.get("milan").unwrap().sighting(&known, &here, at(now))
        };
        let milan = announcement("milan-id");
        assert_eq!(says(milan.clone(), NOW), Sighting::Unchanged);
        let moved = Announcement { port: 443, ..milan.clone() };
        let brief = Announcement { ttl: 1, ..milan };
        for other in [moved, brief] {
            for now in [NOW, "2026-05-01T12:00:00.999Z"] {
                assert_eq!(says(other.clone(), now), Sighting::TooSoon);
            }
            // However long ago it was heard, and though a clock was put back.
            for now in ["2026-05-01T12:00:01Z", "2026-05-01T11:00:00Z"] {
                assert!(matches!(says(other.clone(), now), Sighting::Again(_)), "{now}");
            }
        }
    }

    #[test]
    fn who_announces_no_certificate_is_seen_where_it_was_first_asked() {
        let silent = Announcement { fingerprint: None, ..announcement("milan-id") };
        let config = DiscoveryConfig::default();
        let hears = |entry: &ForeignCluster, it: &Announcement| {
            sighting_by(it, std::slice::from_ref(entry), &config, LATER)
        };
        let pinned = |kind: &str, by: PinnedBy| {
            let mut entry = entry("there", kind, Some("milan-id"));
            pin(&mut entry, by, Some("0f".repeat(32).parse().unwrap()));
            entry
        };
        let there = pinned("LAN", PinnedBy::FirstUse);
        let Sighting::Again(again) = hears(&there, &silent) else { panic!("left alone") };
        assert_eq!((again.spec.fingerprint, &again.metadata.resource_version), (None, &None));
        let here = Here { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
        let known = [there.clone()];
        assert_eq!(entry_seen(&silent, &known, &here), Some(&known[0]));
        let elsewhere = Announcement { port: 443, ..silent.clone() };
        assert_eq!(hears(&there, &elsewhere), Sighting::LeftAlone);
        for by in [PinnedBy::Mdns, PinnedBy::Dns, PinnedBy::Hand] {
            assert_eq!(hears(&pinned("LAN", by), &silent), Sighting::LeftAlone, "{by:?}");
        }
        let asked = pinned("IncomingPeering", PinnedBy::FirstUse);
        assert_eq!(hears(&asked, &silent), Sighting::LeftAlone);
    }

    #[test]
    fn a_network_full_of_inventions_makes_only_so_many_entries() {
        let name = |number: usize| format!("cluster-{number}");
        let made = |number| entry(&name(number), "LAN", Some(&name(number)));
        let mut known: Vec<ForeignCluster> = (1..MOST_FOUND).map(made).collect();
        known.push(entry("other", "WAN", Some("other-id")));
        assert!(matches!(sighting("milan-id", &known), Sighting::New(_)));
        known.push(made(0));
        assert_eq!(sighting("milan-id", &known), Sighting::TooMany);
        assert!(matches!(sighting(&name(7), &known), Sighting::Again(_)), "who is known stays so");
    }

    #[test]
    fn who_can_not_be_reached_makes_no_entry() {
        let mut milan = announcement("milan-id");
        let networks = ["10.0.0.5/24".parse().unwrap()];
        let config = DiscoveryConfig::default();
        let here = Here { us: &"rome-id".parse().unwrap(), networks: &networks, config: &config };
        let none: [ForeignCluster; 0] = [];
        assert_eq!(seen(&milan, &none, &here, at(NOW)), Sighting::LeftAlone);
        milan.addresses.insert("10.0.0.6".parse().unwrap());
        let Sighting::New(new) = seen(&milan, &none, &here, at(NOW)) else { panic!("not new") };
        assert_eq!(new.spec.auth_url, "https://10.0.0.6:31200");
    }
}
