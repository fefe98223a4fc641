//! Prometheus metrics: one registry per process, which [`health`](crate::health) serves at
//! `/metrics`.

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

/// A step of discovery, from an mDNS packet to an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Parsing the announcement in the local network.
    Parse,
    /// Creating the ForeignCluster.
    Create,
    /// Fetching the id and name of the other cluster from its auth service.
    Info,
    /// Requesting an identity and storing it.
    Identity,
}

/// Whether a discovered cluster had issued an identity before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// No: it was requested.
    Never,
    /// Yes, and it is still valid.
    Before,
}

/// The decision on a request for an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A certificate was issued.
    Certificate,
    /// A token was issued.
    Token,
    /// The request was refused.
    Refused,
}

impl Step {
    const ALL: [Self; 4] = [Self::Parse, Self::Create, Self::Info, Self::Identity];

    fn label(self) -> Label {
        let step = match self {
            Self::Parse => "parse",
            Self::Create => "create",
            Self::Info => "info",
            Self::Identity => "identity",
        };
        [("step", step)]
    }
}

impl Met {
    const ALL: [Self; 2] = [Self::Never, Self::Before];

    fn label(self) -> Label {
        let met = match self {
            Self::Never => "never",
            Self::Before => "before",
        };
        [("met", met)]
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
pub fn took(step: Step, time: Duration) {
    METRICS.steps.get_or_create(&step.label()).observe(time.as_secs_f64());
}

/// Records the time from the discovery of a cluster to a valid identity there.
pub fn known_after(met: Met, time: Duration) {
    METRICS.discovery.get_or_create(&met.label()).observe(time.as_secs_f64());
}

/// Sets the number of clusters that are announced in the local networks.
pub fn announced(clusters: usize) {
    METRICS.neighbours.set(i64::try_from(clusters).unwrap_or(i64::MAX));
}

/// Counts a response of the auth service by path and status code.
pub fn answered(path: &'static str, status: u16) {
    let labels = [("path", path.to_owned()), ("code", status.to_string())];
    METRICS.requests.get_or_create(&labels).inc();
}

/// Counts a decision on a request for an identity.
pub fn decided(outcome: Outcome) {
    METRICS.identities.get_or_create(&outcome.label()).inc();
}

/// All metrics in the text format of Prometheus.
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
    neighbours: Gauge,
    requests: Family<[(&'static str, String); 2], Counter>,
    identities: Family<Label, Counter>,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let times = || Times::new_with_constructor(histogram);
    let mut metrics = Metrics {
        registry: Registry::with_prefix("tombolo"),
        steps: times(),
        discovery: times(),
        neighbours: Gauge::default(),
        requests: Family::default(),
        identities: Family::default(),
    };
    // All series exist from the start, with zero.
    for step in Step::ALL {
        drop(metrics.steps.get_or_create(&step.label()));
    }
    for met in Met::ALL {
        drop(metrics.discovery.get_or_create(&met.label()));
    }
    for outcome in Outcome::ALL {
        drop(metrics.identities.get_or_create(&outcome.label()));
    }
    let registry = &mut metrics.registry;
    registry.register_with_unit(
        "discovery_step",
        "Time of each step from an announcement in the local network to an identity",
        Unit::Seconds,
        metrics.steps.clone(),
    );
    registry.register_with_unit(
        "discovery",
        "Time from the discovery of a cluster to an identity there, if the first attempt succeeds",
        Unit::Seconds,
        metrics.discovery.clone(),
    );
    registry.register(
        "discovery_neighbours",
        "Clusters that are announced in the local networks",
        metrics.neighbours.clone(),
    );
    registry.register(
        "auth_requests",
        "Responses of the auth service by path and status code",
        metrics.requests.clone(),
    );
    registry.register(
        "identity_requests",
        "Decisions on requests for an identity by outcome",
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
    fn recorded_values_are_in_the_text() {
        took(Step::Parse, Duration::from_micros(150));
        known_after(Met::Before, Duration::from_millis(20));
        announced(3);
        answered("/info", 200);
        decided(Outcome::Refused);
        let text = text().unwrap();
        for line in [
            "# UNIT tombolo_discovery_step_seconds seconds",
            "tombolo_discovery_step_seconds_sum{step=\"parse\"} 0.00015",
            "tombolo_discovery_step_seconds_bucket{le=\"0.0001\",step=\"parse\"} 0",
            "tombolo_discovery_step_seconds_bucket{le=\"0.0002\",step=\"parse\"} 1",
            "tombolo_discovery_seconds_count{met=\"before\"} 1",
            "tombolo_discovery_neighbours 3",
            "tombolo_auth_requests_total{path=\"/info\",code=\"200\"} 1",
            "tombolo_identity_requests_total{outcome=\"refused\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
