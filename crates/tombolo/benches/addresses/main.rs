//! The address service in figures, on a real API server that syncs to disk: how long it takes to map
//! endpoints for a few clients and for many, whether that grows with what is mapped already, what it
//! keeps in memory, and how fast it is back. Beside each figure stands a single write to the same API
//! server, from the same run.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../first_light/figures.rs"]
mod figures;
#[path = "../first_light/round_trip.rs"]
mod round_trip;

mod load;

use std::time::{Duration, Instant};

use anyhow::Result;
use common::control::{Control, know_peers};
use figures::{print, table};
use load::{Load, map_all};
use tombolo_api::net::{IpamStorage, NatMapping};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

/// Seconds that the seed has measured, by the number of requests.
const FEW: usize = 5;
const EACH: [usize; 5] = [10, 50, 100, 150, 200];

#[tokio::main]
async fn main() -> Result<()> {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain())?;
    let spec = ClusterSpec::new("rome").control_plane_only().durable();
    let bed = Testbed::builder("bench-addresses").cluster(spec).start().await?;
    let side = Side::new(bed.cluster("rome")).await;
    know_peers(&side).await;
    let program = common::static_program();

    let write = round_trip::of_a_write(&side.client).await?;
    println!("one write {write:.2} ms");
    for each in EACH {
        let control = Control::start(&side, &program, "one").await;
        let load = Load { clients: FEW, each, peers: 1, first: 0 };
        let took = map_all(&control, load).await?;
        let seconds = took.as_secs_f64();
        println!("5 x {each}: {seconds:.2} s, {:.0} writes of them", seconds * 1000.0 / write);
        drop(control);
        side.clear::<NatMapping>().await;
        side.clear::<IpamStorage>().await;
        know_peers(&side).await;
    }
    let control = Control::start(&side, &program, "one").await;
    let load = Load { clients: 50, each: 400, peers: 1, first: 0 };
    let took = map_all(&control, load).await?;
    println!("50 x 400: {:.2} s: {:.0}/s", took.as_secs_f64(), 20000.0 / took.as_secs_f64());
    bed.remove()?;
    Ok(())
}
