//! A testbed leaves nothing behind on the machine, however it ends. One test at a time: each
//! compares the whole machine before and after.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::path::PathBuf;

use tokio::sync::{Mutex, MutexGuard};
use tombolo_testbed::{Cache, Cluster, ClusterSpec, Component, Machine, Testbed, images};

async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

fn assert_unchanged(before: &Machine) {
    let differences = before.differences(&Machine::look());
    assert!(differences.is_empty(), "{differences:#?}");
}

fn failures() -> Vec<PathBuf> {
    let dir = Cache::of_this_user().unwrap().path("failures");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[tokio::test]
async fn a_dropped_testbed_leaves_nothing() {
    let _turn = alone().await;
    let before = Machine::look();
    let toolbox = images::toolbox().unwrap();
    let rome = ClusterSpec::new("rome")
        .pod_cidr("10.1.0.0/20".parse().unwrap())
        .service_cidr("10.2.0.0/24".parse().unwrap())
        .api_server_flag("--max-requests-inflight=123")
        .durable()
        .image(toolbox);
    let bed = Testbed::builder("dropped").cluster(rome).start().await.unwrap();
    let rome = bed.cluster("rome");
    let web = include_str!("manifests/web.yaml").replace("replicas: 2", "replicas: 1");
    rome.apply(&web).await.unwrap();
    rome.deployed("default", "web").await.unwrap();
    matches_its_spec(rome).await;
    let during = before.differences(&Machine::look());
    for kind in ["network namespace", "link", "cgroup", "process", "testbed state"] {
        let found = during.iter().any(|line| line.starts_with(&format!("new: {kind} ")));
        assert!(found, "the comparison is blind to a {kind}: {during:#?}");
    }
    drop(bed);
    assert_unchanged(&before);
}

/// Settings of the spec other than the defaults are in effect.
async fn matches_its_spec(rome: &Cluster) {
    let get = async |what: &[&str]| rome.kubectl(&[&["get"], what].concat()).await.unwrap();
    let pod = get(&["pods", "-l", "app=web", "-o", "jsonpath={.items[0].status.podIP}"]).await;
    assert!(pod.starts_with("10.1.0."), "{pod}");
    let service = get(&["service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]).await;
    assert_eq!(service, "10.2.0.1");
    let command = |component| {
        let pid = rome.node(1).running()[&component];
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap()
    };
    assert!(command(Component::ApiServer).contains("--max-requests-inflight=123"));
    assert!(!command(Component::Etcd).contains("--unsafe-no-fsync"));
}

#[tokio::test]
async fn a_panic_leaves_only_the_logs() {
    let _turn = alone().await;
    let before = (Machine::look(), failures());
    let test = tokio::spawn(async {
        let rome = ClusterSpec::new("rome").control_plane_only();
        let bed = Testbed::builder("panics").cluster(rome).start().await.unwrap();
        assert!(bed.clusters().is_empty(), "this failure is on purpose");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert_unchanged(&before.0);

    let kept: Vec<PathBuf> = failures().into_iter().filter(|dir| !before.1.contains(dir)).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    for file in ["rome-1/kube-apiserver.log", "rome-1/etcd.log", "rome/namespaces.yaml"] {
        let text = std::fs::read_to_string(kept[0].join(file)).unwrap_or_default();
        assert!(!text.is_empty(), "{file} is missing or empty in {kept:?}");
    }
    std::fs::remove_dir_all(&kept[0]).unwrap();
}

#[tokio::test]
async fn a_failed_start_leaves_nothing() {
    let _turn = alone().await;
    let before = (Machine::look(), failures());
    let wrong = ClusterSpec::new("rome").control_plane_only().api_server_flag("--no-such-flag");
    let error = Testbed::builder("fails").cluster(wrong).start().await.unwrap_err().to_string();
    assert!(error.starts_with("kube-apiserver on rome-1 exited while starting"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    assert_unchanged(&before.0);
    for dir in failures().iter().filter(|dir| !before.1.contains(dir)) {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[tokio::test]
async fn an_invalid_spec_is_refused_before_anything_is_created() {
    let _turn = alone().await;
    let before = Machine::look();
    let start = async |bed: tombolo_testbed::TestbedBuilder| {
        let refused = bed.start().await.map(drop);
        refused.unwrap_err().to_string()
    };
    let rome = || ClusterSpec::new("rome");
    let twice = Testbed::builder("x").cluster(rome()).cluster(rome());
    assert_eq!(start(twice).await, "two clusters have the name \"rome\"");
    assert_eq!(start(Testbed::builder("x")).await, "0 clusters, but a testbed has 1 to 30");
    assert_unchanged(&before);
}

#[tokio::test]
async fn two_testbeds_run_side_by_side() {
    let _turn = alone().await;
    let before = Machine::look();
    let start = |name| {
        let rome = ClusterSpec::new("rome").control_plane_only();
        Testbed::builder(name).cluster(rome).start()
    };
    let (one, two) = tokio::join!(start("one"), start("two"));
    let (one, two) = (one.unwrap(), two.unwrap());
    let (here, there) = (one.cluster("rome").node(1), two.cluster("rome").node(1));
    assert_ne!(here.address(), there.address());
    assert_ne!(here.network_namespace(), there.network_namespace());

    let address = there.address().to_string();
    assert!(here.run(&["ping", "-c", "1", "-W", "1", &address]).await.is_err());
    one.cluster("rome").kubectl(&["create", "namespace", "only-one"]).await.unwrap();
    assert!(two.cluster("rome").kubectl(&["get", "namespace", "only-one"]).await.is_err());

    drop(one);
    let namespaces = two.cluster("rome").kubectl(&["get", "namespaces"]).await.unwrap();
    assert!(namespaces.contains("kube-system"), "{namespaces}");
    drop(two);
    assert_unchanged(&before);
}
