//! Clusters that a DNS domain lists: how the records are parsed, and how they change the entries.

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
    EntryChange,
    entry::{
        is_up_to_date, kind, may_be_changed_by, may_repin, new_entry, object_name, refreshed, repin,
    },
    pin::{PinnedBy, pin},
};
use crate::{digest, peering::is_authenticated, tenant::id_of};

/// A cluster that a domain lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCluster {
    /// Target of the domain's PTR record, in lower case, with a trailing dot.
    pub record: String,
    /// URL of its auth service.
    pub auth_url: String,
    /// Id and name of the cluster, once known from its TXT record or its auth service.
    pub cluster: Option<ClusterIdentity>,
    /// Fingerprint of the auth service's certificate in the TXT record.
    pub fingerprint: Option<Fingerprint>,
    /// Fingerprint of the certificate that the auth service has presented.
    pub shown: Option<Fingerprint>,
    /// Validity in seconds: the shortest TTL of its records.
    pub ttl: u32,
}

/// A listed cluster that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{record} {what}")]
pub struct UnusableRecord {
    /// Target of the domain's PTR record.
    pub record: String,
    /// What is wrong.
    pub what: String,
}

impl ListedCluster {
    /// Parses the records of a name: target and port of SRV, properties of TXT.
    pub fn read(
        record: &str,
        host: &str,
        port: u16,
        properties: &BTreeMap<String, String>,
        ttl: u32,
    ) -> Result<Self, UnusableRecord> {
        let record = record.to_ascii_lowercase();
        let unusable = |what: String| UnusableRecord { record: record.clone(), what };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() || port == 0 {
            return Err(unusable(
                "has an SRV record without a service (target \".\" or port 0)".to_owned(),
            ));
        }
        let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            || is_number && host.parse::<Ipv4Addr>().is_err()
        {
            return Err(unusable("has an SRV record whose target is not a host name".to_owned()));
        }
        let invalid = |key: &str| unusable(format!("has a TXT record with an invalid {key}"));
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

    /// Completes the cluster with the answer of its auth service, which presented this certificate.
    /// Ignored if the TXT record has another id.
    pub fn identify(&mut self, cluster: ClusterIdentity, shown: Fingerprint) {
        match &self.cluster {
            Some(said) if said.cluster_id != cluster.cluster_id => return,
            Some(_) => {}
            None => self.cluster = Some(cluster),
        }
        self.shown = Some(shown);
    }
}

/// Context of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchContext<'a> {
    /// This cluster.
    pub us: &'a ClusterId,
    /// The domain.
    pub domain: &'a SearchDomain,
    /// UIDs of all SearchDomains.
    pub domains: &'a BTreeSet<String>,
    /// Whether to peer with discovered clusters.
    pub autojoin: bool,
}

/// The change for a cluster that a domain lists.
pub fn listed(
    listed: &ListedCluster,
    context: &SearchContext<'_>,
    known: &[ForeignCluster],
    now: Timestamp,
) -> EntryChange {
    let id = listed.cluster.as_ref().map(|cluster| &cluster.cluster_id);
    if id == Some(context.us) {
        return EntryChange::Ignored;
    }
    let domain = context.domain;
    let (url, ttl) = (listed.auth_url.clone(), listed.ttl);
    let Some(entry) = entry_listed(listed, domain, known) else {
        let name = match &listed.cluster {
            Some(cluster) => object_name(cluster, known),
            None => name_of(&listed.record, known),
        };
        let mut new = new_entry(&name, DiscoveryType::Wan, url, ttl, now);
        new.spec.join = context.autojoin;
        pin(&mut new, PinnedBy::Dns, listed.fingerprint);
        new.spec.cluster_identity = listed.cluster.clone();
        return EntryChange::Create(Box::new(owned(new, listed, domain)));
    };
    let is_free = may_be_taken(entry, domain) || is_orphaned(entry, context.domains);
    if entry.metadata.deletion_timestamp.is_some() || !is_free {
        return EntryChange::Ignored;
    }
    let matches_pin = match (entry.spec.fingerprint, listed.fingerprint) {
        (None, _) => true,
        (Some(pin), Some(said)) => said == pin,
        (Some(pin), None) => is_of(entry, listed, domain) || listed.shown == Some(pin),
    };
    let mut again = refreshed(entry, DiscoveryType::Wan, url, ttl, now);
    if !matches_pin {
        let changed =
            is_of(entry, listed, domain) && may_repin(entry, PinnedBy::Dns, listed.fingerprint);
        if !changed {
            return EntryChange::Ignored;
        }
        repin(&mut again, entry, PinnedBy::Dns, listed.fingerprint);
    } else if is_found_in(entry, domain) && is_up_to_date(entry, &again, now) {
        return EntryChange::Unchanged;
    }
    EntryChange::Update(Box::new(owned(again, listed, domain)))
}

