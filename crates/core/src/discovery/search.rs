//! The result of searching a domain, the status that reports it, and the time of the next search.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::{
    config::DiscoveryConfig,
    discovery::{FoundCluster, SEARCHED, SearchDomainStatus},
};

use super::{ListedCluster, UnusableRecord};
use crate::{condition::now_is, view::Domain};

/// Limit of clusters of one domain.
pub const MAX_LISTED: usize = 1000;

/// A completed search.
#[derive(Clone, Debug)]
pub struct Search {
    /// The DNS servers that were queried.
    pub servers: String,
    /// Their answer.
    pub answer: Result<Found, Failure>,
}

/// The clusters of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Clusters that can be used.
    pub clusters: Vec<ListedCluster>,
    /// Clusters that can't be used.
    pub unusable: Vec<UnusableRecord>,
}

/// A search that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The domain does not exist (NXDOMAIN).
    NoSuchDomain,
    /// The server answers with an error code, such as SERVFAIL.
    ErrorCode(String),
    /// The server does not answer.
    NoAnswer(String),
}

impl Search {
    /// The condition of the SearchDomain.
    pub fn condition(&self, domain: &Domain<'_>, now: Timestamp) -> Condition {
        let (name, servers) = (domain.domain, &self.servers);
        let kept = "clusters found before are kept until their TTL expires";
        let (is_complete, reason, message) = match &self.answer {
            Ok(Found { clusters, unusable }) if !unusable.is_empty() => {
                let what: Vec<_> = unusable.iter().take(5).map(ToString::to_string).collect();
                let (count, all) = (unusable.len(), unusable.len() + clusters.len());
                let message = format!(
                    "{count} of the {all} clusters that {name} lists can't be used: {}; correct \
                     these records; queried {servers}",
                    what.join("; ")
                );
                (false, "Incomplete", message)
            }
            Ok(Found { clusters, .. }) if clusters.is_empty() => {
                let message = format!(
                    "{name} lists no clusters; add a PTR record for each; queried {servers}"
                );
                (true, "NothingListed", message)
            }
            Ok(Found { clusters, .. }) => {
                let count = clusters.len();
                let message = format!("{name} lists {count} clusters; queried {servers}");
                (true, "Found", message)
            }
            Err(Failure::NoSuchDomain) => {
                let message = format!(
                    "{servers} answers NXDOMAIN for {name}: check spec.domain, and that the zone is \
                     served; {kept}"
                );
                (false, "NoSuchDomain", message)
            }
            Err(Failure::ErrorCode(code)) => {
                let message = format!(
                    "{servers} answers {code} for {name}: check that DNS server and those of the \
                     zone; {kept}"
                );
                (false, "ServerFailure", message)
            }
            Err(Failure::NoAnswer(why)) => {
                let message = format!(
                    "{servers} does not answer queries for {name} ({why}): check that the DNS \
                     server runs and can be reached from the nodes; {kept}"
                );
                (false, "NoAnswer", message)
            }
        };
        now_is(domain.conditions, SEARCHED, is_complete, reason, &message, now)
    }

    /// The status of the SearchDomain, with its current entries.
    pub fn status(
        &self,
        domain: &Domain<'_>,
        entries: Vec<String>,
        now: Timestamp,
    ) -> SearchDomainStatus {
        let mut entries = entries;
        entries.sort_unstable();
        entries.dedup();
        entries.truncate(MAX_LISTED);
        SearchDomainStatus {
            foreign_clusters: entries.into_iter().map(|name| FoundCluster { name }).collect(),
            conditions: vec![self.condition(domain, now)],
        }
    }
}

