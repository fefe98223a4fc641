//! Settings of components under test.

use std::net::Ipv4Addr;

use tombolo_runtime::settings::Settings;

/// Settings for cluster `name`, with the id `id-of-<name>`, of a component on this machine.
pub fn settings(name: &str, api_server: Ipv4Addr) -> Settings {
    Settings {
        cluster_id: format!("id-of-{name}").parse().expect("an id"),
        cluster_name: name.parse().expect("a name"),
        api_server_url: format!("https://{api_server}:6443"),
        pod_cidr: "10.244.0.0/16".parse().expect("a network"),
        service_cidr: "10.96.0.0/16".parse().expect("a network"),
        ipam_mtls: false,
        pod_name: "test".into(),
        pod_ip: Ipv4Addr::LOCALHOST.into(),
        node_name: String::new(),
        host_ip: Ipv4Addr::LOCALHOST.into(),
    }
}
