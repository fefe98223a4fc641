//! `tombolo discovery` as a process, and its resource usage.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tombolo_testing::Side;

/// Ticks per second (USER_HZ).
const TICKS: f64 = 100.0;

/// A process. It is killed on drop.
pub struct Discovery(Child);

impl Discovery {
    /// Starts the program in the network namespace of the cluster's node.
    pub fn start(side: &Side, program: &Path) -> Result<Self> {
        let settings = &side.settings;
        let process = Command::new("ip")
            .args(["netns", "exec", &side.cluster.node(1).network_namespace()])
            .arg(program)
            .arg("discovery")
            .args(["--cluster-id", settings.cluster_id.as_str()])
            .args(["--cluster-name", settings.cluster_name.as_str()])
            .args(["--api-server-url", &settings.api_server_url])
            .args(["--pod-cidr", &settings.pod_cidr.to_string()])
            .args(["--service-cidr", &settings.service_cidr.to_string()])
            .args(["--host-ip", &settings.host_ip.to_string()])
            .env("KUBECONFIG", side.cluster.kubeconfig())
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .context("start the program")?;
        Ok(Self(process))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of a process, in seconds.
pub fn processor(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = text.rsplit_once(") ").expect("it has a name in parentheses");
    let ticks = |field: usize| -> f64 {
        fields.split(' ').nth(field).and_then(|text| text.parse().ok()).expect("a number")
    };
    (ticks(11) + ticks(12)) / TICKS
}

/// Number of writes to objects of a kind, from the metrics of the API server.
pub async fn writes_of(side: &Side, resource: &str) -> Result<u64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let metrics = side.client.request_text(request).await?;
    let resource = format!("resource=\"{resource}\"");
    let verbs = ["POST", "PUT", "PATCH", "APPLY", "DELETE"].map(|verb| format!("verb=\"{verb}\""));
    let lines = metrics.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix("apiserver_request_total{")?.split_once("} ")?;
        let is_write = verbs.iter().any(|verb| labels.contains(verb));
        (is_write && labels.contains(&resource)).then_some(count)
    });
    lines.map(|count| count.parse::<u64>().context("read the metrics")).sum()
}
