//! Errors explain the cause, and failed commands leave nothing behind.

use crate::common::{list, name, refused};
use crate::story::story;

#[tokio::test]
async fn a_wrong_auth_url_is_reported_and_rolled_back() {
    let story = story().await;
    let rome = story.rome();
    let url = format!("https://{}:1", story.milan().node(1).address());
    let said = refused(rome, &["peer", &url, "--timeout", "3"]).await;
    for part in [url.as_str(), "Authenticated", "Check that"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let clusters = list(rome, &["foreignclusters"]).await;
    let urls: Vec<&str> = clusters.iter().filter_map(|c| c["spec"]["authUrl"].as_str()).collect();
    assert!(!urls.contains(&url.as_str()), "{urls:?}");
}

#[tokio::test]
async fn an_unknown_cluster_is_refused_with_the_known_ones() {
    let story = story().await;
    let said = refused(story.rome(), &["peer", "turin"]).await;
    assert!(said.contains("there is no cluster \"turin\"; known clusters: milan"), "{said}");
}

#[tokio::test]
async fn a_missing_namespace_is_not_offloaded() {
    let story = story().await;
    let said = refused(story.rome(), &["offload", "namespace", "shopp"]).await;
    assert!(said.contains("there is no namespace shopp"), "{said}");
    let all = list(story.rome(), &["namespaceoffloadings", "-A"]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    let namespaces = list(story.milan(), &["namespaces"]).await;
    assert!(!namespaces.iter().any(|namespace| name(namespace).starts_with("shopp")));
}

#[tokio::test]
async fn an_unreachable_api_server_is_reported() {
    let story = story().await;
    let text = std::fs::read_to_string(story.rome().kubeconfig()).unwrap();
    let address = format!("{}:6443", story.rome().node(1).address());
    let wrong = format!("{}:6444", story.rome().node(1).address());
    assert!(text.contains(&address), "{address}");
    let path = std::env::temp_dir().join(format!("tombolo-wrong-{}.conf", std::process::id()));
    std::fs::write(&path, text.replace(&address, &wrong)).unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_tombolo"))
        .args(["install", "--kubeconfig"])
        .arg(&path)
        .output()
        .await
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for part in [wrong.as_str(), "refused", "is the cluster running"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[tokio::test]
async fn a_wrong_pod_cidr_is_refused() {
    let story = story().await;
    let said = refused(story.rome(), &["install", "--pod-cidr", "10.9.0.0/16"]).await;
    assert!(said.contains("rome-1 has pods in 10.244."), "{said}");
}

#[tokio::test]
async fn a_cluster_in_use_is_not_uninstalled() {
    let story = story().await;
    let said = refused(story.rome(), &["uninstall"]).await;
    for part in ["shop", "milan", "--purge"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let said = refused(story.milan(), &["uninstall"]).await;
    assert!(said.contains("rome"), "{said}");
}
