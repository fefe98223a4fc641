//! Clusters that a DNS domain lists: how the records are parsed, and how they change the entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jiff::Timestamp;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName, Fingerprint,
    discovery::{DiscoveryType, ForeignCluster},
    names::RECORD_ANNOTATION,
};

use super::{
    EntryChange,
    entry::{
        is_up_to_date, may_be_changed_by, may_repin, new_entry, object_name, refreshed, repin,
    },
    pin::{PinnedBy, pin},
};
use crate::{
    digest,
    view::{Domain, Entry},
};

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
    pub domain: &'a Domain<'a>,
    /// UIDs of all SearchDomains.
    pub domains: &'a BTreeSet<String>,
    /// Whether to peer with discovered clusters.
    pub autojoin: bool,
}

/// The change for a cluster that a domain lists.
pub fn listed(
    listed: &ListedCluster,
    context: &SearchContext<'_>,
    known: &[Entry<'_>],
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
    if entry.deleted.is_some() || !is_free {
        return EntryChange::Ignored;
    }
    let matches_pin = match (entry.fingerprint, listed.fingerprint) {
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
pub fn entry_listed<'k, 'a>(
    listed: &ListedCluster,
    domain: &Domain<'_>,
    known: &'k [Entry<'a>],
) -> Option<&'k Entry<'a>> {
    let id = listed.cluster.as_ref().map(|cluster| &cluster.cluster_id);
    let same_id = |entry: &&Entry<'_>| id.is_some() && entry.peer.id() == id;
    // An entry with another id is another cluster.
    let may_be = |entry: &Entry<'_>| id.is_none() || entry.peer.id().is_none();
    let same_record = |entry: &&Entry<'_>| may_be(entry) && is_of(entry, listed, domain);
    let same_url = |entry: &&Entry<'_>| may_be(entry) && entry.auth_url == listed.auth_url;
    known
        .iter()
        .find(same_id)
        .or_else(|| known.iter().find(same_record))
        .or_else(|| known.iter().find(same_url))
}

/// Whether an entry was made before the id was known, and turns out to be of a cluster with another
/// entry, or of this cluster itself.
pub fn is_superseded(
    entry: &Entry<'_>,
    listed: &ListedCluster,
    context: &SearchContext<'_>,
    known: &[Entry<'_>],
) -> bool {
    let Some(cluster) = &listed.cluster else { return false };
    let id = &cluster.cluster_id;
    entry.peer.id().is_none()
        && entry.deleted.is_none()
        && is_of(entry, listed, context.domain)
        && (id == context.us || known.iter().any(|other| other.peer.id() == Some(id)))
}

/// Whether the auth service need not be queried: the id is known, and so is the certificate where
/// it matters. An entry without an identity may have become another cluster.
pub fn is_identified(listed: &ListedCluster, domain: &Domain<'_>, known: &[Entry<'_>]) -> bool {
    let Some(cluster) = &listed.cluster else {
        return known.iter().any(|entry| {
            is_of(entry, listed, domain)
                && entry.peer.id().is_some()
                && entry.auth_url == listed.auth_url
                && entry.peer.is_authenticated
        });
    };
    let waits = |entry: &Entry<'_>| {
        entry.peer.id() == Some(&cluster.cluster_id)
            && entry.fingerprint.is_some()
            && !is_of(entry, listed, domain)
            && may_be_changed_by(entry, DiscoveryType::Wan)
    };
    listed.fingerprint.is_some() || !known.iter().any(waits)
}

/// Whether an entry belongs to a domain that no longer exists.
pub fn is_orphaned(entry: &Entry<'_>, domains: &BTreeSet<String>) -> bool {
    entry.kind == DiscoveryType::Wan && !domains.iter().any(|uid| entry.is_owned_by(uid))
}

/// Whether an entry belongs to this domain.
pub fn is_found_in(entry: &Entry<'_>, domain: &Domain<'_>) -> bool {
    let owner = domain.owner.as_ref();
    entry.kind == DiscoveryType::Wan && owner.is_some_and(|owner| entry.is_owned_by(&owner.uid))
}

/// Whether an entry was discovered in a weaker way than by DNS, or in that domain.
fn may_be_taken(entry: &Entry<'_>, domain: &Domain<'_>) -> bool {
    may_be_changed_by(entry, DiscoveryType::Wan)
        && (entry.kind != DiscoveryType::Wan || is_found_in(entry, domain))
}

fn is_of(entry: &Entry<'_>, listed: &ListedCluster, domain: &Domain<'_>) -> bool {
    entry.record == Some(listed.record.as_str()) && is_found_in(entry, domain)
}

fn owned(mut entry: ForeignCluster, listed: &ListedCluster, domain: &Domain<'_>) -> ForeignCluster {
    entry.metadata.owner_references = domain.owner.clone().map(|owner| vec![owner]);
    let annotations = entry.metadata.annotations.get_or_insert_default();
    annotations.insert(RECORD_ANNOTATION.to_owned(), listed.record.clone());
    entry
}

/// Name of an entry while the cluster's name is unknown: the first label of the record.
fn name_of(record: &str, known: &[Entry<'_>]) -> String {
    let label = first_label(record);
    let valid = |byte: char| if byte.is_ascii_alphanumeric() { byte } else { '-' };
    let label: String = label.chars().map(valid).take(ClusterName::MAX_LEN).collect();
    let label = match label.trim_matches('-') {
        "" => "cluster",
        label => label,
    };
    if !known.iter().any(|entry| entry.name == label) {
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
