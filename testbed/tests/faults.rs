//! Every fault affects only its target and ends on drop.

mod common;

use std::time::Duration;

use common::{kubectl_says, rome_and_milan};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tombolo_testbed::{
    Cluster, Component, Node, Protocol, Testbed, Timings, answer_to, eventually,
};

/// The bed, for one test at a time: faults would disturb each other.
async fn bed() -> MutexGuard<'static, Testbed> {
    static BED: OnceCell<Mutex<Testbed>> = OnceCell::const_new();
    // A lost node is detected fast.
    let quick = Timings {
        node_status_update: Duration::from_secs(1),
        node_monitor_period: Duration::from_secs(1),
        node_monitor_grace: Duration::from_secs(5),
    };
    let start = async || Mutex::new(rome_and_milan("faults", quick).await);
    BED.get_or_init(start).await.lock().await
}

async fn answers(from: &Node, to: &Node) -> bool {
    let address = to.address().to_string();
    from.run(&["ping", "-c", "1", "-W", "1", &address]).await.is_ok()
}

async fn node_becomes(cluster: &Cluster, node: &str, wanted: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    kubectl_says(cluster, &["get", "node", node, "-o", path], wanted).await;
}

#[tokio::test]
async fn a_cut_between_clusters_leaves_the_paths_inside_them() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    assert!(answers(rome.node(1), milan.node(1)).await);
    let cut = bed.between(rome, milan).cut().unwrap();
    assert!(!answers(rome.node(1), milan.node(1)).await);
    assert!(!answers(milan.node(2), rome.node(2)).await);
    assert!(answers(rome.node(1), rome.node(2)).await);
    drop(cut);
    assert!(answers(rome.node(1), milan.node(1)).await);
}

#[tokio::test]
async fn a_cut_between_two_nodes_leaves_the_other_nodes() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    let cut = bed.between(rome.node(1), milan.node(1)).cut().unwrap();
    assert!(!answers(rome.node(1), milan.node(1)).await);
    assert!(answers(rome.node(2), milan.node(1)).await);
    cut.undo().unwrap();
    assert!(answers(rome.node(1), milan.node(1)).await);
}

#[tokio::test]
async fn a_cut_in_one_direction_leaves_the_other() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome").node(1), bed.cluster("milan").node(1));
    let heard = async |from: &Node, to: &Node| {
        let listen = "timeout 3 socat -u UDP4-RECV:7777 STDOUT | head -n 1";
        let speak = format!(
            "for i in {{1..14}}; do echo x; sleep 0.2; done | socat -u STDIN UDP4-DATAGRAM:{}:7777",
            to.address()
        );
        let (listen, speak) = (["bash", "-c", listen], ["bash", "-c", &speak]);
        let (heard, _) = tokio::join!(to.run(&listen), from.run(&speak));
        heard.unwrap() == "x\n"
    };
    let cut = bed.between(rome, milan).one_way().cut().unwrap();
    assert!(!heard(rome, milan).await);
    assert!(heard(milan, rome).await);
    drop(cut);
    assert!(heard(rome, milan).await);
}

#[tokio::test]
async fn a_cut_of_one_port_leaves_the_others() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome").node(1), bed.cluster("milan").node(1));
    let url = format!("http://{}:30080/", milan.address());
    let ask = ["curl", "-s", "--max-time", "2", "-o", "/dev/null", url.as_str()];
    let answers_there = async || rome.run(&ask).await;
    eventually("the node port", answers_there, Result::is_ok).await.unwrap();
    let cut = bed.between(rome, milan).port(Protocol::Tcp, 30080).cut().unwrap();
    assert!(rome.run(&ask).await.is_err());
    assert!(answers(rome, milan).await);
    drop(cut);
    rome.run(&ask).await.unwrap();
}

#[tokio::test]
async fn a_lossy_path_drops_the_given_percentage() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome").node(1), bed.cluster("milan").node(1));
    let address = milan.address().to_string();
    let ping = ["ping", "-q", "-i", "0.005", "-c", "300", "-W", "1", &address];
    let lossy = bed.between(rome, milan).one_way().lose(40).unwrap();
    let said = rome.run(&ping).await.unwrap();
    drop(lossy);
    let received: u32 = said
        .lines()
        .find_map(|line| line.split(", ").nth(1)?.strip_suffix(" received")?.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!((110..=250).contains(&received), "of 300 packets {received} came back");
    assert!(bed.between(rome, milan).lose(101).is_err());
}

