//! Step 5: an offloaded pod as seen in the home cluster, and its objects in the remote one.

use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::common::{SOON, get, list, name, within};
use crate::story::{NODE, story};

#[tokio::test]
async fn logs_exec_and_port_forward_reach_a_pod_in_milan() {
    let story = story().await;
    let (rome, pod) = (story.rome(), story.one_offloaded().await);
    rome.exec("shop", &pod, &["sh", "-c", "echo logged by $POD >/proc/1/fd/1"]).await.unwrap();
    let logs = async || rome.kubectl(&["logs", "-n", "shop", &pod]).await.unwrap();
    let wanted = format!("logged by {pod}");
    within(SOON, "the log shows it", logs, |text| text.contains(&wanted)).await;

    let said = rome.exec("shop", &pod, &["sh", "-c", "echo $POD $NODE"]).await.unwrap();
    assert!(said.starts_with(&format!("{pod} milan-")), "{said}");
    let failed = rome.exec("shop", &pod, &["sh", "-c", "exit 7"]).await.unwrap_err();
    assert!(failed.to_string().contains('7'), "{failed}");

    let path = story.bed.path_with_kubectl();
    let mut forward = tokio::process::Command::new("kubectl")
        .env("PATH", path)
        .env("KUBECONFIG", rome.kubeconfig())
        .args(["port-forward", "-n", "shop", &format!("pod/{pod}"), ":8080"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().expect("it says where it listens");
    let port = first.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let url = format!("http://127.0.0.1:{port}/cgi-bin/hello");
    let curl = tokio::process::Command::new("curl").args(["-sS", "-m", "5", &url]).output();
    let said = String::from_utf8(curl.await.unwrap().stdout).unwrap();
    assert!(said.starts_with(&pod), "{said}");
}

const KUBELETS_PERIOD: Duration = Duration::from_secs(150);

const MOUNTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: menu, namespace: shop}
data: {dish: carbonara}
---
apiVersion: v1
kind: Secret
metadata: {name: recipe, namespace: shop}
stringData: {ingredient: guanciale}
---
apiVersion: v1
kind: Pod
metadata: {name: cook, namespace: shop}
spec:
  nodeSelector: {liqo.io/type: virtual-node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: cook
    image: 'localhost/toolbox:1'
    command: [sleep, infinity]
    volumeMounts:
    - {name: menu, mountPath: /menu}
    - {name: recipe, mountPath: /recipe}
  volumes:
  - {name: menu, configMap: {name: menu}}
  - {name: recipe, secret: {secretName: recipe}}
";

#[tokio::test]
async fn config_maps_and_secrets_are_reflected_and_updated() {
    let story = story().await;
    let (rome, milan) = (story.rome(), story.milan());
    rome.apply(MOUNTS).await.unwrap();
    let ready = ["wait", "-n", "shop", "pod/cook", "--for=condition=Ready", "--timeout=60s"];
    rome.kubectl(&ready).await.unwrap();
    let read = async |file: &str| rome.exec("shop", "cook", &["cat", file]).await.unwrap();
    assert_eq!(read("/menu/dish").await, "carbonara");
    assert_eq!(read("/recipe/ingredient").await, "guanciale");

    let cook = get(milan, &["pod", "-n", "shop", "cook"]).await;
    let environment = cook["spec"]["containers"][0]["env"].as_array().unwrap().clone();
    let id = get(milan, &["configmap", "-n", "liqo", "liqo-cluster"]).await["data"]["CLUSTER_ID"]
        .clone();
    let told = environment.iter().find(|variable| variable["name"] == "LIQO_CLUSTER_ID");
    assert_eq!(told.expect("the pod has the cluster id")["value"], id);
    let volumes = cook["spec"]["volumes"].as_array().unwrap();
    let tokens: Vec<&Value> = volumes
        .iter()
        .filter(|v| v["name"].as_str().unwrap().starts_with("kube-api-access"))
        .collect();
    assert!(tokens.is_empty(), "{tokens:?}");

    let change =
        ["patch", "configmap", "-n", "shop", "menu", "-p", r#"{"data":{"dish":"amatriciana"}}"#];
    rome.kubectl(&change).await.unwrap();
    let there =
        async || get(milan, &["configmap", "-n", "shop", "menu"]).await["data"]["dish"].clone();
    within(SOON, "the ConfigMap follows", there, |dish| dish == "amatriciana").await;
    let change = r#"{"stringData":{"ingredient":"pecorino"}}"#;
    rome.kubectl(&["patch", "secret", "-n", "shop", "recipe", "-p", change]).await.unwrap();
    // As in one cluster, a kubelet updates mounts once a minute, and when the pod changes.
    let files = async || {
        let changed = format!("example.com/changed={}", Timestamp::now());
        let change = ["annotate", "pod", "-n", "shop", "cook", "--overwrite", &changed];
        milan.kubectl(&change).await.unwrap();
        (read("/menu/dish").await, read("/recipe/ingredient").await)
    };
    let followed =
        |(dish, ingredient): &(String, String)| dish == "amatriciana" && ingredient == "pecorino";
    within(KUBELETS_PERIOD, "the mounts are updated", files, followed).await;
    rome.kubectl(&["delete", "configmap/menu", "secret/recipe", "pod/cook", "-n", "shop"])
        .await
        .unwrap();
    let left = async || list(milan, &["pods,configmaps,secrets", "-n", "shop"]).await;
    let gone =
        |all: &Vec<Value>| !all.iter().any(|o| ["menu", "recipe", "cook"].contains(&name(o)));
    within(SOON, "they are deleted in milan", left, gone).await;
}

#[tokio::test]
async fn the_root_ca_of_a_cluster_is_not_reflected() {
    let story = story().await;
    let of = async |cluster| get(cluster, &["configmap", "-n", "shop", "kube-root-ca.crt"]).await;
    let (rome, milan) = (of(story.rome()).await, of(story.milan()).await);
    assert_ne!(rome["data"]["ca.crt"], milan["data"]["ca.crt"]);
    // An attempt to reflect it would fail on milan's own ConfigMap, with an event.
    let events = list(story.rome(), &["events", "-n", "shop"]).await;
    let tried = |event: &&Value| {
        event["reason"] == "NotReflected" && event["involvedObject"]["name"] == "kube-root-ca.crt"
    };
    assert_eq!(events.iter().find(tried), None);
}

#[tokio::test]
async fn the_status_of_a_pod_is_that_of_the_remote_pod() {
    let story = story().await;
    let tunnel = story.tunnel("rome").await;
    let network: ipnet::Ipv4Net =
        tunnel["status"]["remoteNATPodCIDR"].as_str().unwrap().parse().unwrap();
    for pod in story.offloaded().await {
        let twin = get(story.milan(), &["pod", "-n", "shop", name(&pod)]).await;
        assert_eq!(pod["status"]["phase"], "Running");
        let (here, there) =
            (&pod["status"]["containerStatuses"][0], &twin["status"]["containerStatuses"][0]);
        assert_eq!(here["restartCount"], there["restartCount"]);
        assert_eq!(here["ready"], there["ready"]);
        assert_eq!(here["containerID"], there["containerID"]);
        let address = |pod: &Value| -> std::net::Ipv4Addr {
            pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
        };
        let (seen, real) = (address(&pod), address(&twin));
        assert!(network.contains(&seen), "{seen} is not in {network}");
        let host = u32::from(network.hostmask());
        assert_eq!(u32::from(seen) & host, u32::from(real) & host, "the host part is kept");
        assert_eq!(pod["spec"]["nodeName"], NODE);
    }
}

#[tokio::test]
async fn restarts_are_counted() {
    let story = story().await;
    let rome = story.rome();
    rome.apply(CRASHING).await.unwrap();
    let count = async || {
        get(rome, &["pod", "-n", "shop", "restless"]).await["status"]["containerStatuses"][0]["restartCount"]
            .as_u64()
    };
    within(SOON, "the restart shows at home", count, |now| *now > Some(0)).await;
    rome.kubectl(&["delete", "pod", "-n", "shop", "restless", "--grace-period=1"]).await.unwrap();
}

/// A pod in milan that exits repeatedly.
const CRASHING: &str = "
apiVersion: v1
kind: Pod
metadata: { name: restless, namespace: shop }
spec:
  nodeSelector: { liqo.io/type: virtual-node }
  containers:
    - name: main
      image: localhost/toolbox:1
      command: [sleep, '1']
";

const CORNER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: corner, labels: {liqo.io/enabled: 'true'}}
";
const CORNER_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: cook, namespace: corner}
spec:
  nodeSelector: {liqo.io/type: virtual-node}
  terminationGracePeriodSeconds: 0
  containers: [{name: cook, image: 'localhost/toolbox:1', command: [sleep, infinity]}]
";

#[tokio::test]
async fn a_label_offloads_a_namespace_with_the_default_name() {
    let story = story().await;
    let (rome, milan) = (story.rome(), story.milan());
    rome.apply(CORNER).await.unwrap();
    let there = async || milan.kubectl(&["get", "namespace", "corner-rome"]).await;
    within(SOON, "milan has corner-rome", there, Result::is_ok).await;
    let made = async || rome.apply(CORNER_POD).await;
    within(SOON, "a pod can be created", made, Result::is_ok).await;
    let ready = ["wait", "-n", "corner", "pod/cook", "--for=condition=Ready", "--timeout=60s"];
    rome.kubectl(&ready).await.unwrap();
    let twin = get(milan, &["pod", "-n", "corner-rome", "cook"]).await;
    assert!(twin["spec"]["nodeName"].as_str().unwrap().starts_with("milan-"), "{twin:#}");
    rome.kubectl(&["delete", "namespace", "corner"]).await.unwrap();
    let there = async || milan.kubectl(&["get", "namespace", "corner-rome"]).await;
    within(SOON, "it is deleted in milan", there, Result::is_err).await;
}
