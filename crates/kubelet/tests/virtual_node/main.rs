//! Rome's virtual node for milan, on two real clusters without a network between their pods. The
//! test writes the objects of the peering itself.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod fixture;

use fixture::Fixture;
use serde_json::json;
use tombolo_testbed::eventually;

const READY: &str = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
const PHASE: &str = "jsonpath={.status.phase}";

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_virtual_node_run_in_the_remote_cluster() {
    let mut fixture = Fixture::start().await;
    the_node_has_the_offered_resources(&fixture).await;
    a_pod_runs_in_the_remote_cluster(&fixture).await;
    logs_exec_and_port_forward_work(&fixture).await;
    an_attached_terminal_reaches_the_process(&fixture).await;
    a_pod_deleted_in_the_remote_cluster_is_recreated(&fixture).await;
    label_changes_are_copied(&fixture).await;
    a_job_finishes_once(&fixture).await;
    a_pod_that_can_not_run_is_pending_with_a_reason(&fixture).await;
    loss_of_the_tunnel_is_shown_at_once(&fixture).await;
    a_deleted_node_is_recreated(&fixture).await;
    a_deleted_pod_is_deleted_in_both_clusters(&fixture).await;
    deletions_during_a_restart_are_found(&mut fixture).await;
    pods_of_a_namespace_that_is_no_longer_offloaded_are_evicted(&fixture).await;
    a_refused_offer_leaves_nothing_behind(&fixture).await;
}

async fn the_node_has_the_offered_resources(f: &Fixture) {
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "True").await;
    let cpu = "jsonpath={.status.allocatable.cpu}";
    f.rome_says(&["get", "node", "liqo-milan", "-o", cpu], "1500m").await;
    let offer = ["get", "offer", "-n", "liqo-tenant-milan", "milan", "-o"];
    let node = "jsonpath={.status.virtualNode}";
    f.rome_says(&[&offer[..], &[node]].concat(), "liqo-milan").await;
    let finalizers = "jsonpath={.metadata.finalizers[*]}";
    f.rome_says(&[&offer[..], &[finalizers]].concat(), "liqo.io/kubelet").await;
    let holder = "jsonpath={.spec.holderIdentity}";
    let lease = ["get", "lease", "-n", "kube-node-lease", "liqo-milan", "-o", holder];
    f.rome_says(&lease, "liqo-milan").await;
}

async fn a_pod_runs_in_the_remote_cluster(f: &Fixture) {
    f.rome.apply(include_str!("web.yaml")).await.expect("the Deployment applies");
    f.rome.deployed("shop", "web").await.expect("the pods run");
    let home = f.json(&f.rome, &["get", "pods", "-n", "shop", "-l", "app=web"]).await;
    let there = f.json(&f.milan, &["get", "pods", "-n", "shop-rome", "-l", "app=web"]).await;
    let (home, there) = (&home["items"][0], &there["items"][0]);
    assert_eq!(home["metadata"]["name"], there["metadata"]["name"]);
    assert_eq!(there["metadata"]["labels"]["liqo.io/managed-by"], "shadowpod");
    let real = there["status"]["podIP"].as_str().expect("an address");
    let host = real.strip_prefix("10.244.").expect("an address of milan's pods");
    assert_eq!(home["status"]["podIP"], format!("10.81.{host}"));
    assert_eq!(home["status"]["hostIP"], f.settings.pod_ip.to_string());
    assert_eq!(home["status"]["containerStatuses"], there["status"]["containerStatuses"]);
}

async fn logs_exec_and_port_forward_work(f: &Fixture) {
    let id = f.rome.exec("shop", "deploy/web", &["bash", "-c", "echo $LIQO_CLUSTER_ID"]).await;
    assert_eq!(id.expect("exec works"), "id-of-milan\n");
    let logs = f.rome.kubectl(&["logs", "-n", "shop", "deploy/web", "--tail", "1"]).await;
    assert_eq!(logs.expect("logs work"), "started\n");
    let failed = f.rome.exec("shop", "deploy/web", &["bash", "-c", "exit 7"]).await.unwrap_err();
    assert!(failed.to_string().contains("exit code 7"), "{failed}");
    let script = "printf 'here\\n' | kubectl exec -i -n shop deploy/web -- cat
        exec 4< <(exec kubectl logs -n shop deploy/web -f); logs=$!
        read -r -t 3 line <&4 && echo \"$line\"; kill $logs
        exec 3< <(exec kubectl port-forward -n shop deploy/web :8080); forward=$!
        read -r line <&3; port=${line#*127.0.0.1:}
        curl -s --max-time 10 http://127.0.0.1:${port%% *}/; kill $forward";
    let said = f.shell(script).await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["here", "started"], "{said}");
    assert!(lines[2].starts_with("web-"), "{said}");
}

