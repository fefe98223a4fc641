//! Detects the CIDRs of a cluster and the URL at which others reach its API server.

use anyhow::{Context, Result, bail};
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::{Api, Client};
use tombolo_api::{Cidr, names};

use super::is_missing;

/// A CIDR and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub cidr: Cidr,
    pub source: &'static str,
}

/// Settings of the cluster, as far as they can be read from it.
#[derive(Debug, Default)]
pub struct Facts {
    /// CIDRs of the ServiceCIDR object `kubernetes`.
    service_cidrs: Vec<String>,
    /// `ClusterConfiguration` in the ConfigMap of kubeadm.
    kubeadm: Option<String>,
    /// Arguments of kube-controller-manager, if it runs as a pod.
    controller_manager: Vec<String>,
    /// PodCIDR of each node.
    nodes: Vec<(String, Ipv4Net)>,
    /// Address of the Service `default/kubernetes`.
    api_service: Option<std::net::IpAddr>,
    /// URLs of the API servers, from their endpoints.
    api_servers: Vec<String>,
}

pub async fn facts(client: &Client) -> Result<Facts> {
    let service_cidrs: Api<ServiceCIDR> = Api::all(client.clone());
    let service_cidrs = match service_cidrs.get_opt("kubernetes").await {
        Err(error) if is_missing(&error) => None,
        other => other.context("read ServiceCIDR kubernetes")?,
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let kubeadm = config_maps.get_opt("kubeadm-config").await;
    let kubeadm = kubeadm.context("read ConfigMap kube-system/kubeadm-config")?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let manager = ListParams::default().labels("component=kube-controller-manager");
    let managers = pods.list(&manager).await.context("list the pods of kube-controller-manager")?;
    let nodes: Api<Node> = Api::all(client.clone());
    let real = format!("{}!={}", names::TYPE_LABEL, names::VIRTUAL_NODE);
    let nodes = nodes.list(&ListParams::default().labels(&real)).await.context("list the nodes")?;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = services.get_opt("kubernetes").await.context("read Service kubernetes")?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = slices.list(&of_service).await.context("list the API servers")?;
    Ok(Facts {
        service_cidrs: service_cidrs.and_then(|s| s.spec?.cidrs).unwrap_or_default(),
        kubeadm: kubeadm.and_then(|map| map.data?.remove("ClusterConfiguration")),
        controller_manager: managers.into_iter().flat_map(arguments).collect(),
        nodes: nodes
            .into_iter()
            .filter_map(|node| Some((node.metadata.name.clone()?, part(&node)?)))
            .collect(),
        api_service: service.and_then(|s| s.spec?.cluster_ip?.parse().ok()),
        api_servers: slices.into_iter().flat_map(addresses).collect(),
    })
}

/// The PodCIDR of the cluster.
pub fn pods(wanted: Option<Cidr>, facts: &Facts) -> Result<Found> {
    if let Some(cidr) = wanted {
        return Ok(Found { cidr, source: "--pod-cidr" });
    }
    if let Some(cidr) = facts.kubeadm.as_deref().and_then(|text| setting(text, "podSubnet")) {
        return Ok(Found { cidr, source: "ConfigMap kubeadm-config" });
    }
    let flag = facts.controller_manager.iter().find_map(|a| a.strip_prefix("--cluster-cidr="));
    if let Some(cidr) = flag.and_then(first_ipv4) {
        return Ok(Found { cidr, source: "--cluster-cidr of kube-controller-manager" });
    }
    let parts: Vec<Ipv4Net> = facts.nodes.iter().map(|(_, part)| *part).collect();
    let cidr = covering(&parts).context(
        "the PodCIDR of this cluster can't be detected (not in the settings of kubeadm, \
         kube-controller-manager or the nodes): set --pod-cidr",
    )?;
    Ok(Found { cidr, source: "covers the nodes' CIDRs; set --pod-cidr if it is larger" })
}

/// The ServiceCIDR of the cluster.
pub fn services(wanted: Option<Cidr>, facts: &Facts) -> Result<Found> {
    if let Some(cidr) = wanted {
        return Ok(Found { cidr, source: "--service-cidr" });
    }
    if let Some(cidr) = facts.service_cidrs.iter().find_map(|cidr| first_ipv4(cidr)) {
        return Ok(Found { cidr, source: "ServiceCIDR kubernetes" });
    }
    if let Some(cidr) = facts.kubeadm.as_deref().and_then(|text| setting(text, "serviceSubnet")) {
        return Ok(Found { cidr, source: "ConfigMap kubeadm-config" });
    }
    bail!("the ServiceCIDR of this cluster can't be detected: set --service-cidr")
}

/// Refuses CIDRs that contradict the state of the cluster.
pub fn check(pods: Cidr, services: Cidr, facts: &Facts) -> Result<()> {
    let (pod_net, service_net) = (pods.net(), services.net());
    if pod_net.contains(&service_net) || service_net.contains(&pod_net) {
        bail!("the PodCIDR {pods} and the ServiceCIDR {services} overlap");
    }
    for (node, part) in &facts.nodes {
        if !pod_net.contains(&IpNet::V4(*part)) {
            bail!(
                "node {node} has pods in {part}, outside of {pods}: --pod-cidr must contain both"
            );
        }
    }
    if let Some(address) = facts.api_service.filter(|address| !service_net.contains(address)) {
        bail!(
            "Service default/kubernetes has the address {address}, outside of {services}: set \
             --service-cidr to the value of the API server"
        );
    }
    Ok(())
}

/// The URL at which other clusters reach the API server.
pub fn api_server(wanted: Option<&str>, kubeconfig: &str, facts: &Facts) -> Result<String> {
    let valid = |url: &str| {
        url.starts_with("https://") && !url.contains(['"', '\\', ' ', '\n', '\'']) && url.len() > 8
    };
    if let Some(url) = wanted {
        if !valid(url) {
            bail!("{url:?} is not a URL such as https://192.0.2.1:6443");
        }
        return Ok(url.trim_end_matches('/').to_owned());
    }
    if valid(kubeconfig) && !is_loopback(kubeconfig) {
        return Ok(kubeconfig.to_owned());
    }
    facts.api_servers.first().cloned().with_context(|| {
        format!(
            "other clusters can't reach {kubeconfig}, and the cluster has no other address of its \
             API server: set --api-server-url"
        )
    })
}

fn is_loopback(url: &str) -> bool {
    let rest = url.trim_start_matches("https://");
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => rest.split(['/', ':']).next(),
    };
    let host = host.unwrap_or_default();
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The /16 that contains all CIDRs or, where that is too small, the smallest network that does.
fn covering(parts: &[Ipv4Net]) -> Option<Cidr> {
    let first = parts.first()?;
    let mut net = Ipv4Net::new(first.network(), first.prefix_len().min(16)).ok()?.trunc();
    while !parts.iter().all(|part| net.contains(part)) {
        net = net.supernet()?;
    }
    Cidr::try_from(IpNet::V4(net)).ok()
}

/// The value of a key in kubeadm's YAML, where the key occurs once.
fn setting(text: &str, key: &str) -> Option<Cidr> {
    let mut lines = text.lines().map(str::trim);
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    first_ipv4(value.trim().trim_matches('"'))
}

fn first_ipv4(list: &str) -> Option<Cidr> {
    let mut all = list.split(',').filter_map(|cidr| cidr.trim().parse::<Ipv4Net>().ok());
    all.find_map(|net| Cidr::try_from(IpNet::V4(net.trunc())).ok())
}

fn arguments(pod: Pod) -> Vec<String> {
    let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
    let words = |c: k8s_openapi::api::core::v1::Container| {
        c.command.into_iter().chain(c.args).flatten().collect::<Vec<_>>()
    };
    containers.into_iter().flat_map(words).collect()
}

fn part(node: &Node) -> Option<Ipv4Net> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|cidr| cidr.parse().ok()).next()
}

