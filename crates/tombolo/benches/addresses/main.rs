//! The address service in figures, on a real API server that syncs to disk: how long it takes to map
//! endpoints for a few clients and for many, whether that grows with what is mapped already, what it
//! keeps in memory, and how fast it is back. Beside each figure stand single writes to the same API
//! server, from the same run.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../first_light/figures.rs"]
mod figures;

mod load;
mod plot;
mod writes;

use std::time::Instant;

use anyhow::Result;
use common::control::{Control, know_peers, memory};
use figures::{median, milliseconds, print, table, worst};
use load::{Load, map_all};
use plot::{Line, plot};
use tombolo_api::net::{IpamStorage, NatMapping};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

/// As the seed has measured: clients, requests of each, and seconds where it says them.
const FEW: usize = 5;
const EACH: [(usize, Option<f64>); 5] =
    [(10, None), (50, None), (100, Some(260.68)), (150, None), (200, Some(675.42))];
const MANY: usize = 50;
/// How many endpoints they have mapped in the end, and how often.
const MAPPED: usize = 50_000;
const RUNS: usize = 3;
/// How many answers make a point of the plot.
const STEP: usize = 1000;

#[tokio::main]
async fn main() -> Result<()> {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain())?;
    let spec = ClusterSpec::new("rome").control_plane_only().durable();
    let bed = Testbed::builder("bench-addresses").cluster(spec).start().await?;
    let side = Side::new(bed.cluster("rome")).await;
    know_peers(&side).await;
    few(&side).await?;
    many(&side).await?;
    sizes(&side).await?;
    bed.remove()?;
    Ok(())
}

/// B1 of the seed: a few clients, each with one request at a time.
async fn few(side: &Side) -> Result<()> {
    let header = ["REQUESTS", "SEED", "HERE", "A SECOND", "SINGLE WRITES A SECOND", "RATIO"];
    let mut rows = table(0, &header);
    let mut points = Vec::new();
    for (each, seed) in EACH {
        let writes = writes::a_second(&side.client, FEW).await?;
        let control = start(side).await;
        let load = Load { clients: FEW, connections: FEW, each, after: 0 };
        let moments = map_all(&control, load).await?;
        drop(control);
        forget(side).await;
        let (count, seconds) = (FEW * each, moments.took().as_secs_f64());
        let rate = count as f64 / seconds;
        points.push((count as f64, seconds));
        rows.add_row([
            count.to_string(),
            seed.map(|seconds| format!("{seconds:.0} s")).unwrap_or_default(),
            format!("{seconds:.2} s"),
            format!("{rate:.0}"),
            format!("{writes:.0}"),
            format!("{:.2} ×", rate / writes),
        ]);
    }
    print(&format!("MapEndpointIP by {FEW} clients, one request at a time each"), &rows);
    let line = Line { name: format!("{FEW} clients"), points };
    plot("addresses-few", "MapEndpointIP", "requests", "seconds", &[line])
}

/// Many clients with connections of their own, several times from nothing: the machine is not always
/// as fast.
async fn many(side: &Side) -> Result<()> {
    let header = [
        "RUN",
        "SINGLE WRITES A SECOND",
        "MAPPINGS A SECOND",
        "RATIO",
        "FIRST THOUSAND",
        "LAST THOUSAND",
        "RATIO",
    ];
    let mut rows = table(0, &header);
    let (mut rates, mut ratios, mut growths) = (Vec::new(), Vec::new(), Vec::new());
    let mut lines = Vec::new();
    for run in 1..=RUNS {
        let writes = writes::a_second(&side.client, MANY).await?;
        let control = start(side).await;
        let load = Load { clients: MANY, connections: MANY, each: MAPPED / MANY, after: 0 };
        let moments = map_all(&control, load).await?;
        drop(control);
        forget(side).await;
        let rate = MAPPED as f64 / moments.took().as_secs_f64();
        let steps: Vec<f64> = moments.steps(STEP).into_iter().map(milliseconds).collect();
        let (first, last) = (steps[0], steps[steps.len() - 1]);
        rows.add_row([
            run.to_string(),
            format!("{writes:.0}"),
            format!("{rate:.0}"),
            format!("{:.2} ×", rate / writes),
            format!("{first:.0} ms"),
            format!("{last:.0} ms"),
            format!("{:.2} ×", last / first),
        ]);
        rates.push(rate);
        ratios.push(rate / writes);
        growths.push(last / first);
        lines.push(Line { name: format!("run {run}"), points: points(&steps) });
    }
    rows.add_row([
        "median".to_owned(),
        String::new(),
        format!("{:.0}", median(rates)),
        format!("{:.2} ×", median(ratios)),
        String::new(),
        String::new(),
        format!("{:.2} ×", median(growths)),
    ]);
    print(&format!("MapEndpointIP by {MANY} clients, {MAPPED} endpoints"), &rows);
    plot("addresses-many", "A thousand mappings among many", "mapped", "milliseconds", &lines)
}

