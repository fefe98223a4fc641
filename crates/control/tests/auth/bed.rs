//! The clusters that all groups of stories share. A group is alone with them and starts in the state
//! that it names, whatever an earlier one has left, also one that failed.

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

/// Rome and milan, of which neither knows the other.
pub fn strangers(stories: impl AsyncFnOnce(&Side, &Side, &Logs)) {
    alone(async |bed, logs| {
        let (rome, milan) = start_both(bed).await;
        run(&rome, &milan, logs, stories).await;
    });
}

/// Rome and milan, each of which has an identity at the other: rome by milan's token, milan by the
/// token that came along with rome's request.
pub fn acquainted(stories: impl AsyncFnOnce(&Side, &Side, &Logs)) {
    alone(async |bed, logs| {
        let (rome, milan) = start_both(bed).await;
        story::both_get_an_identity(&rome, &milan).await;
        run(&rome, &milan, logs, stories).await;
    });
}

/// Milan, which knows no other cluster, and serves whoever has its token before and after.
pub fn milan_alone(stories: impl AsyncFnOnce(&Side, &Logs)) {
    alone(async |bed, logs| {
        let milan = Side::start(bed.cluster("milan")).await;
        hostile::is_served(&milan).await;
        stories(&milan, logs).await;
        hostile::is_served(&milan).await;
        hostile::nothing_of_it_is_told(&milan, logs).await;
    });
}

fn alone(group: impl AsyncFnOnce(&Testbed, &Logs)) {
    // Poisoned by a group that failed: that is no reason for this one to fail.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // All tasks of the group end with its runtime, also after a panic, before the next group starts.
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

/// Whatever the stories are about, no secret that either cluster had before or has after them is told.
async fn run(
    rome: &Side,
    milan: &Side,
    logs: &Logs,
    stories: impl AsyncFnOnce(&Side, &Side, &Logs),
) {
    let sides = [rome, milan];
    let mut secrets = confidential::of(&sides).await;
    stories(rome, milan, logs).await;
    secrets.extend(confidential::of(&sides).await);
    confidential::is_told_nobody(&sides, &secrets, logs).await;
    logs.have_no("PRIVATE KEY");
    // The same, in base64.
    logs.have_no("LS0tLS1CRUdJTiBQUklWQVRF");
    logs.have_no_token();
}
