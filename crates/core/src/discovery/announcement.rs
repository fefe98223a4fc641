//! What a cluster says about itself in the local network, and how it is read.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Service;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName, Fingerprint, config::DiscoveryConfig,
    names::FINGERPRINT_ANNOTATION,
};

/// A cluster's announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Who it is.
    pub cluster: ClusterIdentity,
    /// Where its auth service is.
    pub address: IpAddr,
    /// The port there.
    pub port: u16,
    /// Fingerprint of the certificate that the auth service shows.
    pub fingerprint: Option<Fingerprint>,
    /// The group of clusters that it belongs to.
    pub group: Option<String>,
    /// Seconds for which this holds.
    pub ttl: u32,
}

/// What is announced there is no cluster of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the announcement of {instance:?} has no valid {what}")]
pub struct NotAnAnnouncement {
    instance: String,
    what: &'static str,
}

impl Announcement {
    /// What a cluster says about itself: that the node port of its auth service is at this address.
    /// Nothing, as long as there is no port or certificate, or when it is not to be found.
    pub fn of(
        cluster: ClusterIdentity,
        address: IpAddr,
        service: &Service,
        config: &DiscoveryConfig,
    ) -> Option<Self> {
        let ports = service.spec.as_ref()?.ports.as_ref()?;
        let port = ports.iter().find_map(|port| port.node_port)?;
        let annotations = service.metadata.annotations.as_ref()?;
        let announcement = Self {
            cluster,
            address,
            port: port.try_into().ok()?,
            fingerprint: Some(annotations.get(FINGERPRINT_ANNOTATION)?.parse().ok()?),
            group: config.group.clone(),
            ttl: config.ttl_seconds,
        };
        config.advertise.then_some(announcement)
    }

    /// The properties that go into the TXT record.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut properties = vec![
            (VERSION, "1".to_owned()),
            (NAME, self.cluster.cluster_name.to_string()),
            (TTL, self.ttl.to_string()),
        ];
        properties.extend(self.fingerprint.map(|print| (FINGERPRINT, print.to_string())));
        properties.extend(self.group.clone().map(|group| (GROUP, group)));
        properties
    }

    /// Reads what was heard: the full name of the instance, address and port, properties.
    pub fn read(
        full_name: &str,
        address: Option<IpAddr>,
        port: u16,
        properties: &BTreeMap<String, String>,
    ) -> Result<Self, NotAnAnnouncement> {
        let instance = full_name.split('.').next().unwrap_or_default();
        let no = |what| NotAnAnnouncement { instance: instance.to_owned(), what };
        let cluster_id: ClusterId = instance.parse().map_err(|_| no("cluster id"))?;
        let name = properties.get(NAME).ok_or_else(|| no(NAME))?;
        let cluster_name: ClusterName = name.parse().map_err(|_| no(NAME))?;
        let fingerprint = match properties.get(FINGERPRINT) {
            Some(text) => Some(text.parse().map_err(|_| no(FINGERPRINT))?),
            None => None,
        };
        let ttl = properties.get(TTL).map_or(Ok(DEFAULT_TTL), |text| text.parse());
        Ok(Self {
            cluster: ClusterIdentity { cluster_id, cluster_name },
            address: address.ok_or_else(|| no("address"))?,
            port: if port == 0 { return Err(no("port")) } else { port },
            fingerprint,
            group: properties.get(GROUP).filter(|group| !group.is_empty()).cloned(),
            ttl: ttl.ok().filter(|ttl| (1..=MAX_TTL).contains(ttl)).ok_or_else(|| no(TTL))?,
        })
    }

    /// URL of the auth service.
    pub fn auth_url(&self) -> String {
        match self.address {
            IpAddr::V4(address) => format!("https://{address}:{}", self.port),
            IpAddr::V6(address) => format!("https://[{address}]:{}", self.port),
        }
    }
}

const VERSION: &str = "version";
const NAME: &str = "name";
const TTL: &str = "ttl";
const FINGERPRINT: &str = "fingerprint";
const GROUP: &str = "group";

const DEFAULT_TTL: u32 = 90;
const MAX_TTL: u32 = i32::MAX.cast_unsigned();

#[cfg(test)]
mod tests {
    use super::*;

    fn milan() -> Announcement {
        Announcement {
            cluster: ClusterIdentity {
                cluster_id: "9f0f1f3e-9f2c".parse().unwrap(),
                cluster_name: "milan".parse().unwrap(),
            },
            address: "10.0.0.5".parse().unwrap(),
            port: 31200,
            fingerprint: Some("0f".repeat(32).parse().unwrap()),
            group: Some("campus".to_owned()),
            ttl: 60,
        }
    }

    fn heard(announcement: &Announcement) -> BTreeMap<String, String> {
        announcement.properties().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    const NAME_THERE: &str = "9f0f1f3e-9f2c._liqo_auth._tcp.local.";

    #[test]
    fn an_announcement_is_read_as_it_is_made() {
        let milan = milan();
        let read = Announcement::read(NAME_THERE, Some(milan.address), 31200, &heard(&milan));
        assert_eq!(read, Ok(milan.clone()));
        let plain = Announcement { fingerprint: None, group: None, ..milan };
        let read = Announcement::read(NAME_THERE, Some(plain.address), 31200, &heard(&plain));
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
        let says = |service: &Service, config: &DiscoveryConfig| {
            Announcement::of(milan.cluster.clone(), milan.address, service, config)
        };
        assert_eq!(says(&service, &config), Some(milan.clone()));
        let hidden = DiscoveryConfig { advertise: false, ..config.clone() };
        assert_eq!(says(&service, &hidden), None);
        service.metadata.annotations = None;
        assert_eq!(says(&service, &config), None);
    }

    #[test]
    fn the_url_has_address_and_port() {
        assert_eq!(milan().auth_url(), "https://10.0.0.5:31200");
        let six = Announcement { address: "fd00::5".parse().unwrap(), ..milan() };
        assert_eq!(six.auth_url(), "https://[fd00::5]:31200");
    }

    #[test]
    fn what_is_incomplete_or_wrong_is_refused() {
        let (milan, address) = (milan(), Some(milan().address));
        let good = heard(&milan);
        let mut wrong = good.clone();
        wrong.insert("ttl".to_owned(), "0".to_owned());
        for (name, address, port, properties, what) in [
            ("A b._liqo_auth._tcp.local.", address, 1, &good, "cluster id"),
            (NAME_THERE, None, 1, &good, "address"),
            (NAME_THERE, address, 0, &good, "port"),
            (NAME_THERE, address, 1, &BTreeMap::new(), "name"),
            (NAME_THERE, address, 1, &wrong, "ttl"),
        ] {
            let error = Announcement::read(name, address, port, properties).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }
}
