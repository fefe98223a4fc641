//! The clusters that a DNS domain lists: how one is read, and what becomes of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName, Fingerprint,
    discovery::{DiscoveryType, ForeignCluster, SearchDomain},
    names::RECORD_ANNOTATION,
};

use super::{
    Sighting,
    entry::{
        first_sighted, follows, gives_way, kind, object_name, pin_anew, says_already, sighted_again,
    },
    pin::{PinnedBy, pin},
};
use crate::{digest, peering::is_authenticated, tenant::id_of};

/// A cluster that a domain lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name that the domain's PTR record has for it, in lower case, with a dot at the end.
    pub record: String,
    /// URL of its auth service.
    pub auth_url: String,
    /// Who it is, once its TXT record or its auth service has said so.
    pub cluster: Option<ClusterIdentity>,
    /// Fingerprint, in its TXT record, of the certificate that the auth service shows.
    pub fingerprint: Option<Fingerprint>,
    /// Fingerprint of the certificate that the auth service has shown.
    pub shown: Option<Fingerprint>,
    /// Seconds for which this holds: as long as the shortest-lived of its records.
    pub ttl: u32,
}

/// What a domain lists there can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{record} {what}")]
pub struct NotListed {
    /// The name that the domain's PTR record has for it.
    pub record: String,
    /// What is the matter.
    pub what: String,
}

impl Listed {
    /// Reads the records of a name: target and port of SRV, the properties of TXT.
    pub fn read(
        record: &str,
        host: &str,
        port: u16,
        properties: &BTreeMap<String, String>,
        ttl: u32,
    ) -> Result<Self, NotListed> {
        let record = record.to_ascii_lowercase();
        let no = |what: String| NotListed { record: record.clone(), what };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() || port == 0 {
            return Err(no("says in its SRV record that there is no such service".to_owned()));
        }
        let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            || is_number && host.parse::<Ipv4Addr>().is_err()
        {
            return Err(no("has an SRV record with a target that is no host name".to_owned()));
        }
        let invalid = |key: &str| no(format!("has a TXT record with an invalid {key}"));
        let name = properties.get(NAME).map(|name| name.parse::<ClusterName>());
        let name = name.transpose().map_err(|_| invalid(NAME))?;
        let cluster = match properties.get(ID) {
            Some(id) => Some(ClusterIdentity {
                cluster_id: id.parse().map_err(|_| invalid(ID))?,
                cluster_name: match name {
                    Some(name) => name,
                    None => first_label(&record).parse().map_err(|_| invalid(NAME))?,
                },
            }),
            None => None,
        };
        let fingerprint = properties.get(FINGERPRINT).map(|text| text.parse());
        let fingerprint = fingerprint.transpose().map_err(|_| invalid(FINGERPRINT))?;
        let (auth_url, ttl) = (format!("https://{host}:{port}"), ttl.clamp(1, MAX_TTL));
        Ok(Self { record, auth_url, cluster, fingerprint, shown: None, ttl })
    }

    /// Its auth service has said who it is, and shown this certificate. What another cluster says
    /// than the one that the TXT record names does not count.
    pub fn introduce(&mut self, cluster: ClusterIdentity, shown: Fingerprint) {
        match &self.cluster {
            Some(said) if said.cluster_id != cluster.cluster_id => return,
            Some(_) => {}
            None => self.cluster = Some(cluster),
        }
        self.shown = Some(shown);
    }
}

/// Who has searched, and where.
#[derive(Clone, Copy, Debug)]
pub struct Searcher<'a> {
    /// This cluster.
    pub us: &'a ClusterId,
    /// The domain.
    pub domain: &'a SearchDomain,
    /// UIDs of all domains that there are.
    pub domains: &'a BTreeSet<String>,
    /// Whether to peer with those who are found.
    pub autojoin: bool,
}

/// A search of a domain has found a cluster.
pub fn listed(
    listed: &Listed,
    searcher: &Searcher<'_>,
    known: &[ForeignCluster],
    now: Timestamp,
) -> Sighting {
    let id = listed.cluster.as_ref().map(|cluster| &cluster.cluster_id);
    if id == Some(searcher.us) {
        return Sighting::LeftAlone;
    }
    let domain = searcher.domain;
    let (url, ttl) = (listed.auth_url.clone(), listed.ttl);
    let Some(entry) = entry_listed(listed, domain, known) else {
        let name = match &listed.cluster {
            Some(cluster) => object_name(cluster, known),
            None => name_of(&listed.record, known),
        };
        let mut new = first_sighted(&name, DiscoveryType::Wan, url, ttl, now);
        new.spec.join = searcher.autojoin;
        pin(&mut new, PinnedBy::Dns, listed.fingerprint);
        new.spec.cluster_identity = listed.cluster.clone();
        return Sighting::New(Box::new(owned(new, listed, domain)));
    };
    let is_free = may_be_taken(entry, domain) || is_orphan(entry, searcher.domains);
    if entry.metadata.deletion_timestamp.is_some() || !is_free {
        return Sighting::LeftAlone;
    }
    let vouched = match (entry.spec.fingerprint, listed.fingerprint) {
        (None, _) => true,
        (Some(pin), Some(said)) => said == pin,
        (Some(pin), None) => is_of(entry, listed, domain) || listed.shown == Some(pin),
    };
    let mut again = sighted_again(entry, DiscoveryType::Wan, url, ttl, now);
    if !vouched {
        let changed =
            is_of(entry, listed, domain) && follows(entry, PinnedBy::Dns, listed.fingerprint);
        if !changed {
            return Sighting::LeftAlone;
        }
        pin_anew(&mut again, entry, PinnedBy::Dns, listed.fingerprint);
    } else if is_found_in(entry, domain) && says_already(entry, &again, now) {
        return Sighting::Unchanged;
    }
    Sighting::Again(Box::new(owned(again, listed, domain)))
}

