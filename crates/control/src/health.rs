//! Watches over other clusters' API servers: asks each one every second, as ourselves.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tombolo_api::discovery::{ForeignCluster, ForeignClusterStatus};
use tombolo_core::health::{Care, Record, Verdict, care, condition};
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
const PERIOD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(1500);

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let known = context.watches.of::<ForeignCluster>();
    known.feed(&queue, |cluster| [cluster.name_any()]);
    let clusters = Clusters { context: context.clone(), known };
    let probes = Probes::default();
    let work = queue::run("health", asked, |name| follow(name, &clusters, &probes));
    context.shutdown.or(work).await;
}

#[derive(Clone)]
struct Clusters {
    context: Arc<Context>,
    known: Arc<Watched<ForeignCluster>>,
}

/// The tasks that ask, by the name of the ForeignCluster.
type Probes = Mutex<BTreeMap<String, Task>>;

#[derive(Debug, thiserror::Error)]
#[error("write the condition of ForeignCluster {0}")]
struct Error(String, #[source] kube::Error);

/// Starts the questions when there is an identity, and ends them with it.
async fn follow(name: String, clusters: &Clusters, probes: &Probes) -> Result<(), Error> {
    let cluster = clusters.known.get("", &name);
    let care = cluster.as_deref().map(care);
    {
        let mut probes = probes.lock().unwrap_or_else(PoisonError::into_inner);
        match care {
            Some(Care::Ask) => {
                probes.entry(name.clone()).or_insert_with(|| {
                    let work = ask_on_and_on(name.clone(), clusters.clone());
                    Task::spawn(format!("health of {name}"), work)
                });
            }
            _ => drop(probes.remove(&name)),
        }
    }
    if care == Some(Care::SayUnasked) {
        let said = say(&clusters.context, &name, Verdict::Unasked).await;
        writer::absent_is_fine(said).map_err(|error| Error(name, error))?;
    }
    Ok(())
}

async fn ask_on_and_on(name: String, clusters: Clusters) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut record, mut remote) = (Record::default(), None);
    loop {
        ticks.tick().await;
        let Some(cluster) = clusters.known.get("", &name) else { return };
        let answer = ask(&cluster, &mut remote, &clusters.context).await;
        if !record.note(answer.is_ok()) {
            continue;
        }
        let verdict = match &answer {
            Ok(message) => Verdict::Answers(message),
            Err(message) => Verdict::Unreachable(message),
        };
        match say(&clusters.context, &name, verdict).await {
            Ok(()) => record.said(answer.is_ok()),
            Err(error) => warn!(cluster = name, "write the condition: {error}"),
        }
    }
}

/// Asks once. After a failure the identity is read again: it may be another one by now.
async fn ask(
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
    let answer = answers(&found).await;
    if answer.is_ok() {
        *remote = Some(found);
    }
    answer
}

async fn answers(remote: &Remote) -> Result<String, String> {
    let url = &remote.url;
    let request = http::Request::get("/readyz").body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    match timeout(PATIENCE, remote.client.request_text(request)).await {
        Ok(Ok(_)) => Ok(format!("{url} answers")),
        Ok(Err(error)) => Err(format!("GET {url}readyz: {}", Chain(&error))),
        Err(_) => Err(format!("GET {url}readyz: no answer within {} ms", PATIENCE.as_millis())),
    }
}

/// Writes the condition, and an event when it is another one than before.
async fn say(context: &Context, name: &str, verdict: Verdict<'_>) -> kube::Result<()> {
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let cluster = clusters.get(name).await?;
    let status = cluster.status.as_ref();
    let before = status.map(|status| status.conditions.clone()).unwrap_or_default();
    let Some(condition) = condition(&before, verdict, Timestamp::now()) else {
        return Ok(());
    };
    info!(cluster = name, reason = condition.reason, message = condition.message);
    let status = ForeignClusterStatus {
        conditions: vec![condition.clone()],
        ..ForeignClusterStatus::default()
    };
    writer::apply_status(&clusters, MANAGER, name, &status).await?;
    if verdict.is_good() {
        context.events.normal(&cluster, &condition.reason, &condition.message).await;
    } else {
        context.events.warning(&cluster, &condition.reason, &condition.message).await;
    }
    Ok(())
}
