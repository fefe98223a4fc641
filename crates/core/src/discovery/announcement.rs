//! The mDNS announcement of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName, Fingerprint, config::DiscoveryConfig,
    names::FINGERPRINT_ANNOTATION,
};

use super::reachable::{best_address, is_usable};

/// A cluster's announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Id and name of the cluster.
    pub cluster: ClusterIdentity,
    /// Addresses of its auth service.
    pub addresses: BTreeSet<IpAddr>,
    /// Port of its auth service.
    pub port: u16,
    /// Fingerprint of the auth service's certificate.
    pub fingerprint: Option<Fingerprint>,
    /// Group of clusters that it belongs to.
    pub group: Option<String>,
    /// Validity in seconds.
    pub ttl: u32,
}

/// An invalid announcement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the announcement of {instance:?} has no valid {what}")]
pub struct NotAnAnnouncement {
    instance: String,
    what: &'static str,
}

impl Announcement {
    /// The announcement of this cluster: the node port of its auth service at these addresses,
    /// restricted to the address families of the Service. `None` without a port, an address or a
    /// certificate, or if `advertise` is off.
    pub fn of(
        cluster: ClusterIdentity,
        addresses: impl IntoIterator<Item = IpAddr>,
        service: &Service,
        config: &DiscoveryConfig,
    ) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let ports = spec.ports.as_ref()?;
        let port = ports.iter().find_map(|port| port.node_port)?;
        let annotations = service.metadata.annotations.as_ref()?;
        let is_served = |address: &IpAddr| {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            spec.ip_families.as_ref().is_none_or(|all| all.iter().any(|it| it == family))
        };
        let addresses: BTreeSet<IpAddr> = addresses.into_iter().filter(is_served).collect();
        let announcement = Self {
            cluster,
            addresses,
            port: port.try_into().ok()?,
            fingerprint: Some(annotations.get(FINGERPRINT_ANNOTATION)?.parse().ok()?),
            group: config.group.clone(),
            ttl: config.ttl_seconds,
        };
        (config.advertise && !announcement.addresses.is_empty()).then_some(announcement)
    }

    /// The properties of the TXT record.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut properties = vec![
            (VERSION, CURRENT.to_owned()),
            (NAME, self.cluster.cluster_name.to_string()),
            (TTL, self.ttl.to_string()),
        ];
        properties.extend(self.fingerprint.map(|print| (FINGERPRINT, print.to_string())));
        properties.extend(self.group.clone().map(|group| (GROUP, group)));
        properties
    }

    /// Parses a received announcement. Unknown properties are ignored; another version is rejected,
    /// because it may mean something else.
    pub fn read(
        full_name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
        port: u16,
        properties: &BTreeMap<String, String>,
    ) -> Result<Self, NotAnAnnouncement> {
        let instance = full_name.split('.').next().unwrap_or_default();
        let invalid = |what| NotAnAnnouncement { instance: instance.to_owned(), what };
        if properties.get(VERSION).is_some_and(|version| version != CURRENT) {
            return Err(invalid("version (1)"));
        }
        let cluster_id: ClusterId = instance.parse().map_err(|_| invalid("cluster id"))?;
        let name = properties.get(NAME).ok_or_else(|| invalid(NAME))?;
        let cluster_name: ClusterName = name.parse().map_err(|_| invalid(NAME))?;
        let fingerprint = match properties.get(FINGERPRINT) {
            Some(text) => Some(text.parse().map_err(|_| invalid(FINGERPRINT))?),
            None => None,
        };
        let addresses: BTreeSet<IpAddr> =
            addresses.into_iter().map(|it| it.to_canonical()).filter(|it| is_usable(*it)).collect();
        if addresses.is_empty() {
            return Err(invalid("address"));
        }
        let ttl = properties.get(TTL).map_or(Ok(DEFAULT_TTL), |text| text.parse());
        Ok(Self {
            cluster: ClusterIdentity { cluster_id, cluster_name },
            addresses,
            port: if port == 0 { return Err(invalid("port")) } else { port },
            fingerprint,
            group: properties.get(GROUP).filter(|group| !group.is_empty()).cloned(),
            ttl: ttl.ok().filter(|ttl| *ttl > 0).ok_or_else(|| invalid(TTL))?.min(MAX_TTL),
        })
    }

    /// URL of the auth service as seen from a host with these addresses, if it is reachable.
    pub fn auth_url(&self, ours: &[IpNet]) -> Option<String> {
        Some(match best_address(&self.addresses, ours)? {
            IpAddr::V4(address) => format!("https://{address}:{}", self.port),
            IpAddr::V6(address) => format!("https://[{address}]:{}", self.port),
        })
    }
}

/// Version of the format. Compatible changes keep it.
const CURRENT: &str = "1";

const VERSION: &str = "version";
const NAME: &str = "name";
const TTL: &str = "ttl";
const FINGERPRINT: &str = "fingerprint";
const GROUP: &str = "group";