/// The entry of that cluster; while it is not known who it is, the one of that record or that URL.
pub fn entry_listed<'a>(
    listed: &Listed,
    domain: &SearchDomain,
    known: &'a [ForeignCluster],
) -> Option<&'a ForeignCluster> {
    let id = listed.cluster.as_ref().map(|cluster| &cluster.cluster_id);
    let same_id = |entry: &&ForeignCluster| id.is_some() && id_of(entry) == id;
    // Who is somebody else is not it.
    let may_be = |entry: &&ForeignCluster| id.is_none() || id_of(entry).is_none();
    let same_record = |entry: &&ForeignCluster| may_be(entry) && is_of(entry, listed, domain);
    let same_url =
        |entry: &&ForeignCluster| may_be(entry) && entry.spec.auth_url == listed.auth_url;
    known
        .iter()
        .find(same_id)
        .or_else(|| known.iter().find(same_record))
        .or_else(|| known.iter().find(same_url))
}

/// The entries that were made before it was known who is there, and turn out to be of a cluster
/// that has another entry, or of this very cluster.
pub fn superseded<'a>(
    listed: &Listed,
    domain: &SearchDomain,
    known: &'a [ForeignCluster],
    us: &ClusterId,
) -> Vec<&'a ForeignCluster> {
    let Some(cluster) = &listed.cluster else { return Vec::new() };
    let id = &cluster.cluster_id;
    if id != us && !known.iter().any(|entry| id_of(entry) == Some(id)) {
        return Vec::new();
    }
    known
        .iter()
        .filter(|entry| id_of(entry).is_none() && is_of(entry, listed, domain))
        .filter(|entry| entry.metadata.deletion_timestamp.is_none())
        .collect()
}

/// Whether nobody needs to be asked who is there: it is known, and where another certificate could be
/// shown, who shows which. Whom an entry stands for that has no identity there may be another one by now.
pub fn is_introduced(listed: &Listed, domain: &SearchDomain, known: &[ForeignCluster]) -> bool {
    let Some(cluster) = &listed.cluster else {
        return known.iter().any(|entry| {
            is_of(entry, listed, domain)
                && id_of(entry).is_some()
                && entry.spec.auth_url == listed.auth_url
                && is_authenticated(entry)
        });
    };
    let waits = |entry: &ForeignCluster| {
        id_of(entry) == Some(&cluster.cluster_id)
            && entry.spec.fingerprint.is_some()
            && !is_of(entry, listed, domain)
            && gives_way(entry, DiscoveryType::Wan)
    };
    listed.fingerprint.is_some() || !known.iter().any(waits)
}

/// Whether an entry was found in a domain, and in none of these.
pub fn is_orphan(entry: &ForeignCluster, domains: &BTreeSet<String>) -> bool {
    let owners = entry.metadata.owner_references.as_deref().unwrap_or_default();
    kind(entry) == DiscoveryType::Wan && !owners.iter().any(|owner| domains.contains(&owner.uid))
}

/// Whether an entry is there because of this domain.
pub fn is_found_in(entry: &ForeignCluster, domain: &SearchDomain) -> bool {
    let owners = entry.metadata.owner_references.as_deref().unwrap_or_default();
    let is_owner = |owner: &OwnerReference| Some(&owner.uid) == domain.metadata.uid.as_ref();
    kind(entry) == DiscoveryType::Wan && owners.iter().any(is_owner)
}

/// Whether an entry was found in a weaker way than by DNS, or in that domain.
fn may_be_taken(entry: &ForeignCluster, domain: &SearchDomain) -> bool {
    gives_way(entry, DiscoveryType::Wan)
        && (kind(entry) != DiscoveryType::Wan || is_found_in(entry, domain))
}

fn is_of(entry: &ForeignCluster, listed: &Listed, domain: &SearchDomain) -> bool {
    let annotations = entry.metadata.annotations.as_ref();
    let record = annotations.and_then(|annotations| annotations.get(RECORD_ANNOTATION));
    record == Some(&listed.record) && is_found_in(entry, domain)
}

fn owned(mut entry: ForeignCluster, listed: &Listed, domain: &SearchDomain) -> ForeignCluster {
    entry.metadata.owner_references = domain.owner_ref(&()).map(|owner| vec![owner]);
    let annotations = entry.metadata.annotations.get_or_insert_default();
    annotations.insert(RECORD_ANNOTATION.to_owned(), listed.record.clone());
    entry
}

/// What an entry is called before it is known who is there: as the domain calls it.
fn name_of(record: &str, known: &[ForeignCluster]) -> String {
    let label = first_label(record);
    let valid = |byte: char| if byte.is_ascii_alphanumeric() { byte } else { '-' };
    let label: String = label.chars().map(valid).take(ClusterName::MAX_LEN).collect();
    let label = match label.trim_matches('-') {
        "" => "cluster",
        label => label,
    };
    let is_taken = |entry: &ForeignCluster| entry.metadata.name.as_deref() == Some(label);
    if !known.iter().any(is_taken) {
        return label.to_owned();
    }
    format!("{label}-{}", digest::short(record, 3))
}

fn first_label(record: &str) -> &str {
    record.split('.').next().unwrap_or_default()
}

const ID: &str = "id";
const NAME: &str = "name";
const FINGERPRINT: &str = "fingerprint";
/// A week: nothing that a zone once said counts for longer.
const MAX_TTL: u32 = 7 * 24 * 60 * 60;

#[cfg(test)]
mod tests;
