//! First light in figures: two clusters of two nodes with the same networks are joined, and it is
//! measured how long that takes, what it costs, what goes through the tunnel, and how fast a Service
//! is known over there. Beside each figure stands something of Kubernetes itself, from the same run.

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
