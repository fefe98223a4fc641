//! Benchmark of two hundred clusters in one local network: the time until `tombolo discovery` has
//! an entry for each, and its CPU time, memory and writes until then and when idle. The baseline is
//! the same number of single writes to the same API server in the same run.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../first_light/figures.rs"]
mod figures;
#[path = "../addresses/writes.rs"]
mod writes;

mod crowd;
mod process;

use std::time::{Duration, Instant};

use anyhow::Result;
use common::control::memory;
use figures::{print, table};
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

use crowd::Crowd;
use process::{Discovery, processor, writes_of};

const CLUSTERS: u16 = 200;
/// The default TTL of announcements, which covers all periodic work.
const IDLE: Duration = Duration::from_secs(90);

#[tokio::main]
async fn main() -> Result<()> {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain())?;
    let spec = ClusterSpec::new("rome").control_plane_only().durable();
    let bed = Testbed::builder("bench-neighbours").cluster(spec).start().await?;
    let mut side = Side::new(bed.cluster("rome")).await;
    side.settings.host_ip = bed.cluster("rome").node(1).address().into();
    let service = json!({
        "metadata": { "annotations": { "discovery.liqo.io/fingerprint": "0f".repeat(32) } },
        "spec": { "type": "NodePort", "ports": [{ "port": 443 }] },
    });
    side.put_in::<Service>("liqo", "liqo-auth", service).await;
    let one_by_one = f64::from(CLUSTERS) / writes::a_second(&side.client, 1).await?;
    let at_once = f64::from(CLUSTERS) / writes::a_second(&side.client, 16).await?;

    let crowd = Crowd::gather(bed.cluster("rome").node(1), CLUSTERS).await?;
    let before = writes_of(&side, "foreignclusters").await?;
    let start = Instant::now();
    let discovery = Discovery::start(&side, &common::static_program())?;
    let clusters = side.all::<ForeignCluster>();
    while clusters.list_metadata(&ListParams::default()).await?.items.len() < CLUSTERS.into() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = start.elapsed().as_secs_f64();
    let (processor_then, memory_then) = (processor(discovery.pid()), memory(discovery.pid()));
    let made = writes_of(&side, "foreignclusters").await?;
    tokio::time::sleep(IDLE).await;
    let (processor_later, memory_later) = (processor(discovery.pid()), memory(discovery.pid()));
    let kept = writes_of(&side, "foreignclusters").await?;
    let left = clusters.list_metadata(&ListParams::default()).await?.items.len();
    anyhow::ensure!(left == usize::from(CLUSTERS), "{left} of {CLUSTERS} clusters are left");

    let mut rows = table(1, &["", "", "RATIO"]);
    let mut row = |name: &str, figure: String, ratio: Option<f64>| {
        let ratio = ratio.map(|ratio| format!("{ratio:.2} ×")).unwrap_or_default();
        rows.add_row([name.to_owned(), figure, ratio]);
    };
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    row("as many single writes, one by one", seconds(one_by_one), Some(1.0));
    row("as many single writes, 16 at once", seconds(at_once), Some(at_once / one_by_one));
    row("from the start until all have an entry", seconds(found), Some(found / one_by_one));
    row("CPU time until then", seconds(processor_then), Some(processor_then / found));
    row("memory then", format!("{memory_then:.1} MiB"), None);
    row("writes until then", (made - before).to_string(), None);
    let idle = processor_later - processor_then;
    let share = idle / IDLE.as_secs_f64();
    let minutes = IDLE.as_secs_f64() / 60.0;
    row("CPU when all are known", format!("{:.2} % of a core", share * 100.0), None);
    row("memory when all are known", format!("{memory_later:.1} MiB"), None);
    row("writes per minute then", format!("{:.0}", (kept - made) as f64 / minutes), None);
    print(&format!("{CLUSTERS} clusters in one local network"), &rows);
    drop((discovery, crowd));
    bed.remove()?;
    Ok(())
}
