//! Benchmark of the address service on a real API server that syncs to disk: time to map endpoints
//! for a few clients and for many, its growth with the number of mappings, memory, and recovery
//! time. The baseline is single writes to the same API server in the same run.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../first_light/figures.rs"]
mod figures;

mod aims;
mod load;
mod plot;
mod writes;

use std::time::Instant;

use aims::{at_least, at_most};
use anyhow::Result;
use common::control::{Control, know_peers, memory};
use figures::{median, milliseconds, print, table, worst};
use load::{Load, map_all};
use plot::{Line, plot};
use tombolo_api::net::{IpamStorage, NatMapping};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

/// As in the design document: clients, requests of each, and its seconds where it has them.
const FEW: usize = 5;
const EACH: [(usize, Option<f64>); 5] =
    [(10, None), (50, None), (100, Some(260.68)), (150, None), (200, Some(675.42))];
/// Limit for the last of these.
const FEW_SECONDS: f64 = 4.0;
const MANY: usize = 50;
/// Requests of each client, runs, and required answers per second.
const MANY_EACH: usize = 2000;
const RUNS: usize = 3;
const MANY_A_SECOND: f64 = 3000.0;
/// Up to this many mappings, a thousand should take about as long as the first thousand.
const FLAT: usize = 50_000;
const FLAT_RATIO: f64 = 1.5;
/// Answers per point of the plot.
const STEP: usize = 1000;
/// ExternalCIDRs: the default size, and a larger one for more mappings.
const USUAL: &str = "10.128.0.0/16";
const LARGE: &str = "10.128.0.0/15";

#[tokio::main]
async fn main() -> Result<()> {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain())?;
    let spec = ClusterSpec::new("rome").control_plane_only().durable();
    let bed = Testbed::builder("bench-addresses").cluster(spec).start().await?;
    let side = Side::new(bed.cluster("rome")).await;
    few(&side).await?;
    many(&side).await?;
    sizes(&side).await?;
    bed.remove()?;
    Ok(())
}

/// B1 of the design document: a few clients, each with one request at a time.
async fn few(side: &Side) -> Result<()> {
    let header = ["REQUESTS", "SEED", "HERE", "AIM", "A SECOND", "SINGLE WRITES A SECOND", "RATIO"];
    let mut rows = table(0, &header);
    let mut points = Vec::new();
    for (each, seed) in EACH {
        let writes = writes::a_second(&side.client, FEW).await?;
        forget(side, USUAL).await;
        let control = start(side).await;
        let load = Load { clients: FEW, connections: FEW, each, after: 0 };
        let moments = map_all(&control, load).await?;
        drop(control);
        let (count, seconds) = (FEW * each, moments.took().as_secs_f64());
        let rate = count as f64 / seconds;
        points.push((count as f64, seconds));
        let is_last = each == EACH[EACH.len() - 1].0;
        rows.add_row([
            count.to_string(),
            seed.map(|seconds| format!("{seconds:.0} s")).unwrap_or_default(),
            format!("{seconds:.2} s"),
            if is_last { at_most(FEW_SECONDS, " s", seconds) } else { String::new() },
            format!("{rate:.0}"),
            format!("{writes:.0}"),
            format!("{:.2} ×", rate / writes),
        ]);
    }
    print(&format!("MapEndpointIP by {FEW} clients, one request at a time each"), &rows);
    let line = Line { name: format!("{FEW} clients"), points };
    plot("addresses-few", "MapEndpointIP", "requests", "seconds", &[line])
}

