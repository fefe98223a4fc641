//! A client of an API server that nothing comes back from: what is under way fails in time, and
//! the same client works once there are answers again. Needs root.

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

/// More than any limit, less than anything that has none.
const IN_TIME: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_waits_for_an_api_server_that_does_not_answer() {
    let bed =
        Testbed::builder("time-limits").cluster(ClusterSpec::new("rome").control_plane_only());
    let bed = bed.start().await.expect("the control plane starts");
    let rome = bed.cluster("rome");
    let client = client_of(rome).await;
    packets_that_vanish_are_noticed(&bed, rome, &client).await;
    one_that_hangs_is_given_up(rome, &client).await;
}

async fn packets_that_vanish_are_noticed(bed: &Testbed, rome: &Cluster, client: &Client) {
    let namespaces = Api::<Namespace>::all(client.clone());
    let watch = namespaces.watch(&WatchParams::default(), "0").await.expect("a watch");
    let mut watch = pin!(watch);
    watch.next().await.expect("an event").expect("a namespace");
    client.apiserver_version().await.expect("an answer");

    let cut = bed.between(End::machine(), rome).cut().expect("a cut");
    let breaks = async { while let Some(Ok(_)) = watch.next().await {} };
    let on_an_open_connection = client.apiserver_version();
    let (answer, broken) =
        tokio::join!(timeout(IN_TIME, on_an_open_connection), timeout(IN_TIME, breaks));
    let begun = Instant::now();
    let on_a_new_connection = client.apiserver_version().await;
    let took = begun.elapsed();
    // Whatever is to be said of a failure is asked for by the same way.
    cut.undo().expect("it can be mended");
    answer.expect("it is given up").expect_err("there is no answer");
    broken.expect("the watch breaks");
    on_a_new_connection.expect_err("there is no connection");
    assert!(took < Duration::from_secs(5), "after {took:?}");
    answers_again(client).await;
}

async fn one_that_hangs_is_given_up(rome: &Cluster, client: &Client) {
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
    let is_waited_for = !patient.is_finished();
    frozen.undo().expect("it goes on");
    let error = answer.expect("it is given up").expect_err("there is no answer");
    assert!(format!("{error:?}").contains("NoAnswer"), "{error:?}");
    watch.expect("it is given up").expect_err("it does not begin");
    assert!(is_waited_for, "what may take long is not given up");
    patient.await.expect("it ends").expect("an answer");
    answers_again(client).await;
}

async fn answers_again(client: &Client) {
    let ask = async || client.apiserver_version().await.map_err(|error| error.to_string());
    eventually("it answers again", ask, Result::is_ok).await.expect("an answer");
}

async fn client_of(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("the kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    client::build(&config.expect("a configuration")).expect("a client")
}