/// Many clients that share a connection, as the virtual nodes of a cluster do, until 100,000 endpoints
/// are mapped, with a crash half-way and one at the end.
async fn sizes(side: &Side) -> Result<()> {
    let writes = writes::a_second(&side.client, MANY).await?;
    let mut sizes = table(0, &["MAPPED", "MEMORY", "RATIO", "START AFTER A CRASH", "RATIO"]);
    let (mut control, empty) = start_timed(side).await;
    let memory_empty = memory(control.pid());
    let mut size = |mapped: usize, memory: f64, start: f64| {
        sizes.add_row([
            mapped.to_string(),
            format!("{memory:.1} MiB"),
            format!("{:.1} ×", memory / memory_empty),
            format!("{start:.2} s"),
            format!("{:.1} ×", start / empty),
        ]);
    };
    size(0, memory_empty, empty);
    let mut seconds = 0.0;
    let mut steps: Vec<f64> = Vec::new();
    for after in [0, MAPPED] {
        let load = Load { clients: MANY, connections: 1, each: MAPPED / MANY, after };
        let moments = map_all(&control, load).await?;
        seconds += moments.took().as_secs_f64();
        steps.extend(moments.steps(STEP).into_iter().map(milliseconds));
        let full = memory(control.pid());
        drop(control);
        let (again, start) = start_timed(side).await;
        size(after + MAPPED, full, start);
        control = again;
    }

    let mut speed = table(1, &["", "", "RATIO"]);
    let mut row = |name: &str, figure: f64, unit: &str, compared: f64| {
        let ratio = format!("{:.2} ×", figure / compared);
        speed.add_row([name.to_owned(), format!("{figure:.0}{unit}"), ratio]);
    };
    row("single writes a second", writes, "", writes);
    row("mappings a second", (2 * MAPPED) as f64 / seconds, "", writes);
    let tenths: Vec<f64> =
        steps.chunks(steps.len() / 10).map(|tenth| median(tenth.to_vec())).collect();
    row("a thousand of the first tenth", tenths[0], " ms", tenths[0]);
    row("a thousand of the fifth tenth", tenths[4], " ms", tenths[0]);
    row("a thousand of the last tenth", tenths[9], " ms", tenths[0]);
    row("the slowest thousand", worst(&steps), " ms", tenths[0]);
    print(&format!("The same over one connection, {} endpoints", 2 * MAPPED), &speed);
    print("What the service keeps, and how fast it is back", &sizes);
    let line = Line { name: format!("{MANY} clients"), points: points(&steps) };
    plot("addresses-one-connection", "A thousand mappings", "mapped", "milliseconds", &[line])
}

fn points(steps: &[f64]) -> Vec<(f64, f64)> {
    steps.iter().enumerate().map(|(n, step)| (((n + 1) * STEP) as f64, *step)).collect()
}

/// The service, and after how many seconds it answers.
async fn start_timed(side: &Side) -> (Control, f64) {
    let begun = Instant::now();
    let control = start(side).await;
    (control, begun.elapsed().as_secs_f64())
}

async fn start(side: &Side) -> Control {
    Control::start(side, &common::static_program(), "one").await
}

async fn forget(side: &Side) {
    side.clear::<NatMapping>().await;
    side.clear::<IpamStorage>().await;
    know_peers(side).await;
}
