//! Reflected Services. The remote cluster assigns their addresses and node ports.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::metadata::{ReflectionRoute, reflected};

/// The reflected Service. `None` if it is not reflected.
pub fn forge(home: &Service, route: &ReflectionRoute) -> Option<Service> {
    if is_of_api_server(home.metadata.namespace.as_deref(), home.metadata.name.as_deref()) {
        return None;
    }
    Some(Service {
        metadata: reflected(&home.metadata, route),
        spec: home.spec.as_ref().map(forge_spec),
        status: None,
    })
}

/// Whether this is the Service of the home cluster's API server.
pub(super) fn is_of_api_server(namespace: Option<&str>, name: Option<&str>) -> bool {
    (namespace, name) == (Some("default"), Some("kubernetes"))
}

/// The remote cluster sets all fields that are left out: it has other addresses, other free node
/// ports, and may have other load balancers.
fn forge_spec(home: &ServiceSpec) -> ServiceSpec {
    let is_headless = home.cluster_ip.as_deref() == Some("None");
    let ports = home.ports.iter().flatten();
    let ports: Vec<_> = ports.map(|port| ServicePort { node_port: None, ..port.clone() }).collect();
    ServiceSpec {
        allocate_load_balancer_node_ports: home.allocate_load_balancer_node_ports,
        cluster_ip: is_headless.then(|| "None".into()),
        external_name: home.external_name.clone(),
        external_traffic_policy: home.external_traffic_policy.clone(),
        internal_traffic_policy: home.internal_traffic_policy.clone(),
        ports: (!ports.is_empty()).then_some(ports),
        publish_not_ready_addresses: home.publish_not_ready_addresses,
        selector: home.selector.clone(),
        session_affinity: home.session_affinity.clone(),
        session_affinity_config: home.session_affinity_config.clone(),
        traffic_distribution: home.traffic_distribution.clone(),
        type_: home.type_.clone(),
        ..ServiceSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::metadata::tests::to_milan;
    use super::*;

    fn forged(spec: &Value) -> Option<Service> {
        let home = json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": spec });
        forge(&serde_json::from_value(home).unwrap(), &to_milan())
    }

    #[test]
    fn addresses_and_node_ports_are_left_to_the_remote_cluster() {
        insta::assert_yaml_snapshot!(forged(&json!({
            "type": "LoadBalancer", "selector": { "app": "web" },
            "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "externalIPs": ["192.0.2.1"], "loadBalancerIP": "192.0.2.2",
            "loadBalancerClass": "example.com/lb", "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "healthCheckNodePort": 30001, "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
            "ports": [{
                "name": "http", "port": 80, "targetPort": "http", "nodePort": 30080,
                "protocol": "TCP", "appProtocol": "http",
            }],
        })));
    }

    #[test]
    fn headless_stays_headless() {
        let spec = json!({
            "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"],
            "selector": { "app": "db" }, "publishNotReadyAddresses": true,
        });
        insta::assert_yaml_snapshot!(forged(&spec));
    }

    #[test]
    fn external_names_are_reflected() {
        let spec = json!({ "type": "ExternalName", "externalName": "db.example.com" });
        insta::assert_yaml_snapshot!(forged(&spec));
    }

    #[test]
    fn the_service_of_the_api_server_is_not_reflected() {
        let service = |namespace: &str| {
            let meta = json!({ "name": "kubernetes", "namespace": namespace });
            forge(&serde_json::from_value(json!({ "metadata": meta })).unwrap(), &to_milan())
        };
        assert_eq!(service("default"), None);
        assert!(service("shop").is_some());
    }
}
