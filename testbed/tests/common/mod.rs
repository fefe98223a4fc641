//! Helpers for tests on whole clusters.

use tombolo_testbed::{Cluster, ClusterSpec, Testbed, Timings, eventually, images};

/// Rome and milan with the same CIDRs and two nodes each. Every node has a client and a web server
/// that returns the name of its pod.
pub async fn rome_and_milan(name: &str, timings: Timings) -> Testbed {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain()).expect("all is there");
    let toolbox = images::toolbox().expect("the toolbox's programs are installed");
    let cluster = |name| {
        let spec = ClusterSpec::new(name).nodes(2).timings(timings);
        spec.image(toolbox.clone())
    };
    let bed = Testbed::builder(name).cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the clusters start");
    for cluster in bed.clusters() {
        let web = include_str!("../manifests/web.yaml");
        cluster.apply(web).await.expect("the manifests apply");
    }
    for cluster in bed.clusters() {
        for name in ["web", "client"] {
            cluster.deployed("default", name).await.expect("the pods run");
        }
    }
    bed
}

/// Runs kubectl until it prints the wanted text.
pub async fn kubectl_says(cluster: &Cluster, arguments: &[&str], wanted: &str) {
    let ask = async || cluster.kubectl(arguments).await;
    let is =
        |answer: &tombolo_testbed::Result<String>| answer.as_ref().is_ok_and(|text| text == wanted);
    let what = format!("kubectl {}", arguments.join(" "));
    eventually(&what, ask, is).await.expect("it was as wanted");
}
