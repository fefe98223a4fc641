//! Steps 7 and 8: loss of the tunnel, an API server and components.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tombolo_testbed::{Cluster, Component, Protocol};

use crate::common::{SOON, condition, get, list, name, within};
use crate::story::{NODE, Story, URL, story};

const AT_ONCE: Duration = Duration::from_secs(5);

/// The number of ready endpoints of the Service in a cluster, of the other cluster and of its own.
async fn ready_endpoints(cluster: &Cluster) -> Endpoints {
    let slices = ["endpointslices", "-n", "shop", "-l", "kubernetes.io/service-name=web"];
    let mut count = Endpoints::default();
    for slice in list(cluster, &slices).await {
        let managed = &slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
        let reflected = managed == "endpointslice.reflection.liqo.io";
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let remote = reflected || endpoint["nodeName"] == NODE;
            if endpoint["conditions"]["ready"] == true {
                *(if remote { &mut count.theirs } else { &mut count.ours }) += 1;
            }
        }
    }
    count
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Endpoints {
    ours: usize,
    theirs: usize,
}

async fn node_is(story: &Story) -> String {
    condition(&get(story.rome(), &["node", NODE]).await, "Ready").to_owned()
}

#[tokio::test]
async fn a_cut_tunnel_is_detected_within_seconds_and_recovers() {
    let story = story().await;
    let all = ready_endpoints(story.rome()).await;
    assert!(all.ours > 0 && all.theirs > 0, "{all:?}");

    let cut = story.bed.between(story.rome(), story.milan()).port(Protocol::Udp, 51840).cut();
    let cut = cut.unwrap();
    let since = Instant::now();
    let left = || AT_ONCE.saturating_sub(since.elapsed());
    let node = async || node_is(&story).await;
    within(left(), "the node is not Ready", node, |status| status != "True").await;
    let pods = async || {
        let pods = story.offloaded().await;
        pods.iter().filter(|pod| condition(pod, "Ready") == "True").count()
    };
    within(left(), "its pods are not Ready", pods, |ready| *ready == 0).await;
    for cluster in [story.rome(), story.milan()] {
        let endpoints = async || ready_endpoints(cluster).await;
        let what = format!("the other's endpoints in {}", cluster.name());
        within(left(), &what, endpoints, |count| count.theirs == 0 && count.ours > 0).await;
    }
    for side in ["rome", "milan"] {
        let client = story.client(side).await;
        for hello in client.send_all(URL, 40).await {
            assert!(hello.node.starts_with(side), "asked in {side}, answered by {}", hello.node);
        }
    }

    cut.undo().unwrap();
    let node = async || node_is(&story).await;
    within(SOON, "the node is Ready again", node, |status| status == "True").await;
    for side in ["rome", "milan"] {
        let client = story.client(side).await;
        client.reaches_all(URL, &names(&story.pods().await)).await;
    }
}

#[tokio::test]
async fn pods_in_milan_survive_the_loss_of_romes_api_server() {
    let story = story().await;
    let there: Vec<String> =
        story.offloaded().await.iter().map(|pod| name(pod).to_owned()).collect();
    let before = ready_endpoints(story.milan()).await;
    assert!(before.theirs > 0, "{before:?}");
    let stopped = story.rome().stop(1, Component::ApiServer).unwrap();
    let endpoints = async || ready_endpoints(story.milan()).await;
    let limit = Duration::from_secs(15);
    within(limit, "rome's endpoints in milan", endpoints, |count| count.theirs == 0).await;
    for pod in &there {
        let twin = get(story.milan(), &["pod", "-n", "shop", pod]).await;
        assert_eq!(condition(&twin, "Ready"), "True", "{pod}");
    }
    let client = story.clients["milan"].iter().find(|client| !client.on_host).unwrap();
    for hello in client.send_all(URL, 40).await {
        assert!(there.contains(&hello.pod), "{hello:?}");
    }
    stopped.undo().unwrap();
    let endpoints = async || ready_endpoints(story.milan()).await;
    within(SOON, "rome's endpoints are back", endpoints, |count| *count == before).await;
    for pod in &there {
        let pod = get(story.rome(), &["pod", "-n", "shop", pod]).await;
        assert_eq!(pod["spec"]["nodeName"], NODE, "no pod was restarted");
    }
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| name(pod).to_owned()).collect()
}

