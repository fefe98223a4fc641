//! Steps 2 and 3: discovery, identity, peering, network, virtual node.

use serde_json::Value;

use crate::common::{condition, get, list, tombolo};
use crate::story::{NODE, story};

#[tokio::test]
async fn each_cluster_discovers_the_other_and_has_an_identity_there() {
    let story = story().await;
    for (here, there) in [("rome", "milan"), ("milan", "rome")] {
        let cluster = get(story.bed.cluster(here), &["foreigncluster", there]).await;
        let label = "discovery.liqo.io/discovery-type";
        assert_eq!(cluster["metadata"]["labels"][label], "LAN", "{cluster:#}");
        assert_eq!(cluster["spec"]["clusterIdentity"]["clusterName"], there);
        assert!(cluster["spec"]["fingerprint"].is_string(), "pinned: {cluster:#}");
        assert_eq!(cluster["status"]["authStatus"], "Accepted", "{cluster:#}");
        assert_eq!(condition(&cluster, "Authenticated"), "True", "{cluster:#}");
        let said = cluster["status"]["conditions"].to_string();
        assert!(said.contains("in the form of a certificate"), "{said}");
        assert_eq!(condition(&cluster, "APIServer"), "True", "{cluster:#}");
        assert_eq!(condition(&cluster, "TunnelEndpoint"), "True", "{cluster:#}");
    }
    let milan = get(story.rome(), &["foreigncluster", "milan"]).await;
    assert_eq!(condition(&milan, "OutgoingPeering"), "True");
    assert_ne!(condition(&milan, "IncomingPeering"), "True");
    let rome = get(story.milan(), &["foreigncluster", "rome"]).await;
    assert_eq!(condition(&rome, "IncomingPeering"), "True");
    assert_ne!(condition(&rome, "OutgoingPeering"), "True");
}

#[tokio::test]
async fn overlapping_cidrs_are_translated_on_both_sides() {
    let story = story().await;
    for (here, there) in [("rome", "milan"), ("milan", "rome")] {
        let ours = story.tunnel(here).await["status"].clone();
        let theirs = story.tunnel(there).await["status"].clone();
        assert_eq!(ours["localPodCIDR"], "10.244.0.0/16");
        let name_for_them = ours["remoteNATPodCIDR"].as_str().unwrap();
        assert_ne!(name_for_them, "None");
        assert_ne!(name_for_them, "10.244.0.0/16");
        assert_eq!(theirs["localNATPodCIDR"], name_for_them, "both agree on the CIDR");
        assert_eq!(ours["connection"]["status"], "connected");
        let configs = list(story.bed.cluster(here), &["networkconfigs", "-A"]).await;
        assert_eq!(configs.len(), 2, "{configs:#?}");
        assert!(configs.iter().all(|config| config["status"]["processed"] == true));
    }
}

#[tokio::test]
async fn milan_is_a_node_of_rome() {
    let story = story().await;
    let node = get(story.rome(), &["node", NODE]).await;
    assert_eq!(condition(&node, "Ready"), "True");
    assert_eq!(node["metadata"]["labels"]["liqo.io/type"], "virtual-node");
    let offers = list(story.rome(), &["resourceoffers", "-A"]).await;
    let offer = offers.iter().find(|offer| offer["status"]["virtualNode"] == NODE);
    let offer = offer.expect("there is an offer");
    assert_eq!(offer["status"]["phase"], "Accepted");
    let pods = |object: &Value| object.as_str().map(str::to_owned);
    assert_eq!(
        pods(&node["status"]["allocatable"]["pods"]),
        pods(&offer["spec"]["resourceQuota"]["hard"]["pods"])
    );
    let taint = &node["spec"]["taints"][0];
    assert_eq!(taint["key"], "virtual-node.liqo.io/not-allowed", "{taint}");
}

#[tokio::test]
async fn status_shows_borrowed_and_lent_resources() {
    let story = story().await;
    let rome: Value =
        serde_json::from_str(&tombolo(story.rome(), &["status", "-o", "json"]).await).unwrap();
    let milan = &rome["peers"][0];
    assert_eq!(milan["name"], "milan");
    assert_eq!(milan["authentication"], "Accepted");
    assert_eq!(milan["outgoing"]["status"], "True");
    assert_eq!(milan["network"]["status"], "True");
    assert_eq!(milan["borrowed"]["node"], NODE);
    let there = story.offloaded().await.len();
    assert_eq!(milan["borrowed"]["pods"], there);
    assert_eq!(rome["namespaces"][0]["name"], "shop");
    assert_eq!(rome["namespaces"][0]["clusters"]["milan"], "shop");
    let milan: Value =
        serde_json::from_str(&tombolo(story.milan(), &["status", "-o", "json"]).await).unwrap();
    assert_eq!(milan["peers"][0]["incoming"]["status"], "True");
    assert_eq!(milan["peers"][0]["lent"]["pods"], there);
    let text = tombolo(story.rome(), &["status"]).await;
    for part in ["Cluster rome", "milan", NODE, "shop"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
