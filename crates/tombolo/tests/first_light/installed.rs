//! Step 1: the installation.

use crate::common::{get, list, name, tombolo};
use crate::story::story;

const COMPONENTS: [&str; 6] =
    ["liqo-agent", "liqo-auth", "liqo-control", "liqo-discovery", "liqo-gateway", "liqo-kubelet"];

#[tokio::test]
async fn all_components_run_and_only_gateway_and_agent_are_privileged() {
    let story = story().await;
    for cluster in story.bed.clusters() {
        let pods = list(cluster, &["pods", "-n", "liqo"]).await;
        for component in COMPONENTS {
            let label = "app.kubernetes.io/name";
            let mut own =
                pods.iter().filter(|p| p["metadata"]["labels"][label] == component).peekable();
            assert!(own.peek().is_some(), "{component} has no pods in {}", cluster.name());
            for pod in own {
                assert_eq!(pod["status"]["phase"], "Running", "{}", name(pod));
                assert_eq!(pod["spec"]["containers"][0]["image"], "localhost/tombolo:dev");
                let privileged = &pod["spec"]["containers"][0]["securityContext"]["privileged"];
                let may = ["liqo-agent", "liqo-gateway"].contains(&component);
                assert_eq!(privileged.as_bool().unwrap_or(false), may, "{}", name(pod));
            }
        }
    }
}

#[tokio::test]
async fn installing_again_changes_nothing() {
    let story = story().await;
    let rome = story.rome();
    let versions = async || {
        let kinds = "deployments,daemonsets,services,configmaps,serviceaccounts,roles,rolebindings,\
                     networkpolicies";
        let mut all = list(rome, &[kinds, "-n", "liqo"]).await;
        all.extend(
            list(
                rome,
                &[
                    "clusterroles,crd,validatingadmissionpolicies,mutatingwebhookconfigurations",
                    "-l",
                    "app.kubernetes.io/part-of=liqo",
                ],
            )
            .await,
        );
        let version = |object: &serde_json::Value| {
            // The status has its own life.
            let generation = &object["metadata"]["generation"];
            let spec = [&object["spec"], &object["data"], &object["rules"], &object["webhooks"]];
            format!("{} {} {generation} {spec:?}", object["kind"], name(object))
        };
        all.iter().map(version).collect::<Vec<_>>()
    };
    let before = versions().await;
    tombolo(rome, &["install"]).await;
    assert_eq!(before, versions().await);
    let settings = get(rome, &["configmap", "-n", "liqo", "liqo-cluster"]).await;
    assert_eq!(settings["data"]["IPAM_MTLS"], "true", "the setting stays");
    let config = get(rome, &["clusterconfig", "cluster"]).await;
    assert_eq!(config["spec"]["auth"]["emptyToken"], true, "the setting stays");
}

#[tokio::test]
async fn only_pods_of_the_cluster_reach_the_address_service() {
    let story = story().await;
    for cluster in story.bed.clusters() {
        let policy = get(cluster, &["networkpolicy", "-n", "liqo", "liqo-control"]).await;
        let rules = policy["spec"]["ingress"].as_array().unwrap();
        let addresses = rules.iter().find(|rule| rule["ports"][0]["port"] == 6000).unwrap();
        assert_eq!(addresses["from"], serde_json::json!([{ "namespaceSelector": {} }]));
    }
}

#[tokio::test]
async fn the_printed_manifests_are_the_applied_ones() {
    let story = story().await;
    let rome = story.rome();
    let printed = tombolo(rome, &["install", "--print", "--empty-token"]).await;
    let file = std::env::temp_dir().join(format!("tombolo-print-{}.yaml", std::process::id()));
    std::fs::write(&file, printed).unwrap();
    let path = file.display().to_string();
    let diff =
        ["diff", "--server-side", "--field-manager=tombolo", "--force-conflicts", "-f", &path];
    let said = rome.kubectl(&diff).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(said.expect("kubectl finds no difference"), "");
}

#[tokio::test]
async fn the_virtual_kubelet_is_restricted_to_virtual_nodes() {
    let story = story().await;
    let rome = story.rome();
    let virtual_kubelet = "--as=system:serviceaccount:liqo:liqo-kubelet";
    let label = ["label", "node", "rome-1", "a=b", virtual_kubelet];
    let said = rome.kubectl(&label).await.unwrap_err().to_string();
    assert!(said.contains("may only touch virtual nodes"), "{said}");
    let pods = story.pods().await;
    let local = pods.iter().find(|pod| pod["spec"]["nodeName"] != "liqo-milan").map(name).unwrap();
    let delete = ["delete", "pod", "-n", "shop", local, virtual_kubelet];
    let said = rome.kubectl(&delete).await.unwrap_err().to_string();
    assert!(said.contains("may only touch pods on virtual nodes"), "{said}");
    let said = rome.kubectl(&["get", "secrets", "-A", virtual_kubelet]).await;
    assert!(said.is_err(), "it reads Secrets only in offloaded namespaces");
}