/// Input of an attached terminal reaches the process, and its output comes back.
async fn an_attached_terminal_reaches_the_process(f: &Fixture) {
    f.rome.apply(include_str!("echo.yaml")).await.expect("the pod applies");
    f.rome_says(&["get", "pod", "-n", "shop", "echo", "-o", PHASE], "Running").await;
    let script = "coproc attach { exec kubectl attach -q -i -n shop echo; }
        for word in one two; do
            echo $word >&${attach[1]}
            read -r -t 30 line <&${attach[0]} && echo \"$line\"
        done
        kill $attach_PID";
    assert_eq!(f.shell(script).await, "heard one\nheard two\n");
    let logs = f.rome.kubectl(&["logs", "-n", "shop", "echo"]).await;
    assert_eq!(logs.expect("logs work"), "heard one\nheard two\n", "it is the pod's own process");
    f.rome.kubectl(&["delete", "pod", "-n", "shop", "echo"]).await.expect("it goes");
}

async fn a_pod_deleted_in_the_remote_cluster_is_recreated(f: &Fixture) {
    let uid =
        ["get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.uid}"];
    let there = [
        "get",
        "pods",
        "-n",
        "shop-rome",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[*].metadata.uid}",
    ];
    let (home, before) =
        (f.rome.kubectl(&uid).await.unwrap(), f.milan.kubectl(&there).await.unwrap());
    f.milan.kubectl(&["delete", "pods", "-n", "shop-rome", "-l", "app=web"]).await.unwrap();
    let another = async || f.milan.kubectl(&there).await.unwrap();
    eventually("another pod", another, |now| !now.is_empty() && *now != before).await;
    f.rome.deployed("shop", "web").await.expect("it runs again");
    assert_eq!(f.rome.kubectl(&uid).await.unwrap(), home, "it is the same local pod");
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let restarts = ["get", "pods", "-n", "shop", "-l", "app=web", "-o", restarts];
    f.rome_says(&restarts, "1").await;

    // A deleted ShadowPod is recreated too.
    let shadows =
        ["get", "shadowpods", "-n", "shop-rome", "-o", "jsonpath={.items[*].metadata.uid}"];
    let before = f.milan.kubectl(&shadows).await.unwrap();
    f.milan.kubectl(&["delete", "shadowpods", "-n", "shop-rome", "--all"]).await.unwrap();
    let another = async || f.milan.kubectl(&shadows).await.unwrap();
    eventually("another ShadowPod", another, |now| !now.is_empty() && *now != before).await;
    f.rome.deployed("shop", "web").await.expect("it runs again");
    assert_eq!(f.rome.kubectl(&uid).await.unwrap(), home, "it is the same local pod");
    f.rome_says(&restarts, "2").await;
}

async fn label_changes_are_copied(f: &Fixture) {
    f.rome.kubectl(&["label", "pods", "-n", "shop", "-l", "app=web", "colour=red"]).await.unwrap();
    let there = ["get", "pods", "-n", "shop-rome", "-l", "colour=red", "-o", "name"];
    let labelled = async || f.milan.kubectl(&there).await.unwrap();
    eventually("the label", labelled, |pods| !pods.is_empty()).await;
    f.rome.kubectl(&["label", "pods", "-n", "shop", "-l", "app=web", "colour-"]).await.unwrap();
    eventually("no label", labelled, String::is_empty).await;
}

async fn a_job_finishes_once(f: &Fixture) {
    f.rome.apply(include_str!("job.yaml")).await.expect("the Job applies");
    let succeeded = "jsonpath={.status.succeeded}";
    f.rome_says(&["get", "job", "-n", "shop", "once", "-o", succeeded], "1").await;
    f.milan.kubectl(&["delete", "pods", "-n", "shop-rome", "-l", "job-name=once"]).await.unwrap();
    let phase = [
        "get",
        "pods",
        "-n",
        "shop",
        "-l",
        "job-name=once",
        "-o",
        "jsonpath={.items[*].status.phase}",
    ];
    f.rome_says(&phase, "Succeeded").await;
    f.rome.kubectl(&["delete", "job", "-n", "shop", "once"]).await.unwrap();
    f.milan_says(
        &["get", "shadowpods", "-n", "shop-rome", "-l", "job-name=once", "-o", "name"],
        "",
    )
    .await;
}

async fn a_pod_that_can_not_run_is_pending_with_a_reason(f: &Fixture) {
    f.rome.apply(include_str!("stuck.yaml")).await.expect("the pods apply");
    let node = "spec.nodeName=liqo-milan";
    let daemon = [
        "get",
        "pods",
        "-A",
        "-l",
        "app=daemon",
        "--field-selector",
        node,
        "-o",
        "jsonpath={.items[0].status.phase} {.items[0].status.reason}",
    ];
    f.rome_says(&daemon, "Pending DaemonSetNotOffloaded").await;
    let reason = "jsonpath={.status.phase} {.status.reason}";
    f.rome_says(&["get", "pod", "elsewhere", "-o", reason], "Pending NamespaceNotOffloaded").await;
    f.rome_says(&["get", "pod", "-n", "shop", "refused", "-o", reason], "Pending RemotePodRefused")
        .await;
    let message = ["get", "pod", "-n", "shop", "refused", "-o", "jsonpath={.status.message}"];
    let said = f.rome.kubectl(&message).await.unwrap();
    assert!(said.contains("spec.runtimeClassName") || said.contains("RuntimeClass"), "{said}");
    for (namespace, what) in
        [("default", "ds/daemon"), ("default", "pod/elsewhere"), ("shop", "pod/refused")]
    {
        f.rome.kubectl(&["delete", "-n", namespace, what]).await.unwrap();
    }
}