fn addresses(slice: EndpointSlice) -> Vec<String> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).unwrap_or(6443);
    let all = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses);
    all.map(|address| match address.contains(':') {
        true => format!("https://[{address}]:{port}"),
        false => format!("https://{address}:{port}"),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn facts() -> Facts {
        Facts {
            service_cidrs: vec!["fd00::/112".into(), "10.96.0.0/16".into()],
            nodes: vec![
                ("rome-1".into(), "10.244.0.0/24".parse().unwrap()),
                ("rome-2".into(), "10.244.1.0/24".parse().unwrap()),
            ],
            api_service: Some("10.96.0.1".parse().unwrap()),
            api_servers: vec!["https://192.0.2.1:6443".into()],
            ..Facts::default()
        }
    }

    #[test]
    fn the_most_reliable_source_of_the_pod_cidr_wins() {
        let mut facts = facts();
        assert_eq!(pods(None, &facts).unwrap().cidr, cidr("10.244.0.0/16"));
        facts.controller_manager = vec!["--cluster-cidr=10.0.0.0/9,fd00::/48".into()];
        assert_eq!(pods(None, &facts).unwrap().cidr, cidr("10.0.0.0/9"));
        facts.kubeadm = Some("networking:\n  podSubnet: \"10.32.0.0/12\"\n".into());
        assert_eq!(pods(None, &facts).unwrap().cidr, cidr("10.32.0.0/12"));
        assert_eq!(pods(Some(cidr("10.1.0.0/16")), &facts).unwrap().cidr, cidr("10.1.0.0/16"));
        let nothing = pods(None, &Facts::default()).unwrap_err().to_string();
        assert!(nothing.contains("--pod-cidr"), "{nothing}");
    }

    #[test]
    fn the_detected_pod_cidr_contains_all_nodes() {
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        assert_eq!(covering(&[net("10.244.7.0/24")]), Some(cidr("10.244.0.0/16")));
        let far = [net("10.244.7.0/24"), net("10.245.0.0/24")];
        assert_eq!(covering(&far), Some(cidr("10.244.0.0/15")));
        assert_eq!(covering(&[]), None);
    }

    #[test]
    fn the_service_cidr_is_the_ipv4_one() {
        assert_eq!(services(None, &facts()).unwrap().cidr, cidr("10.96.0.0/16"));
    }

    #[test]
    fn cidrs_that_contradict_the_cluster_are_refused() {
        let refused = |pods: &str, services: &str| {
            check(cidr(pods), cidr(services), &facts()).unwrap_err().to_string()
        };
        assert!(refused("10.0.0.0/8", "10.96.0.0/16").contains("overlap"));
        assert!(refused("10.244.0.0/24", "10.96.0.0/16").contains("rome-2"));
        assert!(refused("10.244.0.0/16", "10.97.0.0/16").contains("10.96.0.1"));
        check(cidr("10.244.0.0/16"), cidr("10.96.0.0/16"), &facts()).unwrap();
    }

    #[test]
    fn a_loopback_url_is_replaced_by_the_endpoint_of_the_api_server() {
        let facts = facts();
        for local in ["https://127.0.0.1:6443", "https://localhost:1", "https://[::1]:6443"] {
            assert_eq!(api_server(None, local, &facts).unwrap(), "https://192.0.2.1:6443");
        }
        let other = "https://api.example.com";
        assert_eq!(api_server(None, other, &facts).unwrap(), other);
        assert!(api_server(Some("rome"), other, &facts).is_err());
    }
}
