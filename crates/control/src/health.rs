//! Watches over other clusters' API servers: asks each one every second, as ourselves.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tombolo_api::discovery::{ForeignCluster, ForeignClusterStatus, condition};
use tombolo_core::condition::{find, is_true, now_is};
use tombolo_runtime::{
    controller::{self, Chain},
    remote::Remote,
    shutdown::Shutdown,
    writer,
};
use tracing::{info, warn};

use crate::context::Context;

const MANAGER: &str = "liqo-control/health";
const PERIOD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(1500);
/// One lost answer is no failure.
const FAILURES: u32 = 2;

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let controller = Controller::new(clusters, watcher::Config::default());
    let state = Arc::new(State {
        context: context.clone(),
        known: controller.store(),
        running: tokio::sync::Mutex::default(),
    });
    controller::run("health", controller, follow, state, &context.shutdown).await;
}

struct State {
    context: Arc<Context>,
    known: Store<ForeignCluster>,
    running: tokio::sync::Mutex<BTreeMap<String, Shutdown>>,
}

/// Starts the questions when there is an identity, and ends them with it.
async fn follow(
    cluster: Arc<ForeignCluster>,
    state: Arc<State>,
) -> Result<Action, std::convert::Infallible> {
    let name = cluster.name_any();
    let conditions = cluster.status.iter().flat_map(|status| status.conditions.clone());
    let conditions: Vec<_> = conditions.collect();
    let authenticated = is_true(&conditions, condition::AUTHENTICATED);
    let leaving = cluster.metadata.deletion_timestamp.is_some();
    let mut running = state.running.lock().await;
    match running.get(&name) {
        Some(shutdown) if !authenticated || leaving => {
            shutdown.ask();
            running.remove(&name);
        }
        None if authenticated && !leaving => {
            let shutdown = state.context.shutdown.child();
            running.insert(name.clone(), shutdown.clone());
            let state = state.clone();
            tokio::spawn(async move { shutdown.or(ask_on_and_on(name, state)).await });
        }
        _ => {}
    }
    Ok(Action::await_change())
}

async fn ask_on_and_on(name: String, state: Arc<State>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failures, mut said, mut remote) = (0, None, None);
    loop {
        ticks.tick().await;
        let Some(cluster) = state.known.get(&ObjectRef::new(&name)) else { return };
        let answer = ask(&cluster, &mut remote, &state.context).await;
        failures = if answer.is_ok() { 0 } else { failures + 1 };
        if answer.is_err() && failures < FAILURES {
            continue;
        }
        if said == Some(answer.is_ok()) {
            continue;
        }
        match say(&state.context, &name, &answer).await {
            Ok(()) => said = Some(answer.is_ok()),
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
async fn say(context: &Context, name: &str, verdict: &Result<String, String>) -> kube::Result<()> {
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let cluster = clusters.get(name).await?;
    let status = cluster.status.as_ref();
    let before = status.map(|status| status.conditions.clone()).unwrap_or_default();
    let (reason, message) = match verdict {
        Ok(message) => ("Answers", message),
        Err(message) => ("Unreachable", message),
    };
    info!(cluster = name, reason, message);
    let condition =
        now_is(&before, condition::API_SERVER, verdict.is_ok(), reason, message, Timestamp::now());
    if find(&before, condition::API_SERVER) == Some(&condition) {
        return Ok(());
    }
    let status =
        ForeignClusterStatus { conditions: vec![condition], ..ForeignClusterStatus::default() };
    writer::apply_status(&clusters, MANAGER, name, &status).await?;
    if verdict.is_ok() {
        context.events.normal(&cluster, reason, message).await;
    } else {
        context.events.warning(&cluster, reason, message).await;
    }
    Ok(())
}
