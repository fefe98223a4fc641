//! Two API servers with the controllers of both clusters and identities from the test: a peering
//! starts on request, survives faults, and leaves nothing behind.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::Request;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams},
    client::Body,
};
use serde_json::json;
use tombolo_api::{
    config::ClusterConfig,
    discovery::{ForeignCluster, ResourceRequest},
    names::NAMESPACE,
    sharing::ResourceOffer,
};
use tombolo_control::testing::{Context, health, offer, peering, replicator};
use tombolo_runtime::shutdown::Shutdown;
use tombolo_testbed::{Cluster, ClusterSpec, Component, Testbed, eventually};
use tombolo_testing::Side;
use tower::service_fn;

#[tokio::test(flavor = "multi_thread")]
async fn a_peering_starts_survives_faults_and_leaves_nothing_behind() {
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("peering").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the API servers start");
    let (rome, milan) = tokio::join!(side(bed.cluster("rome")), side(bed.cluster("milan")));
    rome.knows(&milan).await;
    milan.knows(&rome).await;
    let (at_milan, offer_lists) = start_and_count_offer_lists(&milan);
    let at_rome = start_and_count_watches(bed.cluster("rome"), &rome).await;

    // There is no peering without `join`.
    rome.says("milan", "OutgoingPeering", "NotJoined").await;
    rome.says("milan", "APIServer", "Reachable").await;

    rome.join("milan", true).await;
    rome.says("milan", "OutgoingPeering", "Established").await;
    milan.says("rome", "IncomingPeering", "Established").await;
    milan.says("rome", "OutgoingPeering", "NotJoined").await;
    let offer = rome.get_in::<ResourceOffer>("liqo-tenant-milan", "milan").await.expect("an offer");
    assert_eq!(offer.spec.resource_quota.hard["cpu"].0, "600m", "30 % of two cores");
    refers_to_existing_requests(&rome, "milan").await;
    refers_to_existing_requests(&milan, "rome").await;

    // Milan shares a larger percentage.
    let more = json!({ "sharing": { "sharePercentage": 40 } });
    milan.put::<ClusterConfig>("cluster", json!({ "spec": more })).await;
    let is_more = |offer: &ResourceOffer| offer.spec.resource_quota.hard["cpu"].0 == "800m";
    rome.until_in("liqo-tenant-milan", "milan", is_more).await;

    // A deleted copy of the request is recreated, and so is the offer.
    let copy = milan.get_in::<ResourceRequest>("liqo-tenant-rome", "rome").await.expect("the copy");
    milan.delete_in::<ResourceRequest>("liqo-tenant-rome", "rome").await;
    let is_another = |now: &ResourceRequest| now.uid() != copy.uid();
    milan.until_in("liqo-tenant-rome", "rome", is_another).await;
    rome.says("milan", "OutgoingPeering", "Established").await;

    // Milan refuses an accepted request, then accepts it again.
    set_state(&milan, "rome", "Refused").await;
    rome.says("milan", "OutgoingPeering", "RequestRefused").await;
    milan.says("rome", "IncomingPeering", "RequestRefused").await;
    rome.none::<ResourceOffer>().await;
    milan.none::<ResourceOffer>().await;
    set_state(&milan, "rome", "Accepted").await;
    rome.says("milan", "OutgoingPeering", "Established").await;

    // The offers to others were read from the watch.
    assert_eq!(offer_lists.load(Ordering::Relaxed), 1, "milan listed its offers more than once");

    // The controllers restart.
    at_rome.trigger();
    at_milan.trigger();
    let at_rome = start(&rome);
    let at_milan = start(&milan);

    // Milan's API server freezes, then responds again.
    let frozen = bed.cluster("milan").freeze(1, Component::ApiServer).expect("it freezes");
    rome.says("milan", "APIServer", "Unreachable").await;
    drop(frozen);
    rome.says("milan", "APIServer", "Reachable").await;

    // Without an identity its API server can't be checked.
    rome.is_authenticated("milan", false).await;
    rome.says("milan", "APIServer", "NotAuthenticated").await;
    rome.is_authenticated("milan", true).await;
    rome.says("milan", "APIServer", "Reachable").await;

    rome.join("milan", false).await;
    rome.says("milan", "OutgoingPeering", "NotJoined").await;
    milan.says("rome", "IncomingPeering", "NotRequested").await;
    for side in [&rome, &milan] {
        side.none::<ResourceRequest>().await;
        side.none::<ResourceOffer>().await;
    }

    // Again, without autoAccept in milan until it is enabled.
    auto_accept(&milan, false).await;
    rome.join("milan", true).await;
    rome.says("milan", "OutgoingPeering", "RequestPending").await;
    milan.says("rome", "IncomingPeering", "RequestPending").await;
    auto_accept(&milan, true).await;
    rome.says("milan", "OutgoingPeering", "Established").await;
    at_rome.trigger();
    at_milan.trigger();
}

