//! What is measured of one meeting.

use crate::scraped::Scraped;

/// The steps, as the seed calls them, and as the components do.
pub const STEPS: [(&str, &str); 4] = [
    ("mDNS parsing", "parse_announcement"),
    ("create ForeignCluster", "create_foreign_cluster"),
    ("get cluster info", "get_cluster_info"),
    ("retrieve identity", "request_identity"),
];

/// One meeting, in milliseconds.
#[derive(Debug)]
pub struct Run {
    /// Of each step, if it was taken.
    pub steps: [Option<f64>; STEPS.len()],
    /// From when discovery had read the packet to when the status was written, if that took one attempt.
    pub told: Option<f64>,
    /// From the packet on the wire to when a watch shows the status.
    pub seen: f64,
    /// One write to the same API server.
    pub write: f64,
}

impl Run {
    /// By what the components had measured before and after.
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