fn selector(component: &str) -> String {
    format!("app.kubernetes.io/name=liqo-{component}")
}

/// UID and restarts of the pods of a component; None while one is not ready.
async fn lives(cluster: &Cluster, component: &str) -> Option<BTreeSet<String>> {
    let pods = list(cluster, &["pods", "-n", "liqo", "-l", &selector(component)]).await;
    let life = |pod: &Value| {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        (condition(pod, "Ready") == "True")
            .then(|| format!("{} {restarts}", pod["metadata"]["uid"]))
    };
    pods.iter().map(life).collect()
}

/// Kills the processes of a component on all nodes.
async fn kill_9(cluster: &Cluster, component: &str) {
    let pattern = format!("^[^ ]*tombolo {component}");
    let mut killed = 0;
    for node in cluster.nodes() {
        killed += usize::from(node.run(&["pkill", "-9", "-f", &pattern]).await.is_ok());
    }
    assert!(killed > 0, "{component} runs nowhere in {}", cluster.name());
}

#[tokio::test]
async fn every_component_recovers_from_a_crash() {
    let story = story().await;
    let before = names(&story.pods().await);
    for cluster in story.bed.clusters() {
        for component in ["control", "auth", "discovery", "kubelet", "gateway", "agent"] {
            let client = story.client("rome").await;
            let load = client.start_load(URL).await;
            let first = lives(cluster, component).await;
            kill_9(cluster, component).await;
            let what = format!("{component} of {} is back", cluster.name());
            let again = async || lives(cluster, component).await;
            within(SOON, &what, again, |now| now.is_some() && *now != first).await;
            client.reaches_all(URL, &before).await;
            let outcome = load.stop().await;
            let (answered, failed) = (outcome.answered, &outcome.failed);
            eprintln!("{what}: {answered} requests answered, not {failed:?}");
            // Only the gateway forwards packets to the other cluster.
            assert!(component == "gateway" || failed.is_empty(), "{what}: {failed:?}");
            let node = async || node_is(&story).await;
            within(SOON, "liqo-milan is Ready", node, |status| status == "True").await;
        }
    }
    assert_eq!(before, names(&story.pods().await), "no pod was replaced");
}

/// The node of the gateway is cordoned, so that the gateway moves to another one.
#[tokio::test]
async fn a_gateway_moves_to_another_node() {
    let story = story().await;
    let before = names(&story.pods().await);
    for cluster in story.bed.clusters() {
        let gateway = ["pods", "-n", "liqo", "-l", &selector("gateway")];
        let place = async || {
            let pods = list(cluster, &gateway).await;
            let ready = pods.iter().find(|pod| condition(pod, "Ready") == "True");
            ready.and_then(|pod| pod["spec"]["nodeName"].as_str()).map(str::to_owned)
        };
        let first = place().await.expect("there is a gateway");
        cluster.kubectl(&["cordon", &first]).await.unwrap();
        let delete = [&["delete"], &gateway[..], &["--force"]].concat();
        cluster.kubectl(&delete).await.unwrap();
        let what = format!("another node of {} has the gateway", cluster.name());
        let moved = |now: &Option<String>| now.as_ref().is_some_and(|now| *now != first);
        within(SOON, &what, place, moved).await;
        for side in ["rome", "milan"] {
            story.client(side).await.reaches_all(URL, &before).await;
        }
        let node = cluster.nodes().iter().find(|node| node.name() == first).unwrap();
        let left = async || node.run(&["ls", "/run/netns"]).await.unwrap();
        within(SOON, "nothing of it is left", left, |all| !all.contains("liqo-gateway")).await;
        cluster.kubectl(&["uncordon", &first]).await.unwrap();
    }
    assert_eq!(before, names(&story.pods().await), "no pod was replaced");
}
