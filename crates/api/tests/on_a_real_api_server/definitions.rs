//! The CRDs are established, structural, and served under all their names.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{Result, apply, client, cluster};

/// Group, kind, whether it is namespaced, short names.
const KINDS: [(&str, &str, bool, &[&str]); 13] = [
    ("config.liqo.io", "ClusterConfig", false, &[]),
    ("discovery.liqo.io", "ForeignCluster", false, &["fc"]),
    ("discovery.liqo.io", "ResourceRequest", true, &["rr", "peeringrequest", "peeringrequests"]),
    ("discovery.liqo.io", "SearchDomain", false, &["sd"]),
    ("net.liqo.io", "IpamStorage", false, &["ipam"]),
    ("net.liqo.io", "NatMapping", false, &["natmap"]),
    ("net.liqo.io", "NetworkConfig", true, &["nc"]),
    ("net.liqo.io", "TunnelEndpoint", true, &["te"]),
    ("offloading.liqo.io", "NamespaceOffloading", true, &["nso"]),
    ("sharing.liqo.io", "ResourceOffer", true, &["offer", "advertisement", "advertisements"]),
    ("virtualkubelet.liqo.io", "NamespaceMap", true, &["nm"]),
    ("virtualkubelet.liqo.io", "ShadowEndpointSlice", true, &["seps"]),
    ("virtualkubelet.liqo.io", "ShadowPod", true, &["sp"]),
];

#[tokio::test]
async fn every_crd_is_established_and_structural() -> Result {
    let api: Api<CustomResourceDefinition> = Api::all(client().await?);
    for crd in tombolo_api::crds() {
        let name = crd.name_any();
        let stored = api.get(&name).await?;
        let conditions: BTreeMap<String, String> = stored
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .map(|condition| (condition.type_.clone(), condition.status.clone()))
            .collect();
        let is = |kind: &str| conditions.get(kind).is_some_and(|status| status == "True");
        assert!(is("Established"), "{name}: {conditions:?}");
        assert!(is("NamesAccepted"), "{name}: {conditions:?}");
        assert!(!is("NonStructuralSchema"), "{name}: {conditions:?}");
    }
    Ok(())
}

#[tokio::test]
async fn no_crd_causes_warnings() -> Result {
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server"];
    let strictly = ["--warnings-as-errors", "-f", crds];
    cluster().await?.kubectl(&[apply.as_slice(), &strictly].concat()).await?;
    Ok(())
}

#[tokio::test]
async fn every_kind_is_served_under_all_its_names() -> Result {
    let client = client().await?;
    assert_eq!(tombolo_api::crds().len(), KINDS.len());
    for (group, kind, namespaced, short_names) in KINDS {
        let list = client.list_api_group_resources(&format!("{group}/v1alpha1")).await?;
        let resource = list
            .resources
            .iter()
            .find(|resource| resource.kind == kind && !resource.name.contains('/'))
            .ok_or_else(|| format!("{kind} is not in {group}"))?;
        assert_eq!(resource.namespaced, namespaced, "{kind}");
        assert_eq!(resource.short_names.as_deref().unwrap_or_default(), short_names);
        assert_eq!(resource.categories.as_deref(), Some(&["liqo".to_owned()][..]));
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_accepts_the_older_names() -> Result {
    let cluster = cluster().await?;
    for name in ["peeringrequest", "peeringrequests", "advertisement", "advertisements"] {
        cluster.kubectl(&["get", name, "--all-namespaces"]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_list_of_clusters_shows_the_state_of_each_peering() -> Result {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"
        })
    };
    let rome = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": "shown", "labels": { "discovery.liqo.io/discovery-type": "LAN" } },
        "spec": { "authUrl": "https://192.0.2.7:443" },
        "status": {
            "authStatus": "EmptyRefused",
            "conditions": [
                condition("OutgoingPeering", "True"),
                condition("IncomingPeering", "False"),
                condition("TunnelEndpoint", "Unknown"),
            ],
        },
    });
    apply(&client().await?, &rome).await?;
    let shown = cluster().await?.kubectl(&["get", "foreignclusters", "shown"]).await?;
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        lines.next().unwrap_or_default(),
        ["NAME", "TYPE", "OUTGOING", "INCOMING", "NETWORK", "AUTH", "AGE"]
    );
    assert_eq!(
        lines.next().unwrap_or_default()[..6],
        ["shown", "LAN", "True", "False", "Unknown", "EmptyRefused"]
    );
    Ok(())
}
