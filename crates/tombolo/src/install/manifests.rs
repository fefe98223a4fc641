//! The manifests, to apply or to print.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use kube::api::DynamicObject;
use minijinja::{AutoEscape, Environment, context};
use tombolo_api::{Cidr, ClusterId, ClusterName};

use super::exposure::Exposure;

/// The parameters of the manifests.
#[derive(Debug, Clone)]
pub struct Values {
    pub image: String,
    pub cluster_name: ClusterName,
    pub cluster_id: ClusterId,
    pub api_server_url: String,
    pub pod_cidr: Cidr,
    pub service_cidr: Cidr,
    /// Whether the address service and its clients authenticate each other by certificates (mTLS).
    pub ipam_mtls: bool,
    /// Exposure of the auth service.
    pub exposure: Exposure,
    /// `auth.emptyToken` of the ClusterConfig; None leaves it unchanged.
    pub empty_token: Option<bool>,
}

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../manifests/", $name)))),*]
    };
}

const COMMON: &str = "common.yaml";
const BASE: &str = "base.yaml";

/// `control` issues the certificate for the host in `auth.yaml`.
const TEMPLATES: [(&str, &str); 11] = files![
    "common.yaml",
    "base.yaml",
    "roles.yaml",
    "auth.yaml",
    "control.yaml",
    "discovery.yaml",
    "kubelet.yaml",
    "gateway.yaml",
    "agent.yaml",
    "webhook.yaml",
    "policy.yaml"
];

/// All objects, in the order of creation.
pub fn objects(values: &Values) -> Result<Vec<DynamicObject>> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    for (name, source) in TEMPLATES {
        environment.add_template(name, source).with_context(|| format!("read {name}"))?;
    }
    let mut all = render(&environment, BASE, values)?;
    all.extend(definitions()?);
    all.extend(cluster_config(values)?);
    for (name, _) in TEMPLATES {
        if name != COMMON && name != BASE {
            all.extend(render(&environment, name, values)?);
        }
    }
    Ok(all)
}