#[tokio::test]
async fn a_limited_path_is_slower_until_the_fault_ends() {
    let bed = bed().await;
    let (rome, milan) = (bed.cluster("rome").node(1), bed.cluster("milan").node(1));
    let measure = async || {
        let server = ["iperf3", "--server", "--one-off", "--idle-timeout", "20"];
        let client = format!(
            "for i in {{1..50}}; do iperf3 -J -t 2 -c {} > /run/report && break; sleep 0.1; done; \
             cat /run/report",
            milan.address()
        );
        let client = ["bash", "-c", &client];
        let (_, report) = tokio::join!(milan.run(&server), rome.run(&client));
        let report: serde_json::Value = serde_json::from_str(&report.unwrap()).unwrap();
        Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 1e6)
    };
    // The control connection of iperf3 shares the limited path and may break.
    let megabits = async || answer_to("iperf3 has measured", &measure).await;
    let limited = bed.between(rome, milan).limit(20_000).unwrap();
    let slow = megabits().await;
    limited.undo().unwrap();
    let fast = megabits().await;
    assert!(slow < 25.0, "{slow:.1} Mbit/s with a limit of 20");
    assert!(fast > 10.0 * slow, "{fast:.1} Mbit/s after it, {slow:.1} before");
}

const READYZ: [&str; 4] = ["--request-timeout=2s", "get", "--raw", "/readyz"];

#[tokio::test]
async fn a_stopped_api_server_answers_again_after_undo() {
    let bed = bed().await;
    let milan = bed.cluster("milan");
    let stopped = milan.stop(1, Component::ApiServer).unwrap();
    assert!(milan.kubectl(&READYZ).await.is_err());
    assert!(bed.cluster("rome").kubectl(&READYZ).await.is_ok());
    let again = milan.stop(1, Component::ApiServer).unwrap_err().to_string();
    assert_eq!(again, "kube-apiserver is not running on milan-1");
    stopped.undo().unwrap();
    assert_eq!(milan.kubectl(&READYZ).await.unwrap(), "ok");
}

#[tokio::test]
async fn a_frozen_etcd_blocks_the_api_server_until_undo() {
    let bed = bed().await;
    let milan = bed.cluster("milan");
    let hangs = milan.freeze(1, Component::Etcd).unwrap();
    assert!(milan.kubectl(&READYZ).await.is_err());
    drop(hangs);
    kubectl_says(milan, &READYZ, "ok").await;
}

#[tokio::test]
async fn a_stopped_kubelet_makes_its_node_unknown() {
    let bed = bed().await;
    let milan = bed.cluster("milan");
    let stopped = milan.stop(2, Component::Kubelet).unwrap();
    node_becomes(milan, "milan-2", "Unknown").await;
    stopped.undo().unwrap();
    node_becomes(milan, "milan-2", "True").await;
}

#[tokio::test]
async fn simultaneous_faults_end_independently() {
    let bed = bed().await;
    let rome = bed.cluster("rome");
    let runs = |component| rome.node(1).running().contains_key(&component);
    let scheduler = rome.stop(1, Component::Scheduler).unwrap();
    let proxy = rome.stop(1, Component::KubeProxy).unwrap();
    let down = rome.kill_node(2).unwrap();
    assert_eq!(rome.kill_node(2).unwrap_err().to_string(), "rome-2 is down already");
    proxy.undo().unwrap();
    assert!(runs(Component::KubeProxy) && !runs(Component::Scheduler) && !rome.node(2).is_up());
    down.undo().unwrap();
    assert!(rome.node(2).is_up() && !runs(Component::Scheduler));
    drop(scheduler);
    assert!(runs(Component::Scheduler));
}

#[tokio::test]
async fn a_worker_comes_back_from_a_power_cut_with_its_pods() {
    let bed = bed().await;
    let rome = bed.cluster("rome");
    let down = rome.kill_node(2).unwrap();
    assert!(!rome.node(2).is_up() && rome.node(2).running().is_empty());
    node_becomes(rome, "rome-2", "Unknown").await;
    down.undo().unwrap();
    node_becomes(rome, "rome-2", "True").await;
    rome.deployed("default", "web").await.unwrap();
    let ask = async || {
        let ask = ["curl", "-s", "--max-time", "2", "http://web.default.svc:8080/"];
        rome.exec("default", "deploy/client", &ask).await
    };
    let web = |answer: &tombolo_testbed::Result<String>| {
        answer.as_ref().is_ok_and(|text| text.starts_with("web-"))
    };
    eventually("the service after the boot", ask, web).await.unwrap();
}

#[tokio::test]
async fn a_control_plane_comes_back_from_a_power_cut_with_its_objects() {
    let bed = bed().await;
    let rome = bed.cluster("rome");
    let uid = ["get", "namespace", "default", "-o", "jsonpath={.metadata.uid}"];
    let before = rome.kubectl(&uid).await.unwrap();
    let down = rome.kill_node(1).unwrap();
    assert!(rome.kubectl(&["--request-timeout=2s", "get", "nodes"]).await.is_err());
    down.undo().unwrap();
    node_becomes(rome, "rome-1", "True").await;
    assert_eq!(rome.kubectl(&uid).await.unwrap(), before);
}
