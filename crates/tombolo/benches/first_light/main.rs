//! Benchmark of two peered clusters of two nodes with the same CIDRs: time to peer, memory and CPU,
//! throughput of the tunnel, and time to reflect a Service. The baseline is Kubernetes itself, in
//! the same run.

#[path = "../../tests/common/mod.rs"]
mod common;

mod exposition;
mod figures;
mod footprint;
mod join;
mod moments;
mod processes;
mod round_trip;
mod traffic;

use tombolo_testbed::ClusterSpec;

use common::{SOON, condition, list, tombolo, within};

const SHOP: &str = include_str!("../../src/playground/shop.yaml");

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let specs = ["rome", "milan"].map(ClusterSpec::new);
    let bed = common::bed("bench-light", specs).start().await?;
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));

    common::install(&bed, &["--empty-token"]).await;
    for cluster in bed.clusters() {
        let known = async || {
            let all = list(cluster, &["foreignclusters"]).await;
            all.iter().any(|it| condition(it, "Authenticated") == "True")
        };
        within(SOON, &format!("{} knows the other", cluster.name()), known, |known| *known).await;
    }

    join::measure(rome, milan).await?;

    let (namespace, application) = SHOP.split_once("---\n").expect("there are several documents");
    rome.apply(namespace).await?;
    tombolo(rome, &["offload", "namespace", "shop", "--same-name"]).await;
    rome.apply(application).await?;
    rome.deployed("shop", "web").await?;
    footprint::measure(&bed).await?;
    let whole = ["delete", "deployment/web", "service/web", "-n", "shop", "--cascade=foreground"];
    rome.kubectl(&whole).await?;

    traffic::measure(rome, milan).await?;
    exposition::measure(rome, milan).await?;
    bed.remove()?;
    Ok(())
}
