//! HTTP requests from pods: one by one, or continuously.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use tombolo_testbed::Cluster;

use super::{SOON, list, within};

/// Clients on every node: one in the pod network and one in the host network.
const CLIENTS: &str = include_str!("clients.yaml");

/// The response of a server: its pod and node, and the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub pod: String,
    pub node: String,
    pub client: Ipv4Addr,
}

impl Hello {
    fn parse(text: &str) -> Option<Self> {
        let (pod, rest) = text.trim().split_once(" on ")?;
        let (node, client) = rest.split_once(", request from ")?;
        // A dual-stack server sees IPv4-mapped addresses.
        let client = client.trim_start_matches("[::ffff:").trim_end_matches(']');
        let client = client.trim_start_matches("::ffff:").parse().ok()?;
        Some(Self { pod: pod.to_owned(), node: node.to_owned(), client })
    }
}

/// A script that sends this many requests, up to the first failure.
pub fn request_script(url: &str, times: usize) -> String {
    format!("for i in $(seq {times}); do curl -sS -m 5 {url} || exit 1; done")
}

/// Parses the output of such a script; the error is an unexpected line.
pub fn hellos(said: &str) -> Result<Vec<Hello>, String> {
    said.lines().map(|line| Hello::parse(line).ok_or_else(|| line.to_owned())).collect()
}

/// A pod to send requests from.
#[derive(Debug, Clone)]
pub struct Client {
    cluster: Cluster,
    pub pod: String,
    pub node: String,
    pub address: Ipv4Addr,
    pub on_host: bool,
}

/// Clients on all nodes of a cluster.
pub async fn clients(cluster: &Cluster) -> Vec<Client> {
    cluster.apply(CLIENTS).await.expect("the clients are made");
    for set in ["client", "host-client"] {
        let set = format!("daemonset/{set}");
        let done = ["--namespace", "clients", "rollout", "status", &set, "--timeout=60s"];
        cluster.kubectl(&done).await.expect("the clients run");
    }
    let pods = list(cluster, &["pods", "--namespace", "clients"]).await;
    let of = |pod: &serde_json::Value| {
        Some(Client {
            cluster: cluster.clone(),
            pod: pod["metadata"]["name"].as_str()?.to_owned(),
            node: pod["spec"]["nodeName"].as_str()?.to_owned(),
            address: pod["status"]["podIP"].as_str()?.parse().ok()?,
            on_host: pod["spec"]["hostNetwork"].as_bool().unwrap_or(false),
        })
    };
    pods.iter().filter_map(of).collect()
}

/// Runs a pod on every node once, which creates the pod bridge and the rules of Kubernetes.
pub async fn pods_on_all_nodes(cluster: &Cluster) {
    clients(cluster).await;
    cluster.kubectl(&["delete", "namespace", "clients"]).await.expect("the clients go");
}

impl Client {
    pub async fn run(&self, script: &str) -> tombolo_testbed::Result<String> {
        self.cluster.exec("clients", &self.pod, &["sh", "-c", script]).await
    }

    /// Sends one request; the error is that of curl.
    pub async fn ask(&self, url: &str) -> Result<Hello, String> {
        let script = format!("curl -sS -m 5 {url}");
        let said = self.run(&script).await.map_err(|error| error.to_string())?;
        Hello::parse(&said).ok_or(said)
    }

    /// Sends this many requests, up to the first failure, and returns the responses.
    pub async fn try_send_all(&self, url: &str, times: usize) -> Result<Vec<Hello>, String> {
        let said = self.run(&request_script(url, times)).await;
        hellos(&said.map_err(|error| format!("{} on {}: {error}", self.pod, self.node))?)
    }

    /// Sends this many requests and returns the responses. All must succeed.
    pub async fn send_all(&self, url: &str, times: usize) -> Vec<Hello> {
        self.try_send_all(url, times).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The pods that respond to this many requests. All must succeed.
    pub async fn responders(&self, url: &str, times: usize) -> BTreeSet<String> {
        self.send_all(url, times).await.into_iter().map(|hello| hello.pod).collect()
    }

    /// Waits until all of these pods have responded, and no request fails in between.
    pub async fn reaches_all(&self, url: &str, expected: &BTreeSet<String>) {
        let answers = async || self.try_send_all(url, 60).await;
        let all = |answers: &Result<Vec<Hello>, String>| {
            answers.as_ref().is_ok_and(|hellos| {
                *expected == hellos.iter().map(|hello| hello.pod.clone()).collect()
            })
        };
        within(SOON, &format!("all answer to {}", self.node), answers, all).await;
    }

    /// Sends requests one after the other until stopped.
    pub async fn start_load(&self, url: &str) -> Load {
        let script = format!(
            "rm -f /tmp/stop /tmp/log; touch /tmp/log
             (while [ ! -e /tmp/stop ]; do
                curl -sS -m 5 -o /dev/null -w 'ok\\n' {url} || echo \"failed at $(date +%T)\"
                sleep 0.05
              done; echo end) >>/tmp/log 2>&1 </dev/null &"
        );
        self.run(&script).await.expect("the requests start");
        Load { client: self.clone() }
    }
}

/// A running sequence of requests.
#[derive(Debug)]
pub struct Load {
    client: Client,
}

/// The results of the requests.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub answered: usize,
    pub failed: Vec<String>,
}

impl Load {
    pub async fn stop(self) -> Outcome {
        let script =
            "touch /tmp/stop; while ! grep -q ^end /tmp/log; do sleep 0.1; done; cat /tmp/log";
        let log = self.client.run(script).await.expect("the requests stop");
        let mut outcome = Outcome::default();
        for line in log.lines().filter(|line| *line != "end") {
            match line {
                "ok" => outcome.answered += 1,
                other => outcome.failed.push(other.to_owned()),
            }
        }
        outcome
    }
}
