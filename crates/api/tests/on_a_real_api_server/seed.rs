//! Every manifest and command in the design documents works: `tests/seed/` has the manifests, with
//! scanning errors corrected.

use std::collections::BTreeSet;

use crate::cluster::{Result, apply, client, cluster, define_one, manifests, namespace};

#[tokio::test]
async fn every_documented_manifest_applies() -> Result {
    let client = client().await?;
    let manifests = manifests("tests/seed")?;
    let namespaces: BTreeSet<&str> = manifests
        .iter()
        .flat_map(|(_, documents)| documents)
        .filter_map(|object| object["metadata"]["namespace"].as_str())
        .chain(["default"])
        .collect();
    for name in namespaces {
        namespace(&client, name).await?;
    }
    let mut failures = Vec::new();
    for (file, documents) in &manifests {
        for object in documents {
            let applied = match object["kind"].as_str() {
                Some("CustomResourceDefinition") => define_one(&client, object).await,
                _ => apply(&client, object).await,
            };
            failures.extend(applied.err().map(|error| format!("{file}: {error}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[tokio::test]
async fn the_documented_token_commands_work() -> Result {
    let client = client().await?;
    let cluster = cluster().await?;
    namespace(&client, "liqo").await?;
    let secret = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "auth-token", "namespace": "liqo" },
        "stringData": { "token": "4f8a1c0de2b7" },
    });
    apply(&client, &secret).await?;
    let path = "jsonpath={.data.token}";
    let token = cluster.kubectl(&["get", "secret", "-n", "liqo", "auth-token", "-o", path]).await?;
    assert_eq!(token, "NGY4YTFjMGRlMmI3");

    let name = "token-as-printed";
    let literal = "--from-literal=token=4f8a1c0de2b7";
    cluster.kubectl(&["create", "secret", "generic", name, "-n", "liqo", literal]).await?;
    let id = "discovery.liqo.io/cluster-id=9f0f1f3e-9f2c-4b6a-8d7e-0c4a7b0f2c11";
    let label = "discovery.liqo.io/auth-token=";
    cluster.kubectl(&["label", "secret", name, "-n", "liqo", id, label]).await?;
    let selector = format!("{id},{}", tombolo_api::names::AUTH_TOKEN_LABEL);
    let found =
        cluster.kubectl(&["get", "secret", "-n", "liqo", "-l", &selector, "-o", "name"]).await?;
    assert!(found.contains(name), "{found}");
    Ok(())
}