async fn loss_of_the_tunnel_is_shown_at_once(f: &Fixture) {
    let pod = [
        "get",
        "pods",
        "-n",
        "shop",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].status}",
    ];
    f.rome_says(&pod, "True").await;
    let start = std::time::Instant::now();
    f.condition("TunnelEndpoint", "False").await;
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "False").await;
    f.rome_says(&pod, "False").await;
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(3), "it took {took:?}");
    f.condition("TunnelEndpoint", "True").await;
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "True").await;
    f.rome_says(&pod, "True").await;
}

async fn a_deleted_node_is_recreated(f: &Fixture) {
    f.rome.kubectl(&["delete", "node", "liqo-milan"]).await.unwrap();
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "True").await;
    f.rome.deployed("shop", "web").await.expect("it still runs");
}

async fn a_deleted_pod_is_deleted_in_both_clusters(f: &Fixture) {
    let pod = include_str!("slow.yaml");
    f.rome.apply(pod).await.expect("the pod applies");
    f.rome_says(&["get", "pod", "-n", "shop", "slow", "-o", PHASE], "Running").await;
    // It ignores SIGTERM: with its own grace period the deletion would take five minutes.
    f.rome.kubectl(&["delete", "pod", "-n", "shop", "slow", "--grace-period=1"]).await.unwrap();
    let there = ["get", "pods,shadowpods", "-n", "shop-rome", "-l", "app=slow", "-o", "name"];
    f.milan_says(&there, "").await;
}

async fn deletions_during_a_restart_are_found(f: &mut Fixture) {
    f.rome.apply(include_str!("slow.yaml")).await.expect("the pod applies");
    f.rome_says(&["get", "pod", "-n", "shop", "slow", "-o", PHASE], "Running").await;
    f.stop_kubelet().await;
    let force = ["delete", "pod", "-n", "shop", "slow", "--grace-period=0", "--force"];
    f.rome.kubectl(&force).await.unwrap();
    f.start_kubelet();
    let there = ["get", "shadowpods", "-n", "shop-rome", "-l", "app=slow"];
    let going = async || {
        let shadows = f.json(&f.milan, &there).await;
        shadows["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|s| s["metadata"]["deletionTimestamp"].is_string())
    };
    eventually("the ShadowPod is deleted", going, |going| *going).await;
    f.milan
        .kubectl(&["delete", "pod", "-n", "shop-rome", "slow", "--grace-period=0", "--force"])
        .await
        .unwrap();
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "True").await;
    let logs = async || f.rome.kubectl(&["logs", "-n", "shop", "deploy/web"]).await;
    eventually("logs at the new port", logs, Result::is_ok).await.unwrap();
}

async fn pods_of_a_namespace_that_is_no_longer_offloaded_are_evicted(f: &Fixture) {
    f.map(json!({})).await;
    let unscheduled = [
        "get",
        "pods",
        "-n",
        "shop",
        "--field-selector",
        "spec.nodeName=liqo-milan,status.phase=Running",
        "-o",
        "name",
    ];
    f.rome_says(&unscheduled, "").await;
    f.map(json!({ "shop": "shop-rome" })).await;
    f.rome.deployed("shop", "web").await.expect("it runs again");
}

/// Rome may only delete its objects in milan after the refusal.
async fn a_refused_offer_leaves_nothing_behind(f: &Fixture) {
    f.is_guest(false).await;
    // The grace period can't be set in milan any more, but the pods can be deleted.
    let there = "--field-selector=spec.nodeName=liqo-milan";
    let sooner = ["delete", "pods", "-n", "shop", there, "--grace-period=2", "--wait=false"];
    f.rome.kubectl(&sooner).await.expect("they are deleted");
    f.phase("Refused").await;
    f.rome_says(&["get", "node", "-l", "liqo.io/type=virtual-node", "-o", "name"], "").await;
    f.milan_says(&["get", "pods,shadowpods", "-n", "shop-rome", "-o", "name"], "").await;
    let finalizers = [
        "get",
        "offer",
        "-n",
        "liqo-tenant-milan",
        "milan",
        "-o",
        "jsonpath={.metadata.finalizers[*]}{.status.virtualNode}",
    ];
    f.rome_says(&finalizers, "").await;

    f.is_guest(true).await;
    f.phase("Accepted").await;
    f.rome_says(&["get", "node", "liqo-milan", "-o", READY], "True").await;
    f.rome.deployed("shop", "web").await.expect("it runs again");
}
