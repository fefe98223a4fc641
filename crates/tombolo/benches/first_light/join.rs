//! From setting `join` to a virtual node that is Ready, step by step.

use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tombolo_api::discovery::{ForeignCluster, RequestState, ResourceRequest};
use tombolo_api::names;
use tombolo_api::net::{ConnectionStatus, TunnelEndpoint};
use tombolo_api::sharing::ResourceOffer;
use tombolo_testbed::Cluster;

use crate::common::{SOON, list, tombolo, within};
use crate::figures::{median, milliseconds, print, table, worst};
use crate::moments::{Moments, Step};
use crate::round_trip;

const RUNS: usize = 7;

/// The same in the design document, in milliseconds on its own machines.
const SEED: f64 = 20_300.0;

const REQUESTED: Step = "request created";
const ACCEPTED: Step = "request accepted";
const OFFERED: Step = "offer received";
const AGREED: Step = "networks configured";
const CONNECTED: Step = "tunnel connected";
const READY: Step = "virtual node Ready";
const STEPS: [Step; 6] = [REQUESTED, ACCEPTED, OFFERED, AGREED, CONNECTED, READY];

/// One peering: the milliseconds until each step, and of one write.
struct Run {
    steps: [f64; STEPS.len()],
    write: f64,
}

/// Peers several times; the last peering stays.
pub async fn measure(rome: &Cluster, milan: &Cluster) -> Result<()> {
    let client = rome.client().await?;
    let mut runs = vec![peer(&client).await?];
    while runs.len() < RUNS {
        unpeer(rome, milan).await;
        runs.push(peer(&client).await?);
    }
    show(&runs);
    Ok(())
}

fn show(runs: &[Run]) {
    let write = median(runs.iter().map(|run| run.write).collect());
    let mut rows = table(1, &["STEP, AFTER JOIN", "MEDIAN", "WORST", "WRITES"]);
    for (number, step) in STEPS.iter().enumerate() {
        let all: Vec<f64> = runs.iter().map(|run| run.steps[number]).collect();
        let (middle, worst) = (median(all.clone()), worst(&all));
        rows.add_row([
            (*step).to_owned(),
            format!("{middle:.0} ms"),
            format!("{worst:.0} ms"),
            format!("{:.0} ×", middle / write),
        ]);
    }
    let one = "one write to the same API server";
    rows.add_row([one, &format!("{write:.1} ms"), "", "1 ×"]);
    rows.add_row(["the seed, on other machines", &format!("{SEED:.0} ms"), "", ""]);
    print(&format!("Join → virtual node Ready, {} times", runs.len()), &rows);
}

async fn peer(client: &Client) -> Result<Run> {
    let mut moments = watch(client);
    moments.begun().await?;
    let write = round_trip::of_a_write(client).await?;
    let clusters: Api<ForeignCluster> = Api::all(client.clone());
    let join = Patch::Merge(json!({ "spec": { "join": true } }));
    let start = Instant::now();
    clusters.patch("milan", &PatchParams::default(), &join).await?;
    let seen = moments.of(&STEPS).await?;
    let steps = STEPS.map(|step| milliseconds(seen[step] - start));
    eprintln!("peered: {steps:.0?} ms");
    Ok(Run { steps, write })
}

fn watch(client: &Client) -> Moments {
    let mut moments = Moments::new();
    moments.watch(Api::<ResourceRequest>::all(client.clone()), |request| {
        let state = request.status.as_ref().map(|status| status.state);
        first_or_both(REQUESTED, ACCEPTED, state == Some(RequestState::Accepted))
    });
    moments.watch(Api::<ResourceOffer>::all(client.clone()), |_| vec![OFFERED]);
    moments.watch(Api::<TunnelEndpoint>::all(client.clone()), |tunnel| {
        let connection = tunnel.status.as_ref().and_then(|status| status.connection.as_ref());
        let status = connection.and_then(|connection| connection.status);
        first_or_both(AGREED, CONNECTED, status == Some(ConnectionStatus::Connected))
    });
    moments.watch(Api::<Node>::all(client.clone()), |node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
        let ours = node.labels().get(names::TYPE_LABEL).is_some_and(|it| it == names::VIRTUAL_NODE);
        if ours && ready { vec![READY] } else { Vec::new() }
    });
    moments
}

fn first_or_both(first: Step, second: Step, both: bool) -> Vec<Step> {
    if both { vec![first, second] } else { vec![first] }
}

/// Ends the peering and waits until nothing of it is left on either side.
async fn unpeer(rome: &Cluster, milan: &Cluster) {
    tombolo(rome, &["unpeer", "milan"]).await;
    let kinds = "resourcerequests,resourceoffers,networkconfigs,tunnelendpoints,namespacemaps";
    for cluster in [rome, milan] {
        let left = async || list(cluster, &[kinds, "-A"]).await;
        let what = format!("nothing is left in {}", cluster.name());
        within(SOON, &what, left, Vec::is_empty).await;
    }
}