/// Checks that the requests in the status of a ForeignCluster exist.
async fn refers_to_existing_requests(side: &Side, peer: &str) {
    let entry = side.get::<ForeignCluster>(peer).await.expect("the ForeignCluster");
    let status = entry.status.expect("a status");
    let requests = [status.outgoing, status.incoming].into_iter().flatten();
    let requests: Vec<_> = requests.filter_map(|peering| peering.peering_request).collect();
    assert_eq!(requests.len(), 1, "there is a peering in one direction");
    for it in requests {
        let there = side.get_in::<ResourceRequest>(&it.namespace, &it.name).await;
        assert!(there.is_some(), "{it:?}");
    }
}

/// Checks that each kind is watched once, however many controllers use it.
async fn start_and_count_watches(cluster: &Cluster, side: &Side) -> Shutdown {
    // The controller manager starts watches of custom resources at any time.
    let _frozen = cluster.freeze(1, Component::ControllerManager).expect("it freezes");
    let everywhere = |labels: &str| labels.contains("scope=\"cluster\"");
    let before = side.watches(everywhere).await;
    let shutdown = start(side);
    let new = async || {
        let mut now = side.watches(everywhere).await;
        for (kind, count) in &mut now {
            *count = count.saturating_sub(before.get(kind).copied().unwrap_or_default());
        }
        now.retain(|_, count| *count > 0);
        now
    };
    let kinds = [
        "clusterconfigs",
        "foreignclusters",
        "namespacemaps",
        "namespaces",
        "networkconfigs",
        "nodes",
        "pods",
        "resourceoffers",
        "resourcerequests",
    ];
    let once = kinds.map(|kind| (kind.to_owned(), 1)).into();
    eventually("each kind is watched once", new, |new| *new == once).await;
    shutdown
}

/// A cluster with the Service of the auth service, and an empty node with two cores.
async fn side(cluster: &Cluster) -> Side {
    let side = Side::new(cluster).await;
    let service = json!({ "spec": { "type": "NodePort", "ports": [{ "port": 443 }] } });
    side.put_in::<Service>(NAMESPACE, "liqo-auth", service).await;
    side.put::<Node>("one", json!({})).await;
    let status = json!({
        "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "110" },
        "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    });
    side.put_status::<Node>("one", status).await;
    side
}

fn start(side: &Side) -> Shutdown {
    start_with(side.client.clone(), side)
}

/// Also counts lists of all ResourceOffers.
fn start_and_count_offer_lists(side: &Side) -> (Shutdown, Arc<AtomicUsize>) {
    let (client, lists) = (side.client.clone(), Arc::<AtomicUsize>::default());
    let count = lists.clone();
    let counted = service_fn(move |request: Request<Body>| {
        let uri = request.uri();
        let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        if uri.path().ends_with("/v1alpha1/resourceoffers") && !is_watch {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    (start_with(Client::new(counted, "default"), side), lists)
}

fn start_with(client: Client, side: &Side) -> Shutdown {
    let shutdown = Shutdown::new();
    let context = Context::new(client, side.settings.clone(), shutdown.clone());
    let context = Arc::new(context);
    tokio::spawn(health::run(context.clone()));
    tokio::spawn(offer::run(context.clone()));
    tokio::spawn(peering::run(context.clone()));
    tokio::spawn(replicator::run(context));
    shutdown
}

/// Sets `sharing.autoAccept`.
async fn auto_accept(side: &Side, enabled: bool) {
    let spec = json!({ "sharing": { "autoAccept": enabled } });
    side.put::<ClusterConfig>("cluster", json!({ "spec": spec })).await;
}

/// Sets the state of a request, as an administrator does.
async fn set_state(side: &Side, name: &str, state: &str) {
    let requests = side.within::<ResourceRequest>(&format!("liqo-tenant-{name}"));
    let patch = Patch::Merge(json!({ "status": { "state": state } }));
    requests.patch_status(name, &PatchParams::default(), &patch).await.expect("the state is set");
}
