//! `tombolo control` as a process on a control plane without nodes, with known peers, for tests and
//! benchmarks of the address service.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tombolo_api::ipam::GetHomePodIpRequest;
use tombolo_api::ipam::ipam_client::IpamClient;
use tombolo_api::names::{IPAM_PORT, REPLICATED_FROM_LABEL};
use tombolo_api::net::{IpamStorage, NetworkConfig};
use tombolo_testbed::eventually;
use tombolo_testing::Side;
use tonic::transport::Channel;

/// Ids and PodCIDRs of the peers.
pub const PEERS: [(&str, &str); 2] =
    [("id-of-turin", "10.20.0.0/16"), ("id-of-genoa", "10.30.0.0/16")];

/// A process. It is killed on drop.
pub struct Control {
    process: Child,
    pub address: SocketAddr,
}

/// Creates the objects of peerings with the peers, in a cluster with this ExternalCIDR.
pub async fn know_peers(side: &Side, own_external: &str) {
    let mut subnets = serde_json::Map::new();
    for (n, (id, pods)) in PEERS.into_iter().enumerate() {
        let (namespace, external) = (format!("liqo-tenant-{n}"), format!("10.{}.0.0/16", 50 + n));
        side.tenant(&namespace, id).await;
        let config = config_of(side, id, pods, &external);
        side.put_in::<NetworkConfig>(&namespace, "theirs", config).await;
        let of_peer = json!({
            "localNATPodCIDR": "None",
            "localNATExternalCIDR": "None",
            "remotePodCIDR": pods,
            "remoteExternalCIDR": external,
            "remoteNATPodCIDR": "None",
            "remoteNATExternalCIDR": "None",
        });
        subnets.insert(id.to_owned(), of_peer);
    }
    let spec = json!({ "spec": { "clusterSubnets": subnets, "externalCIDR": own_external } });
    side.put::<IpamStorage>("liqo-networks", spec).await;
}

/// The NetworkConfig that a peer sends.
pub fn config_of(side: &Side, peer: &str, pods: &str, external: &str) -> Value {
    json!({
        "metadata": { "labels": { REPLICATED_FROM_LABEL: peer } },
        "spec": {
            "clusterID": side.settings.cluster_id,
            "podCIDR": pods,
            "externalCIDR": external,
            "endpointIP": "192.0.2.9",
            "backendType": "wireguard",
            "backend_config": {},
        },
    })
}

/// Memory of a process, in MiB.
pub fn memory(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("it has a PSS");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024.0
}

impl Control {
    /// Starts the program and waits until it answers.
    pub async fn start(side: &Side, program: &Path, name: &str) -> Self {
        let node = side.cluster.node(1);
        let settings = &side.settings;
        let process = Command::new("ip")
            .args(["netns", "exec", &node.network_namespace()])
            .arg(program)
            .arg("control")
            .args(["--cluster-id", settings.cluster_id.as_str()])
            .args(["--cluster-name", settings.cluster_name.as_str()])
            .args(["--api-server-url", &settings.api_server_url])
            .args(["--pod-cidr", &settings.pod_cidr.to_string()])
            .args(["--service-cidr", &settings.service_cidr.to_string()])
            .args(["--pod-name", name])
            .env("KUBECONFIG", side.cluster.kubeconfig())
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .expect("the program can be started");
        let control = Self { process, address: (node.address(), IPAM_PORT).into() };
        let ask = async || control.answers().await;
        eventually("the address service answers", ask, |answers| *answers).await;
        control
    }

    /// A client with its own connection.
    pub async fn client(&self) -> Result<IpamClient<Channel>, tonic::transport::Error> {
        IpamClient::connect(format!("http://{}", self.address)).await
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    async fn answers(&self) -> bool {
        let Ok(mut client) = self.client().await else { return false };
        let (id, pods) = PEERS[0];
        let ip = pods.replace("0.0/16", "1.1");
        client.get_home_pod_ip(GetHomePodIpRequest { cluster_id: id.into(), ip }).await.is_ok()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