/// The entry of that cluster; while its id is unknown, the entry with that record or URL.
pub fn entry_listed<'a>(
    listed: &ListedCluster,
    domain: &SearchDomain,
    known: &'a [ForeignCluster],
) -> Option<&'a ForeignCluster> {
    let id = listed.cluster.as_ref().map(|cluster| &cluster.cluster_id);
    let same_id = |entry: &&ForeignCluster| id.is_some() && id_of(entry) == id;
    // An entry with another id is another cluster.
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

/// Entries made before the id was known, that turn out to be of a cluster with another entry, or of
/// this cluster itself.
pub fn superseded<'a>(
    listed: &ListedCluster,
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

/// Whether the auth service need not be queried: the id is known, and so is the certificate where
/// it matters. An entry without an identity may have become another cluster.
pub fn is_identified(
    listed: &ListedCluster,
    domain: &SearchDomain,
    known: &[ForeignCluster],
) -> bool {
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
            && may_be_changed_by(entry, DiscoveryType::Wan)
    };
    listed.fingerprint.is_some() || !known.iter().any(waits)
}

/// Whether an entry belongs to a domain that no longer exists.
pub fn is_orphaned(entry: &ForeignCluster, domains: &BTreeSet<String>) -> bool {
    let owners = entry.metadata.owner_references.as_deref().unwrap_or_default();
    kind(entry) == DiscoveryType::Wan && !owners.iter().any(|owner| domains.contains(&owner.uid))
}

/// Whether an entry belongs to this domain.
pub fn is_found_in(entry: &ForeignCluster, domain: &SearchDomain) -> bool {
    let owners = entry.metadata.owner_references.as_deref().unwrap_or_default();
    let is_owner = |owner: &OwnerReference| Some(&owner.uid) == domain.metadata.uid.as_ref();
    kind(entry) == DiscoveryType::Wan && owners.iter().any(is_owner)
}

/// Whether an entry was discovered in a weaker way than by DNS, or in that domain.
fn may_be_taken(entry: &ForeignCluster, domain: &SearchDomain) -> bool {
    may_be_changed_by(entry, DiscoveryType::Wan)
        && (kind(entry) != DiscoveryType::Wan || is_found_in(entry, domain))
}

fn is_of(entry: &ForeignCluster, listed: &ListedCluster, domain: &SearchDomain) -> bool {
    let annotations = entry.metadata.annotations.as_ref();
    let record = annotations.and_then(|annotations| annotations.get(RECORD_ANNOTATION));
    record == Some(&listed.record) && is_found_in(entry, domain)
}

fn owned(
    mut entry: ForeignCluster,
    listed: &ListedCluster,
    domain: &SearchDomain,
) -> ForeignCluster {
    entry.metadata.owner_references = domain.owner_ref(&()).map(|owner| vec![owner]);
    let annotations = entry.metadata.annotations.get_or_insert_default();
    annotations.insert(RECORD_ANNOTATION.to_owned(), listed.record.clone());
    entry
}

/// Name of an entry while the cluster's name is unknown: the first label of the record.
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
/// A week.
const MAX_TTL: u32 = 7 * 24 * 60 * 60;

#[cfg(test)]
mod tests;
