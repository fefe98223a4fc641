//! The measurements of one discovery.

use crate::scraped::Scraped;

/// The steps, by their names in the design document and in the metrics.
pub const STEPS: [(&str, &str); 4] = [
    ("mDNS parsing", "parse_announcement"),
    ("create ForeignCluster", "create_foreign_cluster"),
    ("get cluster info", "get_cluster_info"),
    ("retrieve identity", "request_identity"),
];

/// One discovery, in milliseconds.
#[derive(Debug)]
pub struct Run {
    /// Duration of each step, if it ran.
    pub steps: [Option<f64>; STEPS.len()],
    /// From the packet's parsing to the write of the status, if that took one attempt.
    pub told: Option<f64>,
    /// From the packet on the wire to the status in a watch.
    pub seen: f64,
    /// One write to the same API server.
    pub write: f64,
}

impl Run {
    /// From the metrics before and after.
    pub fn of(before: &Scraped, after: &Scraped, seen: f64, write: f64) -> Self {
        let steps = STEPS.map(|(_, step)| {
            let labels = format!("step=\"{step}\"");
            after.since(before, "tombolo_discovery_step_duration_seconds", &labels)
        });
        let told = ["issued", "reused"].into_iter().find_map(|source| {
            let labels = format!("identity=\"{source}\"");
            after.since(before, "tombolo_discovery_duration_seconds", &labels)
        });
        Self { steps, told, seen, write }
    }
}
