//! The URL at which other clusters reach this one's auth service: a configured one, that of a load
//! balancer, or the node port on any node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::{
    api::core::v1::{Node, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tombolo_api::names::{AUTH_SERVICE, AUTH_URL_ANNOTATION, NAMESPACE};

use super::address;

/// How the auth service is exposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// At this URL.
    At(String),
    /// At this port of every node.
    NodePort(i32),
}

/// The auth service is not exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexposed {
    /// There is neither a URL nor a port.
    #[error(
        "the Service {NAMESPACE}/{AUTH_SERVICE} has neither a node port nor a load balancer: set the \
         URL at which other clusters reach it with `tombolo install --auth-url`"
    )]
    NoPort,
    /// There is no node with an address.
    #[error("no node has an InternalIP address")]
    NoNode,
}

impl Exposure {
    /// Reads the Service. A load balancer is used once it has an address.
    pub fn of(service: &Service) -> Result<Self, Unexposed> {
        let annotations = service.metadata.annotations.as_ref();
        if let Some(url) = annotations.and_then(|all| all.get(AUTH_URL_ANNOTATION)) {
            return Ok(Self::At(url.clone()));
        }
        let spec = service.spec.as_ref().ok_or(Unexposed::NoPort)?;
        let port = spec.ports.as_ref().and_then(|all| all.first()).ok_or(Unexposed::NoPort)?;
        let balanced = spec.type_.as_deref() == Some("LoadBalancer");
        if let Some(host) = balancer(service).filter(|_| balanced) {
            return Ok(Self::At(url(host, port.port)));
        }
        port.node_port.map(Self::NodePort).ok_or(Unexposed::NoPort)
    }

    /// The URL, with the address of a node in the case of a node port.
    pub fn url(self, nodes: &[Node]) -> Result<String, Unexposed> {
        match self {
            Self::At(url) => Ok(url),
            Self::NodePort(port) => Ok(url(address(nodes).ok_or(Unexposed::NoNode)?, port)),
        }
    }
}

fn balancer(service: &Service) -> Option<&str> {
    let status = service.status.as_ref()?.load_balancer.as_ref()?;
    let known = |text: &&String| !text.is_empty();
    status.ingress.as_ref()?.iter().find_map(|ingress| {
        let address = ingress.ip.as_ref().filter(known);
        address.or(ingress.hostname.as_ref().filter(known)).map(String::as_str)
    })
}

fn url(host: &str, port: i32) -> String {
    if host.parse::<Ipv6Addr>().is_ok() {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    }
}

/// The host name in the advertised URL, if it is a name.
pub fn advertised_host(service: &ObjectMeta) -> Option<&str> {
    let url = service.annotations.as_ref()?.get(AUTH_URL_ANNOTATION)?;
    let host = url.strip_prefix("https://")?.split(['/', ':']).next()?;
    is_host_name(host).then_some(host)
}

