//! A cluster that requires a token.

use serde_json::{Value, json};
use tombolo_testbed::{Cluster, Testbed};

use crate::common::look::Look;
use crate::common::{SOON, condition, get, list, name, refused, tombolo, within};
use crate::id;

const WRONG: &str = "neither-this-one-nor-that-one";

/// Rome gets an identity from milan's auth service only with milan's token.
pub async fn only_the_right_token_is_accepted(bed: &Testbed, url: &str) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    let said = refused(rome, &["peer", url, "--timeout", "20"]).await;
    assert!(said.contains(&format!("`tombolo peer {url} --token-file FILE`")), "{said}");
    let tenants = async || list(rome, &["namespaces", "-l", "liqo.io/tenant=true"]).await.len();
    within(SOON, "nothing of it is left", tenants, |count| *count == 0).await;

    let before = [Look::at_objects(rome).await, Look::at_objects(milan).await];
    let file = std::env::temp_dir().join(format!("tombolo-token-{}", std::process::id()));
    std::fs::write(&file, WRONG).unwrap();
    let path = file.display().to_string();
    let said = refused(rome, &["peer", url, "--token-file", &path, "--timeout", "20"]).await;
    std::fs::remove_file(&file).unwrap();
    for part in [url, "does not take the token that was given", "liqo/auth-token"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(!said.contains(WRONG), "{said}");
    for (cluster, before) in [rome, milan].into_iter().zip(&before) {
        let left = async || before.differences(&Look::at_objects(cluster).await);
        let what = format!("nothing is left behind in {}", cluster.name());
        within(SOON, &what, left, Vec::is_empty).await;
    }

    // The same with objects only: a wrong token, then the right one.
    rome.apply(&secret(&id(milan).await, WRONG)).await.unwrap();
    rome.apply(&foreign_cluster(url)).await.unwrap();
    let entry = async || get(rome, &["foreigncluster", "by-hand"]).await;
    let reason = |entry: &Value| authenticated(entry)["reason"] == "WrongToken";
    within(SOON, "the token is rejected", entry, reason).await;
    let tried = format!("POST {url}/identity");
    is_explained(&tried, &authenticated(&entry().await)["message"].to_string());
    let events = async || {
        let events = list(rome, &["events", "-A"]).await;
        let about = |event: &&Value| {
            event["involvedObject"]["name"] == "by-hand" && event["reason"] == "WrongToken"
        };
        events.iter().find(about).map(|event| event["message"].to_string())
    };
    within(SOON, "there is an event", events, Option::is_some).await;
    is_explained(&tried, &events().await.unwrap());
    is_explained(&tried, &tombolo(rome, &["status"]).await);

    let lives = lives(rome).await;
    rome.apply(&secret(&id(milan).await, &of(milan).await)).await.unwrap();
    within(SOON, "an identity", entry, |entry| condition(entry, "Authenticated") == "True").await;
    assert_eq!(entry().await["spec"]["clusterIdentity"]["clusterName"], "milan");
    assert_eq!(self::lives(rome).await, lives, "no pod was restarted");
}

/// The message has the attempt, the result and advice.
fn is_explained(tried: &str, message: &str) {
    for part in
        [tried, "401", "the token is not the one in", "liqo/auth-token", "put it in a Secret"]
    {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
}

fn authenticated(entry: &Value) -> Value {
    let all = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|said| said["type"] == "Authenticated").unwrap_or_default()
}

/// The pods of Tombolo and their restarts.
async fn lives(cluster: &Cluster) -> Vec<String> {
    let pods = list(cluster, &["pods", "-n", "liqo"]).await;
    let life = |pod: &Value| {
        format!("{} {}", name(pod), pod["status"]["containerStatuses"][0]["restartCount"])
    };
    pods.iter().map(life).collect()
}

/// No log, event or ForeignCluster contains a token.
pub async fn never_leak(bed: &Testbed) {
    let mut tokens = vec![WRONG.to_owned()];
    let mut texts = Vec::new();
    for cluster in bed.clusters() {
        for namespace in ["liqo", "liqo-auth"] {
            let template = "go-template={{range .items}}{{with .data.token}}\
                            {{. | base64decode}}{{\"\\n\"}}{{end}}{{end}}";
            let secrets = ["get", "secrets", "-n", namespace, "-o", template];
            let said = cluster.kubectl(&secrets).await.unwrap();
            tokens.extend(said.lines().map(str::to_owned));
        }
        let events = ["get", "events,foreignclusters", "-A", "-o", "json"];
        texts.push(cluster.kubectl(&events).await.unwrap());
        for pod in list(cluster, &["pods", "-n", "liqo"]).await {
            texts.push(cluster.kubectl(&["logs", "-n", "liqo", name(&pod)]).await.unwrap());
        }
    }
    assert!(tokens.len() >= 5, "two clusters' own, and those that each has for the other");
    for (number, token) in tokens.iter().enumerate() {
        let read = texts.iter().any(|text| text.contains(token));
        assert!(!read, "token {number} of {} can be read", tokens.len());
    }
}

/// The token that a cluster requires.
pub async fn of(cluster: &Cluster) -> String {
    let path = "go-template={{.data.token | base64decode}}";
    let read =
        async || cluster.kubectl(&["get", "secret", "-n", "liqo", "auth-token", "-o", path]).await;
    within(SOON, "there is a token", read, Result::is_ok).await;
    read().await.unwrap()
}

/// The Secret with the token for the cluster with this id.
pub fn secret(id: &str, token: &str) -> String {
    let secret: Value = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "token-of-the-other",
            "namespace": "liqo",
            "labels": {"discovery.liqo.io/auth-token": "", "discovery.liqo.io/cluster-id": id},
        },
        "stringData": {"token": token},
    });
    secret.to_string()
}

fn foreign_cluster(url: &str) -> String {
    let cluster: Value = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": {"name": "by-hand"},
        "spec": {"authUrl": url},
    });
    cluster.to_string()
}