const DEFAULT_TTL: u32 = 90;
/// A day: anybody in the network can announce anything.
const MAX_TTL: u32 = 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn milan() -> Announcement {
        Announcement {
            cluster: ClusterIdentity {
                cluster_id: "9f0f1f3e-9f2c".parse().unwrap(),
                cluster_name: "milan".parse().unwrap(),
            },
            addresses: ["10.0.0.5".parse().unwrap()].into(),
            port: 31200,
            fingerprint: Some("0f".repeat(32).parse().unwrap()),
            group: Some("campus".to_owned()),
            ttl: 60,
        }
    }

    fn properties(announcement: &Announcement) -> BTreeMap<String, String> {
        announcement.properties().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    const NAME_THERE: &str = "9f0f1f3e-9f2c._liqo_auth._tcp.local.";

    #[test]
    fn an_announcement_survives_a_round_trip() {
        let milan = milan();
        let read =
            Announcement::read(NAME_THERE, milan.addresses.clone(), 31200, &properties(&milan));
        assert_eq!(read, Ok(milan.clone()));
        let plain = Announcement { fingerprint: None, group: None, ..milan };
        let read =
            Announcement::read(NAME_THERE, plain.addresses.clone(), 31200, &properties(&plain));
        assert_eq!(read, Ok(plain));
    }

    #[test]
    fn a_cluster_announces_its_node_port_once_there_is_a_certificate() {
        let milan = milan();
        let config = DiscoveryConfig {
            ttl_seconds: 60,
            group: Some("campus".to_owned()),
            ..DiscoveryConfig::default()
        };
        let mut service: Service = serde_json::from_value(serde_json::json!({
            "metadata": { "annotations": { "discovery.liqo.io/fingerprint": "0f".repeat(32) } },
            "spec": { "ports": [{ "port": 443, "nodePort": 31200 }] },
        }))
        .unwrap();
        let announces = |service: &Service, config: &DiscoveryConfig| {
            Announcement::of(milan.cluster.clone(), milan.addresses.clone(), service, config)
        };
        assert_eq!(announces(&service, &config), Some(milan.clone()));
        let hidden = DiscoveryConfig { advertise: false, ..config.clone() };
        assert_eq!(announces(&service, &hidden), None);
        service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv6".to_owned()]);
        assert_eq!(announces(&service, &config), None, "the Service has no IPv4 address");
        service.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".to_owned()]);
        assert_eq!(announces(&service, &config), Some(milan.clone()));
        service.metadata.annotations = None;
        assert_eq!(announces(&service, &config), None);
    }

    #[test]
    fn unknown_properties_are_ignored_and_other_versions_rejected() {
        let milan = milan();
        let mut changed = properties(&milan);
        let read = |properties: &_| {
            Announcement::read(NAME_THERE, milan.addresses.clone(), 31200, properties)
        };
        changed.insert("colour".to_owned(), "blue".to_owned());
        assert_eq!(read(&changed), Ok(milan.clone()));
        changed.remove("version");
        assert_eq!(read(&changed), Ok(milan.clone()));
        changed.insert("version".to_owned(), "2".to_owned());
        assert!(read(&changed).unwrap_err().to_string().ends_with("version (1)"));
    }

    #[test]
    fn the_ttl_is_limited_to_a_day() {
        let milan = milan();
        let read = |ttl: &str| {
            let mut said = properties(&milan);
            said.insert("ttl".to_owned(), ttl.to_owned());
            Announcement::read(NAME_THERE, milan.addresses.clone(), 31200, &said).map(|it| it.ttl)
        };
        for (said, ttl) in [("1", 1), ("86400", 86400), ("86401", 86400), ("4294967295", 86400)] {
            assert_eq!(read(said), Ok(ttl), "{said}");
        }
        assert!(read("4294967296").is_err());
    }

    #[test]
    fn the_url_has_address_and_port() {
        assert_eq!(milan().auth_url(&[]).unwrap(), "https://10.0.0.5:31200");
        let six = Announcement { addresses: ["fd00::5".parse().unwrap()].into(), ..milan() };
        assert_eq!(six.auth_url(&[]).unwrap(), "https://[fd00::5]:31200");
    }

    #[test]
    fn incomplete_or_invalid_announcements_are_rejected() {
        let (milan, address) = (milan(), Some("10.0.0.5".parse().unwrap()));
        let good = properties(&milan);
        let mut wrong = good.clone();
        wrong.insert("ttl".to_owned(), "0".to_owned());
        for (name, address, port, properties, what) in [
            ("A b._liqo_auth._tcp.local.", address, 1, &good, "cluster id"),
            (NAME_THERE, None, 1, &good, "address"),
            (NAME_THERE, Some("fe80::5".parse().unwrap()), 1, &good, "address"),
            (NAME_THERE, Some("::ffff:127.0.0.1".parse().unwrap()), 1, &good, "address"),
            (NAME_THERE, address, 0, &good, "port"),
            (NAME_THERE, address, 1, &BTreeMap::new(), "name"),
            (NAME_THERE, address, 1, &wrong, "ttl"),
        ] {
            let error = Announcement::read(name, address, port, properties).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }
}