/// Time until the next search: a third of the shortest remaining TTL, so that a lost answer does no
/// harm, the next expiry of an entry, or the configured period, whichever is least. A failed search
/// is retried soon.
pub fn next_search(
    search: &Search,
    expiry: Option<Timestamp>,
    config: &DiscoveryConfig,
    now: Timestamp,
) -> Duration {
    let found = search.answer.iter().flat_map(|found| &found.clusters);
    let ttls = found.map(|cluster| Duration::from_secs(cluster.ttl.into()) / 3);
    let expiry =
        expiry.map(|time| Duration::try_from(time.duration_since(now)).unwrap_or_default());
    let period = Duration::from_secs(config.search_period_seconds.into());
    let retry = search.answer.is_err().then_some(RETRY);
    ttls.chain(expiry).chain(retry).chain([period]).min().unwrap_or(period).max(MIN_INTERVAL)
}

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tombolo_api::discovery::SearchDomain;

    use super::*;

    const NOW: &str = "2026-05-01T12:00:00Z";

    fn domain() -> SearchDomain {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "SearchDomain",
            "metadata": { "name": "company", "uid": "company" },
            "spec": { "domain": "example.com." },
        }))
        .unwrap()
    }

    fn search(answer: Result<Found, Failure>) -> Search {
        Search { servers: "192.0.2.53:53".to_owned(), answer }
    }

    fn campus(ttl: u32) -> ListedCluster {
        ListedCluster::read("a.example.com.", "auth.example.com.", 443, &BTreeMap::new(), ttl)
            .unwrap()
    }

    fn found(ttls: &[u32]) -> Search {
        let clusters = ttls.iter().map(|ttl| campus(*ttl)).collect();
        search(Ok(Found { clusters, unusable: Vec::new() }))
    }

    #[test]
    fn the_condition_names_domain_server_and_remedy() {
        let what = "has no SRV record".to_owned();
        let unusable = vec![UnusableRecord { record: "b.example.com.".to_owned(), what }];
        for (search, status, reason, part) in [
            (found(&[60]), "True", "Found", "lists 1"),
            (found(&[]), "True", "NothingListed", "add a PTR record"),
            (
                search(Ok(Found { clusters: vec![campus(60)], unusable })),
                "False",
                "Incomplete",
                "1 of the 2 clusters that example.com. lists can't be used: b.example.com. has no",
            ),
            (search(Err(Failure::NoSuchDomain)), "False", "NoSuchDomain", "check spec.domain"),
            (
                search(Err(Failure::ErrorCode("SERVFAIL".to_owned()))),
                "False",
                "ServerFailure",
                "SERVFAIL",
            ),
            (
                search(Err(Failure::NoAnswer("timed out".to_owned()))),
                "False",
                "NoAnswer",
                "kept until their TTL expires",
            ),
        ] {
            let condition =
                search.condition(&Domain::from_resource(&domain()), NOW.parse().unwrap());
            assert_eq!((condition.status.as_str(), condition.reason.as_str()), (status, reason));
            let message = condition.message;
            for part in [part, "example.com.", "192.0.2.53:53"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    #[test]
    fn the_next_search_follows_ttls_expiries_and_the_period() {
        let config = DiscoveryConfig { search_period_seconds: 50, ..DiscoveryConfig::default() };
        let now: Timestamp = NOW.parse().unwrap();
        let soon = Some("2026-05-01T12:00:07Z".parse().unwrap());
        let past = Some("2026-05-01T11:00:00Z".parse().unwrap());
        let dead = search(Err(Failure::NoAnswer(String::new())));
        for (search, expiry, seconds) in [
            (found(&[60, 21]), None, 7),
            (found(&[60]), None, 20),
            (found(&[600]), None, 50),
            (found(&[]), None, 50),
            (dead.clone(), None, 30),
            (dead.clone(), soon, 7),
            (dead, past, 1),
        ] {
            let wait = next_search(&search, expiry, &config, now);
            assert_eq!(wait, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn the_status_lists_each_entry_once() {
        let names = ["b", "a", "b"].map(str::to_owned).to_vec();
        let status =
            found(&[60]).status(&Domain::from_resource(&domain()), names, NOW.parse().unwrap());
        let names: Vec<_> = status.foreign_clusters.iter().map(|found| &found.name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
