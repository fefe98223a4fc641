//! `tombolo playground up`

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use tombolo_testbed::{Cluster, ClusterSpec, MAX_CLUSTERS, MAX_NODES, Testbed, images};

use super::{demo, status};
use crate::bars::Bars;
use crate::image;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of clusters
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=MAX_CLUSTERS as i64))]
    clusters: u8,
    /// Number of nodes in each cluster
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
    nodes: u8,
    /// Start the clusters without Tombolo
    #[arg(long)]
    bare: bool,
}

const CITIES: [&str; 12] = [
    "rome", "milan", "turin", "naples", "genoa", "venice", "bari", "palermo", "bologna", "verona",
    "trieste", "florence",
];

pub fn run(name: &str, arguments: &Arguments) -> Result<()> {
    tombolo_testbed::require_root()?;
    ensure!(
        arguments.bare || image::is_static(),
        "only a static build can be installed in clusters: run `make playground`, or use --bare \
         for clusters without Tombolo"
    );
    let runtime = tokio::runtime::Runtime::new()?;
    let bars = Bars::new();
    let started = match Testbed::find(name, bars.progress())? {
        Some(testbed) => same_shape(&testbed, arguments)
            .and_then(|()| runtime.block_on(repair(&testbed)))
            .map(|()| testbed),
        None => runtime.block_on(start(name, arguments, &bars)),
    };
    let outcome = started.and_then(|testbed| {
        for cluster in testbed.clusters() {
            cluster.give_to_caller()?;
        }
        let demo = match arguments.bare {
            true => Ok(()),
            false => runtime.block_on(demo::show(&testbed, &bars)),
        };
        Ok((testbed, demo))
    });
    bars.finish();
    let (testbed, demo) = outcome?;
    status::print(&runtime, &testbed)?;
    if demo.is_ok() {
        print_next_steps(name, &testbed, arguments);
    }
    demo.context("the clusters run, but the demo failed")
}

async fn repair(testbed: &Testbed) -> Result<()> {
    testbed.repair().await?;
    if image::is_static() {
        let own = images::tombolo(&image::own_program()?);
        try_join_all(testbed.clusters().iter().map(|cluster| cluster.load(&own))).await?;
    }
    Ok(())
}

async fn start(name: &str, arguments: &Arguments, bars: &Bars) -> Result<Testbed> {
    let progress = bars.progress();
    // The toolbox image contains programs that `prepare` may still have to install.
    tombolo_testbed::prepare(&progress)?;
    let toolbox = images::toolbox()?;
    let mut builder = Testbed::builder(name).progress(progress).persistent();
    for number in 0..usize::from(arguments.clusters) {
        let spec = ClusterSpec::new(city(number)).nodes(arguments.nodes);
        let mut spec = spec.image(toolbox.clone());
        if image::is_static() {
            spec = spec.image(images::tombolo(&image::own_program()?));
        }
        builder = builder.cluster(spec);
    }
    Ok(builder.start().await?)
}

fn city(number: usize) -> String {
    let city = CITIES.get(number).map(|&city| city.to_owned());
    city.unwrap_or_else(|| format!("city-{}", number + 1))
}

fn same_shape(testbed: &Testbed, wanted: &Arguments) -> Result<()> {
    let clusters = testbed.clusters();
    if !testbed.is_ready() {
        bail!("another `tombolo playground up` is still running");
    }
    let nodes = clusters.first().map_or(0, |cluster| cluster.nodes().len());
    if clusters.len() == usize::from(wanted.clusters) && nodes == usize::from(wanted.nodes) {
        return Ok(());
    }
    bail!(
        "a playground with --clusters {} --nodes {nodes} is running: to change that, run \
         `tombolo playground down` first",
        clusters.len()
    )
}

fn print_next_steps(name: &str, testbed: &Testbed, arguments: &Arguments) {
    let first = testbed.clusters().first().map_or("rome", Cluster::name);
    let program = std::env::args().next().unwrap_or_else(|| "tombolo".into());
    let playground = match name {
        super::DEFAULT_NAME => format!("{program} playground"),
        _ => format!("{program} playground --name {name}"),
    };
    let in_first = format!("{playground} shell {first}");
    if !arguments.bare {
        println!(
            "
Deployment web in namespace shop runs in all clusters, and {first} has a node for each of the others:

  {in_first} -- {program} status
  {in_first} -- kubectl get foreignclusters,nodes
  {in_first} -- kubectl -n shop get pods -o wide
  {in_first} -- kubectl -n shop exec deploy/web -- curl -s {url}",
            url = demo::URL
        );
    }
    println!(
        "
  {in_first}       a shell with kubectl set up
  {playground} kubeconfig {first}  the path of its kubeconfig
  {playground} logs             the logs of all Kubernetes components
  sudo {playground} down        remove the clusters
"
    );
}