/// Checks the URL of an auth service before it is advertised; returns it, or what is wrong with it.
pub fn checked_url(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix("https://").ok_or("it does not start with https://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    if !path.chars().all(is_plain) || text.len() > 1024 {
        return Err("it has more than a host, a port and a plain path");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("a bracket is missing")?;
            address.parse::<Ipv6Addr>().map_err(|_| "there is no IPv6 address in the brackets")?;
            (address, port.strip_prefix(':').or(port.is_empty().then_some("443")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("443")),
        },
    };
    let numeric = host.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !authority.starts_with('[') && numeric {
        host.parse::<Ipv4Addr>().map_err(|_| "its host is not a valid IPv4 address")?;
    } else if !authority.starts_with('[') && !is_host_name(host) {
        return Err("its host is not a valid host name");
    }
    let port = port.and_then(|port| port.parse::<u16>().ok());
    port.filter(|port| *port > 0).ok_or("its port is not between 1 and 65535")?;
    let useless = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    if host == "localhost" || host.parse().is_ok_and(useless) {
        return Err("its host is a loopback or unspecified address");
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Whether this is a host name, not an address.
pub fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label) && text.parse::<Ipv4Addr>().is_err()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(kind: &str, node_port: &Value, annotations: &Value, ingress: &Value) -> Service {
        serde_json::from_value(json!({
            "metadata": { "annotations": annotations },
            "spec": { "type": kind, "ports": [{ "port": 443, "nodePort": node_port }] },
            "status": { "loadBalancer": { "ingress": ingress } },
        }))
        .unwrap()
    }

    fn advertised(service: &Service) -> Result<String, Unexposed> {
        let node = json!({
            "metadata": { "name": "rome-1" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.5" }] },
        });
        Exposure::of(service)?.url(&[serde_json::from_value(node).unwrap()])
    }

    #[test]
    fn a_configured_url_comes_first_then_a_load_balancer_then_the_node_port() {
        let (none, at) = (json!({}), json!({ AUTH_URL_ANNOTATION: "https://auth.example.com" }));
        let balancer = json!([{ "ip": "192.0.2.1" }]);
        for (kind, port, annotations, ingress, expected) in [
            ("NodePort", json!(31200), &none, json!([]), "https://10.0.0.5:31200"),
            ("NodePort", json!(31200), &at, json!([]), "https://auth.example.com"),
            ("LoadBalancer", json!(31200), &none, json!([]), "https://10.0.0.5:31200"),
            ("LoadBalancer", json!(31200), &none, balancer.clone(), "https://192.0.2.1:443"),
            ("LoadBalancer", Value::Null, &none, balancer.clone(), "https://192.0.2.1:443"),
            ("LoadBalancer", json!(31200), &at, balancer.clone(), "https://auth.example.com"),
            ("NodePort", json!(31200), &none, balancer.clone(), "https://10.0.0.5:31200"),
            ("ClusterIP", Value::Null, &at, json!([]), "https://auth.example.com"),
        ] {
            let service = service(kind, &port, annotations, &ingress);
            assert_eq!(advertised(&service).as_deref(), Ok(expected), "{service:?}");
        }
        for (ingress, expected) in [
            (json!([{ "hostname": "lb.example.com" }]), "https://lb.example.com:443"),
            (json!([{ "ip": "2001:db8::1" }]), "https://[2001:db8::1]:443"),
            (json!([{ "ip": "" }, { "ip": "192.0.2.2" }]), "https://192.0.2.2:443"),
        ] {
            let service = service("LoadBalancer", &json!(31200), &none, &ingress);
            assert_eq!(advertised(&service).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn only_a_host_name_is_an_advertised_host() {
        for (url, host) in [
            ("https://auth.example.com", Some("auth.example.com")),
            ("https://auth.example.com:8443/rome", Some("auth.example.com")),
            ("https://192.0.2.1:443", None),
            ("https://[2001:db8::1]:443", None),
            ("auth.example.com", None),
        ] {
            let at = json!({ AUTH_URL_ANNOTATION: url });
            let service = service("ClusterIP", &Value::Null, &at, &json!([]));
            assert_eq!(advertised_host(&service.metadata), host, "{url}");
        }
        assert_eq!(advertised_host(&ObjectMeta::default()), None);
    }

    #[test]
    fn a_service_that_is_not_exposed_is_an_error() {
        let service = service("ClusterIP", &Value::Null, &json!({}), &json!([]));
        assert_eq!(advertised(&service), Err(Unexposed::NoPort));
        assert_eq!(Exposure::of(&Service::default()), Err(Unexposed::NoPort));
        assert_eq!(Exposure::NodePort(31200).url(&[]), Err(Unexposed::NoNode));
    }

    #[test]
    fn only_a_url_that_others_can_use_is_accepted() {
        for good in [
            "https://auth.example.com",
            "https://auth.example.com:8443",
            "https://192.0.2.1:31200/liqo",
            "https://[2001:db8::1]",
            "https://[2001:db8::1]:443",
        ] {
            assert_eq!(checked_url(good).as_deref(), Ok(good));
        }
        assert_eq!(checked_url("https://rome/").as_deref(), Ok("https://rome"));
        for bad in [
            "",
            "rome",
            "http://rome",
            "https://",
            "https:///info",
            "https://rome:0",
            "https://rome:65536",
            "https://rome:x",
            "https://user@rome",
            "https://rome?x=1",
            "https://rome/?x",
            "https://rome/#x",
            "https://rome/\"",
            "https://ro me",
            "https://rome\n",
            "https://-rome",
            "https://1.2.3",
            "https://300.1.1.1",
            "https://[::1",
            "https://[rome]",
            "https://[2001:db8::1]443",
            "https://127.0.0.1:31200",
            "https://localhost",
            "https://[::1]:443",
            "https://0.0.0.0",
        ] {
            assert!(checked_url(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_host_name_is_no_address_or_url() {
        assert!(is_host_name("auth.example.com") && is_host_name("rome"));
        for bad in ["", "192.0.2.1", "https://rome", "rome:443", "a..b", "*.rome", "Rome", "a/b"] {
            assert!(!is_host_name(bad), "{bad:?}");
        }
    }
}
