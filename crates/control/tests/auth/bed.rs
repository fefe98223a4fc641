//! The clusters that all groups of stories share. Groups run one at a time. Each starts from a
//! known state, even after an earlier group has failed.

use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Namespace;
use serde_json::json;
use tokio::{runtime, sync::OnceCell};
use tombolo_api::names::AUTH_NAMESPACE;
use tombolo_testbed::{ClusterSpec, Testbed};

use crate::{
    confidential, hostile,
    logs::{self, Logs},
    side::Side,
    story,
};

static ALONE: Mutex<()> = Mutex::new(());
static BED: OnceCell<Testbed> = OnceCell::const_new();

/// Starts rome and milan without identities or ForeignClusters.
pub fn without_identities(stories: impl AsyncFnOnce(&Side, &Side, &Logs)) {
    alone(async |bed, logs| {
        let (rome, milan) = start_both(bed).await;
        run(&rome, &milan, logs, stories).await;
    });
}

/// Starts rome and milan, each with an identity in the other: rome presented milan's token, milan
/// the return token from rome's request.
pub fn with_identities(stories: impl AsyncFnOnce(&Side, &Side, &Logs)) {
    alone(async |bed, logs| {
        let (rome, milan) = start_both(bed).await;
        story::exchange_identities(&rome, &milan).await;
        run(&rome, &milan, logs, stories).await;
    });
}

/// Starts milan without ForeignClusters. A request with its token succeeds before and after the
/// stories.
pub fn milan_alone(stories: impl AsyncFnOnce(&Side, &Logs)) {
    alone(async |bed, logs| {
        let milan = Side::start(bed.cluster("milan")).await;
        hostile::a_valid_request_succeeds(&milan).await;
        stories(&milan, logs).await;
        hostile::a_valid_request_succeeds(&milan).await;
        hostile::no_secret_is_leaked(&milan, logs).await;
    });
}

fn alone(group: impl AsyncFnOnce(&Testbed, &Logs)) {
    // A failed group poisons the mutex. The next group can run nevertheless.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Dropping the runtime ends all tasks of the group, also after a panic.
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let logs = logs::capture();
        let bed = BED.get_or_init(start).await;
        bed.repair().await.expect("all components run");
        group(bed, &logs).await;
    });
}

async fn start() -> Testbed {
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("auth").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the API servers start");
    let prepare = async |name| {
        let side = tombolo_testing::Side::new(bed.cluster(name)).await;
        side.put::<Namespace>(AUTH_NAMESPACE, json!({})).await;
    };
    tokio::join!(prepare("rome"), prepare("milan"));
    bed
}

async fn start_both(bed: &Testbed) -> (Side, Side) {
    tokio::join!(Side::start(bed.cluster("rome")), Side::start(bed.cluster("milan")))
}

/// Runs the stories and asserts that no secret from before or after them is leaked.
async fn run(
    rome: &Side,
    milan: &Side,
    logs: &Logs,
    stories: impl AsyncFnOnce(&Side, &Side, &Logs),
) {
    let sides = [rome, milan];
    let mut secrets = confidential::secrets(&sides).await;
    stories(rome, milan, logs).await;
    secrets.extend(confidential::secrets(&sides).await);
    confidential::assert_not_leaked(&sides, &secrets, logs).await;
    logs.assert_absent("PRIVATE KEY");
    // "-----BEGIN PRIVATE" in base64.
    logs.assert_absent("LS0tLS1CRUdJTiBQUklWQVRF");
    logs.assert_no_token();
}
