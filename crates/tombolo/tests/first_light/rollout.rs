//! Step 6: changes of the Deployment lose no request.

use crate::common::load::Outcome;
use crate::common::{SOON, list, name, within};
use crate::story::{NODE, Story, URL, story};

/// The same application in rome alone, as a control: its losses are those of Kubernetes.
const ALONE: &str = "http://web.alone.svc/cgi-bin/hello";
const SHOP: &str = include_str!("../../src/playground/shop.yaml");

async fn scale(story: &Story, namespace: &str, replicas: usize) {
    let replicas = format!("--replicas={replicas}");
    let rome = story.rome();
    rome.kubectl(&["scale", "-n", namespace, "deployment/web", &replicas]).await.unwrap();
    rome.deployed(namespace, "web").await.unwrap();
}

async fn roll(story: &Story, namespace: &str) {
    let rome = story.rome();
    let version = ["set", "env", "-n", namespace, "deployment/web", "VERSION=2"];
    rome.kubectl(&version).await.unwrap();
    rome.deployed(namespace, "web").await.unwrap();
}

fn assert_none_failed(who: &str, outcome: &Outcome) {
    assert!(outcome.answered > 50, "{who}: too few requests: {outcome:?}");
    assert!(outcome.failed.is_empty(), "{who}: {outcome:?}");
}

#[tokio::test]
async fn scaling_rolling_and_deleting_loses_no_request() {
    let story = story().await;
    let rome = story.rome();
    // The control must not run on the virtual node.
    let alone = SHOP.replace("shop", "alone").replace("DoNotSchedule", "ScheduleAnyway");
    rome.apply(&alone).await.unwrap();
    rome.deployed("alone", "web").await.unwrap();

    let control = story.clients["rome"].iter().find(|client| client.on_host).unwrap();
    let answer = async || control.ask(ALONE).await;
    within(SOON, "kube-proxy knows the service", answer, Result::is_ok).await;
    let control = control.start_load(ALONE).await;
    let (in_rome, in_milan) = (story.client("rome").await, story.client("milan").await);
    let (from_rome, from_milan) = (in_rome.start_load(URL).await, in_milan.start_load(URL).await);

    for namespace in ["shop", "alone"] {
        scale(&story, namespace, 10).await;
    }
    assert!(story.offloaded().await.len() >= 2, "some pods run in milan");
    for namespace in ["shop", "alone"] {
        roll(&story, namespace).await;
    }
    let here = story.pods().await;
    let here = here.iter().find(|pod| pod["spec"]["nodeName"] != NODE).map(name).unwrap();
    rome.kubectl(&["delete", "pod", "-n", "shop", here, "--wait=false"]).await.unwrap();
    let there = story.one_offloaded().await;
    rome.kubectl(&["delete", "pod", "-n", "shop", &there, "--wait=false"]).await.unwrap();
    rome.deployed("shop", "web").await.unwrap();
    // A pod that is deleted in milan is created again.
    let twin = story.one_offloaded().await;
    story.milan().kubectl(&["delete", "pod", "-n", "shop", &twin, "--wait=false"]).await.unwrap();
    let ready = async || {
        let pods = story.pods().await;
        pods.iter().filter(|pod| crate::common::condition(pod, "Ready") == "True").count()
    };
    within(SOON, "ten pods are ready again", ready, |count| *count == 10).await;
    for namespace in ["shop", "alone"] {
        scale(&story, namespace, 4).await;
    }

    let (control, rome_saw, milan_saw) =
        (control.stop().await, from_rome.stop().await, from_milan.stop().await);
    rome.kubectl(&["delete", "namespace", "alone"]).await.unwrap();
    assert_none_failed("one cluster alone", &control);
    assert_none_failed("rome", &rome_saw);
    assert_none_failed("milan", &milan_saw);

    let twins = async || list(story.milan(), &["pods", "-n", "shop"]).await.len();
    let wanted = story.offloaded().await.len();
    within(SOON, "milan has no pod too many", twins, |count| *count == wanted).await;
}
