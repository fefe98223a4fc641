//! Leader election on a real API server. Needs root.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tombolo_runtime::{lease::lead, shutdown::Shutdown};
use tombolo_testbed::{ClusterSpec, Testbed, eventually};

const NAMESPACE: &str = "default";

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_leader_at_a_time() {
    let bed = Testbed::builder("lease").cluster(ClusterSpec::new("rome").control_plane_only());
    let bed = bed.start().await.expect("the control plane starts");
    let client = bed.cluster("rome").client().await.expect("a client");
    tokio::join!(
        a_leader_with_a_wrong_clock_leads_until_it_stops(&client),
        annotating_the_lease_does_not_end_the_leadership(&client),
    );
}

async fn a_leader_with_a_wrong_clock_leads_until_it_stops(client: &Client) {
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let renew = async || {
        let now = Timestamp::now() - SignedDuration::from_hours(1);
        let spec = json!({
            "holderIdentity": "late", "leaseDurationSeconds": 3, "renewTime": format!("{now:.6}"),
        });
        apply(&leases, "clock", "test", json!({ "spec": spec })).await;
    };
    renew().await;
    let shutdown = Shutdown::new();
    let mut waiting = tokio::spawn({
        let (client, shutdown) = (client.clone(), shutdown.clone());
        async move { lead(client, NAMESPACE, "clock", "us", &shutdown).await }
    });
    // For longer than the duration of the lease.
    for _ in 0..10 {
        renew().await;
        let second = Duration::from_secs(1);
        timeout(second, &mut waiting).await.expect_err("the other one leads");
    }
    let stopped = Instant::now();
    waiting.await.expect("it leads");
    assert!(stopped.elapsed() > Duration::from_secs(1), "the lease had just been renewed");
    shutdown.trigger();
}

async fn annotating_the_lease_does_not_end_the_leadership(client: &Client) {
    let shutdown = Shutdown::new();
    let leading = lead(client.clone(), NAMESPACE, "annotated", "us", &shutdown).await;
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let renewed = async || leases.get("annotated").await.expect("a lease").spec?.renew_time;
    for _ in 0..3 {
        let before = renewed().await;
        let annotate = async |by: &str| {
            for number in 0.. {
                let annotations = json!({ by: number.to_string() });
                let lease = json!({ "metadata": { "annotations": annotations } });
                apply(&leases, "annotated", by, lease).await;
            }
        };
        tokio::select! {
            _ = eventually("it is renewed", &renewed, |now| *now != before) => {}
            ((), ()) = async { tokio::join!(annotate("one"), annotate("another")) } => {}
        }
        assert!(!leading.is_over(), "it still leads");
    }
    shutdown.trigger();
}

async fn apply(leases: &Api<Lease>, name: &str, manager: &str, mut lease: serde_json::Value) {
    lease["apiVersion"] = "coordination.k8s.io/v1".into();
    lease["kind"] = "Lease".into();
    lease["metadata"]["name"] = name.into();
    let params = PatchParams::apply(manager).force();
    leases.patch(name, &params, &Patch::Apply(lease)).await.expect("it can be applied");
}
