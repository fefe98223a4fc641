//! Benchmark of discovery: from a packet in the local network to an identity at the sending
//! cluster, step by step, as in tables 8.1 and 8.2 of the design document. The baseline is one
//! write to the same API server in the same run.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../first_light/figures.rs"]
mod figures;
#[path = "../first_light/moments.rs"]
mod moments;
#[path = "../first_light/round_trip.rs"]
mod round_trip;

mod packets;
mod pair;
mod scraped;
mod steps;

use anyhow::Result;
use tombolo_testbed::ClusterSpec;

use figures::{median, print, table, worst};
use pair::Pair;
use steps::{Run, STEPS};

const RUNS: usize = 20;

/// Averages of the design document, in milliseconds on its own machines: each step, and the total.
const NEVER_MET: [f64; 5] = [3.0, 1.2, 368.6, 250.6, 623.4];
const MET_BEFORE: [f64; 5] = [2.6, 1.4, 319.4, 0.0, 323.4];

#[tokio::main]
async fn main() -> Result<()> {
    let specs = ["rome", "milan"].map(ClusterSpec::new);
    let bed = common::bed("bench-discovery", specs).start().await?;
    common::install(&bed, &["--empty-token"]).await;
    let pair = Pair::new(bed.cluster("rome"), bed.cluster("milan")).await?;

    let mut runs = Vec::new();
    while runs.len() < RUNS {
        runs.push(pair.meets_for_the_first_time().await?);
        pair.forgets_all().await?;
    }
    show("without an identity", &runs, &NEVER_MET);

    pair.meets_for_the_first_time().await?;
    let mut runs = Vec::new();
    while runs.len() < RUNS {
        runs.push(pair.meets_again().await?);
    }
    show("with an identity from before", &runs, &MET_BEFORE);
    bed.remove()?;
    Ok(())
}

fn show(what: &str, runs: &[Run], seed: &[f64; 5]) {
    let write = median(runs.iter().map(|run| run.write).collect());
    let mut rows = table(1, &["STEP", "MEDIAN", "WORST", "WRITES", "SEED, ON OTHER MACHINES"]);
    let mut add = |name: &str, all: Vec<f64>, seed: Option<f64>| {
        if all.is_empty() {
            let seed = seed.map(|seed| format!("{seed:.0} ms")).unwrap_or_default();
            rows.add_row([
                name.to_owned(),
                "not needed".to_owned(),
                String::new(),
                String::new(),
                seed,
            ]);
            return;
        }
        let (middle, worst) = (median(all.clone()), worst(&all));
        rows.add_row([
            name.to_owned(),
            format!("{middle:.2} ms"),
            format!("{worst:.2} ms"),
            format!("{:.1} ×", middle / write),
            seed.map(|seed| format!("{seed:.0} ms")).unwrap_or_default(),
        ]);
    };
    for (number, (name, _)) in STEPS.iter().enumerate() {
        let all = runs.iter().filter_map(|run| run.steps[number]).collect();
        add(name, all, Some(seed[number]));
    }
    add("in all, as the components say", runs.iter().filter_map(|run| run.told).collect(), None);
    let all = runs.iter().map(|run| run.seen).collect();
    add("in all, from the packet to what a watch shows", all, Some(seed[4]));
    add("one write to the same API server", runs.iter().map(|run| run.write).collect(), None);
    print(&format!("Packet → identity {what}, {} times", runs.len()), &rows);
}
