//! The networks of two peered clusters.

use tombolo_api::net::TunnelEndpoint;

use super::{Mismatch, NamedNetwork, TranslatedIp, first_host};

/// The networks of two peered clusters, and what each calls the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    /// Of this cluster's pods, and what the peer calls it.
    pub local_pods: NamedNetwork,
    /// This cluster's external network, and what the peer calls it.
    pub local_external: NamedNetwork,
    /// Of the peer's pods, and what this cluster calls it.
    pub remote_pods: NamedNetwork,
    /// The peer's external network, and what this cluster calls it.
    pub remote_external: NamedNetwork,
}

impl Networks {
    /// The networks of a TunnelEndpoint, once all of them are known. An error: they can't be right.
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
        let named = |(real, nat)| NamedNetwork::from_nat(real, nat);
        Ok(Some(Self {
            local_pods: named(local_pods)?,
            local_external: named(local_external)?,
            remote_pods: named(remote_pods)?,
            remote_external: named(remote_external)?,
        }))
    }

    /// The address by which the peer knows whatever comes from this cluster and is no pod.
    pub fn their_name_for_self(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.local_external.name()))
    }

    /// The address by which this cluster knows whatever comes from the peer and is no pod; the
    /// peer's gateway answers probes there.
    pub fn our_name_for_their_self(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.remote_external.name()))
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
    fn a_tunnel_endpoint_says_what_each_network_is_called() {
        let networks = Networks::from_tunnel_endpoint(&endpoint()).unwrap().unwrap();
        let named = |real: &str, name: &str| NamedNetwork::new(cidr(real), cidr(name)).unwrap();
        let expected = Networks {
            local_pods: named("10.0.0.0/16", "10.9.0.0/16"),
            local_external: named("10.4.0.0/16", "10.6.0.0/16"),
            remote_pods: named("10.0.0.0/16", "10.8.0.0/16"),
            remote_external: named("10.5.0.0/16", "10.5.0.0/16"),
        };
        assert_eq!(networks, expected);
        assert_eq!(networks.their_name_for_self().to_string(), "10.6.0.1");
        assert_eq!(networks.our_name_for_their_self().to_string(), "10.5.0.1");
    }

    #[test]
    fn until_all_networks_are_known_there_are_none() {
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
    fn a_name_that_cant_be_right_is_an_error_that_says_so() {
        let nat = |text: &str| Some(text.parse::<NatCidr>().unwrap());
        let wrong = |endpoint: &TunnelEndpoint| {
            Networks::from_tunnel_endpoint(endpoint).unwrap_err().to_string()
        };
        let larger = changed(|status| status.remote_nat_pod_cidr = nat("10.8.0.0/15"));
        assert_eq!(
            wrong(&larger),
            "10.0.0.0/16 can't be called 10.8.0.0/15: a prefix of 16 bits of IPv4 is no prefix of \
             15 bits of IPv4, and addresses would lose their host part"
        );
        let smaller = changed(|status| status.local_nat_external_cidr = nat("10.6.0.0/24"));
        assert!(wrong(&smaller).starts_with("10.4.0.0/16 can't be called 10.6.0.0/24: "));
        let v6 = changed(|status| status.remote_nat_external_cidr = nat("fd00::/16"));
        assert!(wrong(&v6).starts_with("10.5.0.0/16 can't be called fd00::/16: "));
        let unnamed = changed(|status| status.local_nat_pod_cidr = nat("fd00::/64"));
        assert!(wrong(&unnamed).starts_with("10.0.0.0/16 can't be called fd00::/64: "));
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