/// All objects as one text for `kubectl apply --server-side -f -`.
pub fn print(values: &Values) -> Result<String> {
    let mut text = String::new();
    for object in objects(values)? {
        let yaml = serde_saphyr::to_string(&object).context("write a manifest")?;
        write!(text, "---\n{yaml}").context("write a manifest")?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

fn render(
    environment: &Environment<'_>,
    name: &str,
    values: &Values,
) -> Result<Vec<DynamicObject>> {
    let settings = format!(
        "{} {} {} {} {} {}",
        values.cluster_name,
        values.cluster_id,
        values.api_server_url,
        values.pod_cidr,
        values.service_cidr,
        values.ipam_mtls
    );
    let rendered = environment.get_template(name).and_then(|template| {
        template.render(context! {
            image => values.image.as_str(),
            cluster_id => values.cluster_id.as_str(),
            cluster_name => values.cluster_name.as_str(),
            api_server_url => values.api_server_url.as_str(),
            pod_cidr => values.pod_cidr.to_string(),
            service_cidr => values.service_cidr.to_string(),
            ipam_mtls => values.ipam_mtls.to_string(),
            auth_service_type => values.exposure.service_type.as_str(),
            auth_ingress => values.exposure.ingress.clone(),
            auth_url => values.exposure.advertised_url(),
            settings,
        })
    });
    let text = rendered.with_context(|| format!("render {name}"))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("parse {name} after rendering"))
}

fn definitions() -> Result<Vec<DynamicObject>> {
    let all = tombolo_api::crds().into_iter().map(|mut crd| {
        let labels = crd.metadata.labels.get_or_insert_default();
        labels.insert("app.kubernetes.io/part-of".into(), "liqo".into());
        serde_json::from_value(serde_json::to_value(crd)?)
    });
    all.collect::<Result<_, _>>().context("serialize the CRDs")
}

fn cluster_config(values: &Values) -> Result<Option<DynamicObject>> {
    let object = values.empty_token.map(|empty_token| {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "config.liqo.io/v1alpha1",
            "kind": "ClusterConfig",
            "metadata": {
                "name": "cluster",
                "labels": {"app.kubernetes.io/part-of": "liqo"},
            },
            "spec": {"auth": {"emptyToken": empty_token}},
        }))
    });
    object.transpose().context("write the ClusterConfig")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values {
            image: "localhost/tombolo:dev".into(),
            cluster_name: "rome".parse().unwrap(),
            cluster_id: "rome-id".parse().unwrap(),
            api_server_url: "https://192.0.2.1:6443".into(),
            pod_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            ipam_mtls: false,
            exposure: Exposure::default(),
            empty_token: Some(true),
        }
    }

    fn workloads() -> Vec<DynamicObject> {
        let all = objects(&values()).unwrap().into_iter();
        all.filter(|o| ["Deployment", "DaemonSet"].contains(&kind(o))).collect()
    }

    fn kind(object: &DynamicObject) -> &str {
        object.types.as_ref().map_or("", |types| types.kind.as_str())
    }

    #[test]
    fn every_object_has_a_name_and_our_label() {
        for object in objects(&values()).unwrap() {
            let labels = object.metadata.labels.clone().unwrap_or_default();
            assert_eq!(labels.get("app.kubernetes.io/part-of").unwrap(), "liqo", "{object:?}");
            assert!(object.metadata.name.is_some(), "{object:?}");
        }
    }

    #[test]
    fn the_printed_manifests_are_the_applied_ones() {
        let text = print(&values()).unwrap();
        let read: Vec<DynamicObject> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(
            serde_json::to_value(read).unwrap(),
            serde_json::to_value(objects(&values()).unwrap()).unwrap()
        );
    }

    #[test]
    fn only_gateway_and_agent_are_privileged() {
        for workload in workloads() {
            let name = workload.metadata.name.as_deref().unwrap();
            let pod = &workload.data["spec"]["template"]["spec"];
            let container = &pod["containers"][0]["securityContext"];
            if ["liqo-gateway", "liqo-agent"].contains(&name) {
                assert_eq!(container["privileged"], true, "{name}");
                continue;
            }
            assert_eq!(container["privileged"], serde_json::Value::Null, "{name}");
            assert_eq!(container["capabilities"]["drop"][0], "ALL", "{name}");
            assert_eq!(container["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        }
    }

    #[test]
    fn prometheus_finds_every_component() {
        for workload in workloads() {
            let pod = &workload.data["spec"]["template"];
            let annotations = &pod["metadata"]["annotations"];
            assert_eq!(annotations["prometheus.io/scrape"], "true", "{annotations}");
            let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
            let health = ports.iter().find(|port| port["name"] == "health").unwrap();
            assert_eq!(annotations["prometheus.io/port"], health["containerPort"].to_string());
            assert!(annotations["liqo.io/settings"].as_str().unwrap().starts_with("rome rome-id"));
        }
    }

    #[test]
    fn no_component_is_scheduled_to_a_virtual_node() {
        let all = workloads();
        assert_eq!(all.len(), 6);
        for workload in all {
            let affinity = workload.data["spec"]["template"]["spec"]["affinity"].to_string();
            assert!(affinity.contains("virtual-node"), "{affinity}");
        }
    }

    #[test]
    fn only_pods_of_the_cluster_reach_the_address_service() {
        let all = objects(&values()).unwrap();
        let policy = all.iter().find(|o| kind(o) == "NetworkPolicy").unwrap();
        let rules = policy.data["spec"]["ingress"].as_array().unwrap();
        let from = |port: u16| {
            let has = |rule: &&serde_json::Value| {
                rule["ports"].as_array().unwrap().iter().any(|it| it["port"] == port)
            };
            let found: Vec<_> = rules.iter().filter(has).map(|rule| rule["from"].clone()).collect();
            assert_eq!(found.len(), 1, "{port}: {found:?}");
            found[0].clone()
        };
        assert_eq!(from(6000), serde_json::json!([{"namespaceSelector": {}}]));
        assert_eq!(from(9443), serde_json::Value::Null, "the API server may be anywhere");
        assert_eq!(
            from(8080),
            serde_json::Value::Null,
            "probes come from the node, not from a pod"
        );
    }

    #[test]
    fn the_ca_bundle_of_the_webhook_is_left_to_the_controllers() {
        let all = objects(&values()).unwrap();
        let webhook = all.iter().find(|o| kind(o) == "MutatingWebhookConfiguration").unwrap();
        let client = &webhook.data["webhooks"][0]["clientConfig"];
        assert!(client.get("caBundle").is_none(), "{client}");
    }
}
