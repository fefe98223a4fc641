//! A client of an unreachable API server: requests and watches fail in time, and the same client
//! works once the server is back. Needs root.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    api::WatchParams,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::{Instant, timeout};
use tombolo_runtime::{client, time_limit::Unlimited};
use tombolo_testbed::{Cluster, ClusterSpec, Component, End, Testbed, eventually};

/// Longer than any time limit.
const IN_TIME: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_an_unreachable_api_server_fail_in_time() {
    let bed =
        Testbed::builder("time-limits").cluster(ClusterSpec::new("rome").control_plane_only());
    let bed = bed.start().await.expect("the control plane starts");
    let rome = bed.cluster("rome");
    let client = client_of(rome).await;
    dropped_packets_are_detected(&bed, rome, &client).await;
    a_frozen_api_server_is_detected(rome, &client).await;
}

async fn dropped_packets_are_detected(bed: &Testbed, rome: &Cluster, client: &Client) {
    let namespaces = Api::<Namespace>::all(client.clone());
    let watch = namespaces.watch(&WatchParams::default(), "0").await.expect("a watch");
    let mut watch = pin!(watch);
    watch.next().await.expect("an event").expect("a namespace");
    client.apiserver_version().await.expect("a response");

    let cut = bed.between(End::machine(), rome).cut().expect("a cut");
    let breaks = async { while let Some(Ok(_)) = watch.next().await {} };
    let on_an_open_connection = client.apiserver_version();
    let (answer, broken) =
        tokio::join!(timeout(IN_TIME, on_an_open_connection), timeout(IN_TIME, breaks));
    let begun = Instant::now();
    let on_a_new_connection = client.apiserver_version().await;
    let took = begun.elapsed();
    // The logs of a failed test are fetched over the same network.
    cut.undo().expect("the cut is undone");
    answer.expect("it fails in time").expect_err("no response");
    broken.expect("the watch ends");
    on_a_new_connection.expect_err("no connection");
    assert!(took < Duration::from_secs(5), "after {took:?}");
    responds_again(client).await;
}

async fn a_frozen_api_server_is_detected(rome: &Cluster, client: &Client) {
    let frozen = rome.freeze(1, Component::ApiServer).expect("it freezes");
    let mut patient = Request::get("/version").body(Body::empty()).expect("a request");
    patient.extensions_mut().insert(Unlimited);
    let patient = tokio::spawn({
        let client = client.clone();
        async move { client.send(patient).await }
    });
    let watch = timeout(IN_TIME, async {
        let namespaces = Api::<Namespace>::all(client.clone());
        namespaces.watch(&WatchParams::default(), "0").await.map(drop)
    });
    let (answer, watch) = tokio::join!(timeout(IN_TIME, client.apiserver_version()), watch);
    let still_waits = !patient.is_finished();
    frozen.undo().expect("it goes on");
    let error = answer.expect("it fails in time").expect_err("no response");
    assert!(format!("{error:?}").contains("NoResponse"), "{error:?}");
    watch.expect("it fails in time").expect_err("no response");
    assert!(still_waits, "a request without a limit waits");
    patient.await.expect("it ends").expect("a response");
    responds_again(client).await;
}

async fn responds_again(client: &Client) {
    let version = async || client.apiserver_version().await.map_err(|error| error.to_string());
    eventually("it responds again", version, Result::is_ok).await.expect("a response");
}

async fn client_of(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("the kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    client::build(&config.expect("a configuration")).expect("a client")
}
