//! Prometheus metrics of all components: one registry per process, which [`health`](crate::health)
//! serves at `/metrics`.

use std::{sync::LazyLock, time::Duration};

use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

/// Content type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A step from an mDNS packet to an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Parse an announcement of the local network.
    Parse,
    /// Create the ForeignCluster.
    Create,
    /// Query the other cluster's auth service for its id.
    Info,
    /// Request an identity from the other cluster, and store it.
    Identity,
}

/// Where the identity for a discovered cluster comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// The cluster has issued it.
    Issued,
    /// An earlier one is still valid.
    Reused,
}

/// Outcome of another cluster's request for an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Issued, in the form of a certificate.
    Certificate,
    /// Issued, in the form of a token.
    Token,
    /// Refused.
    Refused,
}

impl Step {
    const ALL: [Self; 4] = [Self::Parse, Self::Create, Self::Info, Self::Identity];

    fn label(self) -> Label {
        let step = match self {
            Self::Parse => "parse_announcement",
            Self::Create => "create_foreign_cluster",
            Self::Info => "get_cluster_info",
            Self::Identity => "request_identity",
        };
        [("step", step)]
    }
}

impl IdentitySource {
    const ALL: [Self; 2] = [Self::Issued, Self::Reused];

    fn label(self) -> Label {
        let source = match self {
            Self::Issued => "issued",
            Self::Reused => "reused",
        };
        [("identity", source)]
    }
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Certificate, Self::Token, Self::Refused];

    fn label(self) -> Label {
        let outcome = match self {
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::Refused => "refused",
        };
        [("outcome", outcome)]
    }
}

/// Records the duration of a step.
pub fn observe_step(step: Step, time: Duration) {
    METRICS.steps.get_or_create(&step.label()).observe(time.as_secs_f64());
}

/// Records the time from the discovery of a cluster to a valid identity there.
pub fn observe_discovery(source: IdentitySource, time: Duration) {
    METRICS.discovery.get_or_create(&source.label()).observe(time.as_secs_f64());
}

/// Sets the number of clusters that are announced in the local networks.
pub fn set_announced_clusters(clusters: usize) {
    METRICS.announced_clusters.set(i64::try_from(clusters).unwrap_or(i64::MAX));
}

/// Counts a request to the auth service, by path and status code.
pub fn count_auth_request(path: &'static str, status: u16) {
    let labels = [("path", path.to_owned()), ("code", status.to_string())];
    METRICS.requests.get_or_create(&labels).inc();
}

/// Counts a decision on a request for an identity.
pub fn count_identity_request(outcome: Outcome) {
    METRICS.identities.get_or_create(&outcome.label()).inc();
}

/// All metrics in the OpenMetrics text format.
pub fn text() -> Result<String, std::fmt::Error> {
    let mut all = String::new();
    text::encode(&mut all, &METRICS.registry)?;
    Ok(all)
}

type Label = [(&'static str, &'static str); 1];
type Times = Family<Label, Histogram, fn() -> Histogram>;

struct Metrics {
    registry: Registry,
    steps: Times,
    discovery: Times,
    announced_clusters: Gauge,
    requests: Family<[(&'static str, String); 2], Counter>,
    identities: Family<Label, Counter>,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let times = || Times::new_with_constructor(histogram);
    let mut metrics = Metrics {
        registry: Registry::with_prefix("tombolo"),
        steps: times(),
        discovery: times(),
        announced_clusters: Gauge::default(),
        requests: Family::default(),
        identities: Family::default(),
    };
    // All label values exist from the start, as zero.
    for step in Step::ALL {
        drop(metrics.steps.get_or_create(&step.label()));
    }
    for source in IdentitySource::ALL {
        drop(metrics.discovery.get_or_create(&source.label()));
    }
    for outcome in Outcome::ALL {
        drop(metrics.identities.get_or_create(&outcome.label()));
    }
    let registry = &mut metrics.registry;
    registry.register_with_unit(
        "discovery_step_duration",
        "Duration of each step from an announcement in the local network to an identity",
        Unit::Seconds,
        metrics.steps.clone(),
    );
    registry.register_with_unit(
        "discovery_duration",
        "Time from the discovery of a cluster to an identity there, if the first attempt succeeds",
        Unit::Seconds,
        metrics.discovery.clone(),
    );
    registry.register(
        "discovery_announced_clusters",
        "Clusters currently announced in the local networks",
        metrics.announced_clusters.clone(),
    );
    registry.register(
        "auth_requests",
        "Requests answered by the auth service",
        metrics.requests.clone(),
    );
    registry.register(
        "identity_requests",
        "Requests of other clusters for an identity, by outcome",
        metrics.identities.clone(),
    );
    metrics
});

/// From 0.1 ms to 26 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_values_are_exported() {
        observe_step(Step::Parse, Duration::from_micros(150));
        observe_discovery(IdentitySource::Reused, Duration::from_millis(20));
        set_announced_clusters(3);
        count_auth_request("/info", 200);
        count_identity_request(Outcome::Refused);
        let text = text().unwrap();
        for line in [
            "# UNIT tombolo_discovery_step_duration_seconds seconds",
            "tombolo_discovery_step_duration_seconds_sum{step=\"parse_announcement\"} 0.00015",
            "tombolo_discovery_step_duration_seconds_bucket{le=\"0.0001\",step=\"parse_announcement\"} 0",
            "tombolo_discovery_step_duration_seconds_bucket{le=\"0.0002\",step=\"parse_announcement\"} 1",
            "tombolo_discovery_duration_seconds_count{identity=\"reused\"} 1",
            "tombolo_discovery_announced_clusters 3",
            "tombolo_auth_requests_total{path=\"/info\",code=\"200\"} 1",
            "tombolo_identity_requests_total{outcome=\"refused\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