/// Many clients with their own connections, repeated from an empty state, because the speed of the
/// machine varies.
async fn many(side: &Side) -> Result<()> {
    let flat = format!("LAST OF {FLAT}");
    let header = [
        "RUN",
        "SINGLE WRITES A SECOND",
        "MAPPINGS A SECOND",
        "RATIO",
        "FIRST THOUSAND",
        &flat,
        "RATIO",
        "LAST OF ALL",
        "RATIO",
    ];
    let mut rows = table(0, &header);
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    let (mut growths, mut last_growths) = (Vec::new(), Vec::new());
    let mut lines = Vec::new();
    for run in 1..=RUNS {
        let writes = writes::a_second(&side.client, MANY).await?;
        forget(side, LARGE).await;
        let control = start(side).await;
        let load = Load { clients: MANY, connections: MANY, each: MANY_EACH, after: 0 };
        let moments = map_all(&control, load).await?;
        drop(control);
        let rate = (MANY * MANY_EACH) as f64 / moments.took().as_secs_f64();
        let steps: Vec<f64> = moments.steps(STEP).into_iter().map(milliseconds).collect();
        let (first, flat, last) = (steps[0], steps[FLAT / STEP - 1], steps[steps.len() - 1]);
        rows.add_row([
            run.to_string(),
            format!("{writes:.0}"),
            format!("{rate:.0}"),
            format!("{:.2} ×", rate / writes),
            format!("{first:.0} ms"),
            format!("{flat:.0} ms"),
            format!("{:.2} ×", flat / first),
            format!("{last:.0} ms"),
            format!("{:.2} ×", last / first),
        ]);
        rates.push(rate);
        ratios.push(rate / writes);
        growths.push(flat / first);
        last_growths.push(last / first);
        lines.push(Line { name: format!("run {run}"), points: points(&steps) });
    }
    let (rate, growth) = (median(rates), median(growths));
    let none = String::new;
    rows.add_row([
        "median".to_owned(),
        none(),
        format!("{rate:.0}"),
        format!("{:.2} ×", median(ratios)),
        none(),
        none(),
        format!("{growth:.2} ×"),
        none(),
        format!("{:.2} ×", median(last_growths)),
    ]);
    let (rate, growth) = (at_least(MANY_A_SECOND, "", rate), at_most(FLAT_RATIO, " ×", growth));
    rows.add_row(["aim".into(), none(), rate, none(), none(), none(), growth, none(), none()]);
    print(&format!("MapEndpointIP by {MANY} clients, {MANY_EACH} each"), &rows);
    plot("addresses-many", "A thousand mappings among many", "mapped", "milliseconds", &lines)
}

/// Many clients on one connection, like the virtual nodes of a cluster, from an empty state and
/// with a crash at the end: as many mappings as the default ExternalCIDR holds, and more.
async fn sizes(side: &Side) -> Result<()> {
    let writes = writes::a_second(&side.client, MANY).await?;
    let mut sizes = table(0, &["MAPPED", "MEMORY", "RATIO", "START AFTER A CRASH", "RATIO"]);
    let mut speed = table(0, &["MAPPED", "A SECOND", "TO SINGLE WRITES", "SLOWEST THOUSAND"]);
    let mut lines = Vec::new();
    let mut empty = None;
    for (mapped, network) in [(FLAT, USUAL), (2 * FLAT, LARGE)] {
        forget(side, network).await;
        let (control, start_empty) = start_timed(side).await;
        let memory_empty = memory(control.pid());
        let (memory_empty, start_empty) = *empty.get_or_insert((memory_empty, start_empty));
        let load = Load { clients: MANY, connections: 1, each: mapped / MANY, after: 0 };
        let moments = map_all(&control, load).await?;
        let full = memory(control.pid());
        drop(control);
        let (control, start) = start_timed(side).await;
        drop(control);
        let mut size = |mapped: usize, memory: f64, start: f64| {
            sizes.add_row([
                mapped.to_string(),
                format!("{memory:.1} MiB"),
                format!("{:.1} ×", memory / memory_empty),
                format!("{start:.2} s"),
                format!("{:.1} ×", start / start_empty),
            ]);
        };
        if lines.is_empty() {
            size(0, memory_empty, start_empty);
        }
        size(mapped, full, start);
        let rate = mapped as f64 / moments.took().as_secs_f64();
        let steps: Vec<f64> = moments.steps(STEP).into_iter().map(milliseconds).collect();
        speed.add_row([
            mapped.to_string(),
            format!("{rate:.0}"),
            format!("{:.2} ×", rate / writes),
            format!("{:.0} ms", worst(&steps)),
        ]);
        lines.push(Line { name: format!("{mapped} mappings"), points: points(&steps) });
    }
    print(&format!("The same over one connection, beside {writes:.0} single writes"), &speed);
    print("Memory of the service, and time to recover", &sizes);
    plot("addresses-one-connection", "A thousand mappings", "mapped", "milliseconds", &lines)
}

fn points(steps: &[f64]) -> Vec<(f64, f64)> {
    steps.iter().enumerate().map(|(n, step)| (((n + 1) * STEP) as f64, *step)).collect()
}

/// Starts the service and returns the seconds until it answers.
async fn start_timed(side: &Side) -> (Control, f64) {
    let begun = Instant::now();
    let control = start(side).await;
    (control, begun.elapsed().as_secs_f64())
}

async fn start(side: &Side) -> Control {
    Control::start(side, &common::static_program(), "one").await
}

/// Resets the cluster to this ExternalCIDR and its peers, without mappings.
async fn forget(side: &Side, external: &str) {
    side.clear::<NatMapping>().await;
    side.clear::<IpamStorage>().await;
    know_peers(side, external).await;
}
