//! Which other clusters are known: those found in the local network, those that asked for a
//! peering, those that somebody named; and when an entry goes again.

mod announcement;
mod entry;

pub use announcement::{Announcement, NotAnAnnouncement};
pub use entry::{Sighting, expires_at, incoming, is_over, kind, object_name, peered, seen, senior};

use k8s_openapi::api::core::v1::{Node, Service};

/// URL of the auth service, as its Service and the nodes say: the first node's address and the
/// node port. Virtual nodes have no such port.
pub fn auth_url(service: &Service, nodes: &[Node]) -> Option<String> {
    let port = node_port(service)?;
    let mut addresses: Vec<(&str, &str)> = nodes.iter().filter_map(internal_ip).collect();
    addresses.sort_unstable();
    let (_, address) = addresses.first()?;
    let host = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
    Some(format!("https://{host}:{port}"))
}

/// The port at which every node of the cluster reaches the Service.
pub fn node_port(service: &Service) -> Option<u16> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    ports.iter().find_map(|port| port.node_port).and_then(|port| port.try_into().ok())
}

fn internal_ip(node: &Node) -> Option<(&str, &str)> {
    use tombolo_api::names::{TYPE_LABEL, VIRTUAL_NODE};
    let labels = node.metadata.labels.as_ref();
    if labels.and_then(|labels| labels.get(TYPE_LABEL)).is_some_and(|kind| kind == VIRTUAL_NODE) {
        return None;
    }
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    Some((node.metadata.name.as_deref().unwrap_or_default(), &internal.address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, address: &str, kind: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "liqo.io/type": kind } },
            "status": { "addresses": [
                { "type": "Hostname", "address": name },
                { "type": "InternalIP", "address": address },
            ] },
        }))
        .unwrap()
    }

    #[test]
    fn the_auth_url_is_a_real_nodes_address_with_the_node_port() {
        let service: Service = serde_json::from_value(json!({
            "spec": { "ports": [{ "port": 443, "nodePort": 31200 }] }
        }))
        .unwrap();
        let nodes = [
            node("liqo-milan", "10.9.9.9", "virtual-node"),
            node("rome-2", "10.0.0.6", ""),
            node("rome-1", "10.0.0.5", ""),
        ];
        assert_eq!(auth_url(&service, &nodes).as_deref(), Some("https://10.0.0.5:31200"));
        assert_eq!(auth_url(&service, &nodes[..1]), None);
        assert_eq!(auth_url(&Service::default(), &nodes), None);
        let six = [node("a", "fd00::5", "")];
        assert_eq!(auth_url(&service, &six).as_deref(), Some("https://[fd00::5]:31200"));
    }
}
