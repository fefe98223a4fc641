//! The networks of two peered clusters.

use tombolo_api::net::TunnelEndpoint;

use super::{CidrTranslation, Mismatch, TranslatedIp, first_host};

/// The networks of two peered clusters, and how each translates those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    /// This cluster's PodCIDR, translated in the peer.
    pub local_pods: CidrTranslation,
    /// This cluster's ExternalCIDR, translated in the peer.
    pub local_external: CidrTranslation,
    /// The peer's PodCIDR, translated in this cluster.
    pub remote_pods: CidrTranslation,
    /// The peer's ExternalCIDR, translated in this cluster.
    pub remote_external: CidrTranslation,
}

impl Networks {
    /// The networks of a TunnelEndpoint, once all of them are known. Fails if a CIDR and its
    /// translated CIDR differ in size.
    pub fn from_tunnel_endpoint(endpoint: &TunnelEndpoint) -> Result<Option<Self>, Mismatch> {
        let known = || {
            let status = endpoint.status.as_ref()?;
            Some([
                (status.local_pod_cidr?, status.local_nat_pod_cidr?),
                (status.local_external_cidr?, status.local_nat_external_cidr?),
                (endpoint.spec.pod_cidr, status.remote_nat_pod_cidr?),
                (endpoint.spec.external_cidr, status.remote_nat_external_cidr?),
            ])
        };
        let Some([local_pods, local_external, remote_pods, remote_external]) = known() else {
            return Ok(None);
        };
        let translation = |(real, nat)| CidrTranslation::from_nat(real, nat);
        Ok(Some(Self {
            local_pods: translation(local_pods)?,
            local_external: translation(local_external)?,
            remote_pods: translation(remote_pods)?,
            remote_external: translation(remote_external)?,
        }))
    }

    /// The address of this cluster's gateway in the peer: the source of all packets from this
    /// cluster that do not come from a pod.
    pub fn local_gateway_ip_at_peer(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.local_external.translated()))
    }

    /// The address of the peer's gateway in this cluster: the source of all packets from the peer
    /// that do not come from a pod. The gateway answers probes there.
    pub fn peer_gateway_ip(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.remote_external.translated()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tombolo_api::{
        NatCidr,
        net::{BackendType, TunnelEndpointSpec, TunnelEndpointStatus},
    };

    use super::super::strategies::{cidr, ip};
    use super::*;

    #[test]
    fn translations_are_read_from_a_tunnel_endpoint() {
        let networks = Networks::from_tunnel_endpoint(&endpoint()).unwrap().unwrap();
        let translation = |real: &str, translated: &str| {
            CidrTranslation::new(cidr(real), cidr(translated)).unwrap()
        };
        let expected = Networks {
            local_pods: translation("10.0.0.0/16", "10.9.0.0/16"),
            local_external: translation("10.4.0.0/16", "10.6.0.0/16"),
            remote_pods: translation("10.0.0.0/16", "10.8.0.0/16"),
            remote_external: translation("10.5.0.0/16", "10.5.0.0/16"),
        };
        assert_eq!(networks, expected);
        assert_eq!(networks.local_gateway_ip_at_peer().to_string(), "10.6.0.1");
        assert_eq!(networks.peer_gateway_ip().to_string(), "10.5.0.1");
    }

    #[test]
    fn networks_are_unknown_until_every_cidr_is_set() {
        let missing: [fn(&mut TunnelEndpointStatus); 6] = [
            |status| status.local_pod_cidr = None,
            |status| status.local_external_cidr = None,
            |status| status.local_nat_pod_cidr = None,
            |status| status.local_nat_external_cidr = None,
            |status| status.remote_nat_pod_cidr = None,
            |status| status.remote_nat_external_cidr = None,
        ];
        for change in missing {
            assert_eq!(Networks::from_tunnel_endpoint(&changed(change)), Ok(None));
        }
        let unknown = TunnelEndpoint { status: None, ..endpoint() };
        assert_eq!(Networks::from_tunnel_endpoint(&unknown), Ok(None));
    }

    #[test]
    fn a_translated_cidr_of_another_size_is_an_error() {
        let nat = |text: &str| Some(text.parse::<NatCidr>().unwrap());
        let wrong = |endpoint: &TunnelEndpoint| {
            Networks::from_tunnel_endpoint(endpoint).unwrap_err().to_string()
        };
        let larger = changed(|status| status.remote_nat_pod_cidr = nat("10.8.0.0/15"));
        assert_eq!(
            wrong(&larger),
            "10.0.0.0/16 can't be translated to 10.8.0.0/15: a prefix of 16 bits of IPv4 and a \
             prefix of 15 bits of IPv4 differ, so addresses would lose their host part"
        );
        let smaller = changed(|status| status.local_nat_external_cidr = nat("10.6.0.0/24"));
        assert!(wrong(&smaller).starts_with("10.4.0.0/16 can't be translated to 10.6.0.0/24: "));
        let v6 = changed(|status| status.remote_nat_external_cidr = nat("fd00::/16"));
        assert!(wrong(&v6).starts_with("10.5.0.0/16 can't be translated to fd00::/16: "));
        let v6_pods = changed(|status| status.local_nat_pod_cidr = nat("fd00::/64"));
        assert!(wrong(&v6_pods).starts_with("10.0.0.0/16 can't be translated to fd00::/64: "));
    }

    pub(in super::super) fn changed(
        change: impl FnOnce(&mut TunnelEndpointStatus),
    ) -> TunnelEndpoint {
        let mut endpoint = endpoint();
        change(endpoint.status.as_mut().unwrap());
        endpoint
    }

    fn endpoint() -> TunnelEndpoint {
        let mut endpoint = TunnelEndpoint::new(
            "milan",
            TunnelEndpointSpec {
                cluster_id: "milan-id".parse().unwrap(),
                pod_cidr: cidr("10.0.0.0/16"),
                external_cidr: cidr("10.5.0.0/16"),
                endpoint_ip: ip("192.0.2.1"),
                backend_type: BackendType::Wireguard,
                backend_config: Default::default(),
            },
        );
        endpoint.status = Some(TunnelEndpointStatus {
            local_pod_cidr: Some(cidr("10.0.0.0/16")),
            local_external_cidr: Some(cidr("10.4.0.0/16")),
            local_nat_pod_cidr: Some("10.9.0.0/16".parse().unwrap()),
            local_nat_external_cidr: Some("10.6.0.0/16".parse().unwrap()),
            remote_nat_pod_cidr: Some("10.8.0.0/16".parse().unwrap()),
            remote_nat_external_cidr: Some(NatCidr::None),
            ..Default::default()
        });
        endpoint
    }
}
