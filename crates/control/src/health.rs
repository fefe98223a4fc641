//! Probes the API servers of other clusters once a second, with the identity of this cluster there.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tombolo_api::discovery::{ForeignCluster, ForeignClusterStatus};
use tombolo_core::{
    health::{ApiServerState, ProbeAction, ProbeHistory, condition, probe_action},
    view::Peer,
};
use tombolo_runtime::{
    chain::Chain,
    observe::Watched,
    queue::{self, queue},
    remote::Remote,
    task::Task,
    writer,
};
use tracing::{info, warn};

use crate::context::Context;

const MANAGER: &str = "liqo-control/health";
const PROBE_PERIOD: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_millis(1500);

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let known = context.watches.of::<ForeignCluster>();
    known.enqueue(&queue, |cluster| [cluster.name_any()]);
    let clusters = Clusters { context: context.clone(), known };
    let probes = Probes::default();
    let work = queue::run("health", receiver, |name| reconcile(name, &clusters, &probes));
    context.shutdown.or(work).await;
}

#[derive(Clone)]
struct Clusters {
    context: Arc<Context>,
    known: Arc<Watched<ForeignCluster>>,
}

/// The tasks that probe, by the name of the ForeignCluster.
type Probes = Mutex<BTreeMap<String, Task>>;

#[derive(Debug, thiserror::Error)]
#[error("write the condition APIServer of ForeignCluster {0}")]
struct Error(String, #[source] kube::Error);

/// Starts probing when there is an identity, and stops without one.
async fn reconcile(name: String, clusters: &Clusters, probes: &Probes) -> Result<(), Error> {
    let cluster = clusters.known.get("", &name);
    let probe_action =
        cluster.as_deref().map(|cluster| probe_action(&Peer::from_resource(cluster)));
    {
        let mut probes = probes.lock().unwrap_or_else(PoisonError::into_inner);
        match probe_action {
            Some(ProbeAction::Probe) => {
                probes.entry(name.clone()).or_insert_with(|| {
                    let work = probe_forever(name.clone(), clusters.clone());
                    Task::spawn(format!("health of {name}"), work)
                });
            }
            _ => drop(probes.remove(&name)),
        }
    }
    if probe_action == Some(ProbeAction::ReportNotProbed) {
        let written = report(&clusters.context, &name, ApiServerState::NotProbed).await;
        writer::absent_is_fine(written).map_err(|error| Error(name, error))?;
    }
    Ok(())
}

async fn probe_forever(name: String, clusters: Clusters) {
    let mut ticks = interval(PROBE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut history, mut remote) = (ProbeHistory::default(), None);
    loop {
        ticks.tick().await;
        let Some(cluster) = clusters.known.get("", &name) else { return };
        let answer = probe_once(&cluster, &mut remote, &clusters.context).await;
        if !history.record(answer.is_ok()) {
            continue;
        }
        let observed = match &answer {
            Ok(message) => ApiServerState::Reachable(message),
            Err(message) => ApiServerState::Unreachable(message),
        };
        match report(&clusters.context, &name, observed).await {
            Ok(()) => history.reported(answer.is_ok()),
            Err(error) => warn!(cluster = name, "can't write the condition APIServer: {error}"),
        }
    }
}

/// Probes once. After a failure the identity is read again: it may have been renewed.
async fn probe_once(
    cluster: &ForeignCluster,
    remote: &mut Option<Remote>,
    context: &Context,
) -> Result<String, String> {
    let found = match remote.take() {
        Some(known) => known,
        None => match context.remotes.get(cluster).await {
            Ok(found) => found,
            Err(error) => return Err(Chain(&error).to_string()),
        },
    };
    let answer = get_readyz(&found).await;
    if answer.is_ok() {
        *remote = Some(found);
    }
    answer
}

async fn get_readyz(remote: &Remote) -> Result<String, String> {
    let url = &remote.url;
    let request = http::Request::get("/readyz").body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    match timeout(PROBE_TIMEOUT, remote.client.request_text(request)).await {
        Ok(Ok(_)) => Ok(format!("{url} answers")),
        Ok(Err(error)) => Err(format!("GET {url}readyz: {}", Chain(&error))),
        Err(_) => {
            Err(format!("GET {url}readyz: no response within {} ms", PROBE_TIMEOUT.as_millis()))
        }
    }
}

/// Writes the condition, and an event when it has changed.
async fn report(context: &Context, name: &str, state: ApiServerState<'_>) -> kube::Result<()> {
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let cluster = clusters.get(name).await?;
    let status = cluster.status.as_ref();
    let before = status.map(|status| status.conditions.clone()).unwrap_or_default();
    let Some(condition) = condition(&before, state, Timestamp::now()) else {
        return Ok(());
    };
    info!(cluster = name, reason = condition.reason, message = condition.message);
    let status = ForeignClusterStatus {
        conditions: vec![condition.clone()],
        ..ForeignClusterStatus::default()
    };
    writer::apply_status(&clusters, MANAGER, name, &status).await?;
    if state.is_reachable() {
        context.events.normal(&cluster, &condition.reason, &condition.message).await;
    } else {
        context.events.warning(&cluster, &condition.reason, &condition.message).await;
    }
    Ok(())
}
