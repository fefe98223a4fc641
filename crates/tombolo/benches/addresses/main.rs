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
const MANY: Load = Load { clients: 50, each: 2000 };
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
        let load = Load { clients: FEW, each };
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

/// Many clients, until 100,000 endpoints are mapped; then a crash.
async fn many(side: &Side) -> Result<()> {
    let writes = writes::a_second(&side.client, MANY.clients).await?;
    let begun = Instant::now();
    let control = start(side).await;
    let start_empty = begun.elapsed();
    let empty = memory(control.pid());
    let moments = map_all(&control, MANY).await?;
    let full = memory(control.pid());
    drop(control);
    let begun = Instant::now();
    let control = start(side).await;
    let start_full = begun.elapsed();
    let read = memory(control.pid());
    drop(control);

    let count = MANY.clients * MANY.each;
    let rate = count as f64 / moments.took().as_secs_f64();
    let steps: Vec<f64> = moments.steps(STEP).into_iter().map(milliseconds).collect();
    let (first, last) = (steps[0], steps[steps.len() - 1]);
    let tenth = steps.len() / 10;
    let (early, late) =
        (median(steps[..tenth].to_vec()), median(steps[steps.len() - tenth..].to_vec()));
    let fiftieth = steps[49];
    let mut rows = table(1, &["", "", "RATIO"]);
    let mut row = |name: &str, figure: String, ratio: String| {
        rows.add_row([name.to_owned(), figure, ratio]);
    };
    row("mappings a second", format!("{rate:.0}"), format!("{:.1} ×", rate / writes));
    row("single writes a second", format!("{writes:.0}"), "1 ×".into());
    row("the first thousand", format!("{first:.0} ms"), "1 ×".into());
    row(
        "the thousand up to 50,000",
        format!("{fiftieth:.0} ms"),
        format!("{:.2} ×", fiftieth / first),
    );
    row("the last thousand", format!("{last:.0} ms"), format!("{:.2} ×", last / first));
    let slowest = worst(&steps);
    row("the slowest thousand", format!("{slowest:.0} ms"), format!("{:.2} ×", slowest / first));
    row("a thousand of the first tenth", format!("{early:.0} ms"), "1 ×".into());
    row("a thousand of the last tenth", format!("{late:.0} ms"), format!("{:.2} ×", late / early));
    row("memory with none mapped", format!("{empty:.1} MiB"), "1 ×".into());
    row("memory with all mapped", format!("{full:.1} MiB"), format!("{:.1} ×", full / empty));
    row("memory after a restart", format!("{read:.1} MiB"), format!("{:.1} ×", read / empty));
    row("start with none mapped", format!("{:.2} s", start_empty.as_secs_f64()), "1 ×".into());
    let ratio = start_full.as_secs_f64() / start_empty.as_secs_f64();
    row(
        "start after a crash",
        format!("{:.2} s", start_full.as_secs_f64()),
        format!("{ratio:.1} ×"),
    );
    let title = format!("MapEndpointIP by {} clients, {count} endpoints", MANY.clients);
    print(&title, &rows);
    let points = steps.iter().enumerate().map(|(n, step)| (((n + 1) * STEP) as f64, *step));
    let line = Line { name: format!("{} clients", MANY.clients), points: points.collect() };
    plot("addresses-many", "A thousand mappings among many", "mapped", "milliseconds", &[line])
}

async fn start(side: &Side) -> Control {
    Control::start(side, &common::static_program(), "one").await
}

async fn forget(side: &Side) {
    side.clear::<NatMapping>().await;
    side.clear::<IpamStorage>().await;
    know_peers(side).await;
}
