//! What an address is called on either side of a peering. Each cluster has a name for the other's
//! networks; the host part is kept. Newtypes keep real and translated addresses apart.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use tombolo_api::{Cidr, NatCidr, net::TunnelEndpoint};

/// An address as the cluster that it belongs to calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealIp(pub IpAddr);

/// An address as the cluster on the other side calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslatedIp(pub IpAddr);

/// The networks of two peered clusters, and what each calls the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    /// Network of this cluster's pods.
    pub local_pod: Cidr,
    /// External network of this cluster.
    pub local_external: Cidr,
    /// What the peer calls this cluster's pods' network.
    pub their_name_for_pods: Cidr,
    /// What the peer calls this cluster's external network.
    pub their_name_for_external: Cidr,
    /// Network of the peer's pods, as the peer calls it.
    pub remote_pod: Cidr,
    /// External network of the peer, as the peer calls it.
    pub remote_external: Cidr,
    /// What this cluster calls the peer's pods' network.
    pub our_name_for_pods: Cidr,
    /// What this cluster calls the peer's external network.
    pub our_name_for_external: Cidr,
}

/// An address that has no other name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// It is in none of the networks.
    #[error("{ip} is neither in the network {pods} nor in {external}")]
    Outside {
        /// The address.
        ip: IpAddr,
        /// Network of the pods.
        pods: Cidr,
        /// External network.
        external: Cidr,
    },
    /// It is not in the network to map it from.
    #[error("{ip} is not in the network {from}, so it can't be mapped to {to}")]
    NotInNetwork {
        /// The address.
        ip: IpAddr,
        /// The network to map it from.
        from: Cidr,
        /// The network to map it to.
        to: Cidr,
    },
    /// The networks have different sizes or families.
    #[error("{from} can't be mapped to {to}: the two must have the same size and family")]
    DifferentSize {
        /// The network to map from.
        from: Cidr,
        /// The network to map to.
        to: Cidr,
    },
}

impl Networks {
    /// The networks of a TunnelEndpoint, once all of them are known.
    pub fn from_tunnel_endpoint(endpoint: &TunnelEndpoint) -> Option<Self> {
        let status = endpoint.status.as_ref()?;
        let networks = Self {
            local_pod: status.local_pod_cidr?,
            local_external: status.local_external_cidr?,
            their_name_for_pods: status.local_nat_pod_cidr?.or(status.local_pod_cidr?),
            their_name_for_external: status
                .local_nat_external_cidr?
                .or(status.local_external_cidr?),
            remote_pod: endpoint.spec.pod_cidr,
            remote_external: endpoint.spec.external_cidr,
            our_name_for_pods: status.remote_nat_pod_cidr?.or(endpoint.spec.pod_cidr),
            our_name_for_external: status.remote_nat_external_cidr?.or(endpoint.spec.external_cidr),
        };
        networks.is_consistent().then_some(networks)
    }

    /// What this cluster calls an address of the peer, of a pod or of its external network.
    pub fn name_here(&self, ip: RealIp) -> Result<TranslatedIp, TranslateError> {
        let pods = (self.remote_pod, self.our_name_for_pods);
        let external = (self.remote_external, self.our_name_for_external);
        map_in_either(ip.0, pods, external).map(TranslatedIp)
    }

    /// What the peer calls an address of this cluster, of a pod or of its external network.
    pub fn name_there(&self, ip: RealIp) -> Result<TranslatedIp, TranslateError> {
        let pods = (self.local_pod, self.their_name_for_pods);
        let external = (self.local_external, self.their_name_for_external);
        map_in_either(ip.0, pods, external).map(TranslatedIp)
    }

    /// What the peer itself calls an address of its own that this cluster calls `ip`.
    pub fn real_from_name_here(&self, ip: TranslatedIp) -> Result<RealIp, TranslateError> {
        let pods = (self.our_name_for_pods, self.remote_pod);
        let external = (self.our_name_for_external, self.remote_external);
        map_in_either(ip.0, pods, external).map(RealIp)
    }

    /// What this cluster calls an address of its own that the peer calls `ip`.
    pub fn real_from_name_there(&self, ip: TranslatedIp) -> Result<RealIp, TranslateError> {
        let pods = (self.their_name_for_pods, self.local_pod);
        let external = (self.their_name_for_external, self.local_external);
        map_in_either(ip.0, pods, external).map(RealIp)
    }

    /// The address by which the peer knows whatever comes from this cluster and is no pod.
    pub fn their_name_for_self(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.their_name_for_external))
    }

    /// The address by which this cluster knows whatever comes from the peer and is no pod; the
    /// peer's gateway answers probes there.
    pub fn our_name_for_their_self(&self) -> TranslatedIp {
        TranslatedIp(first_host(self.our_name_for_external))
    }

    fn is_consistent(&self) -> bool {
        [
            (self.local_pod, self.their_name_for_pods),
            (self.local_external, self.their_name_for_external),
            (self.remote_pod, self.our_name_for_pods),
            (self.remote_external, self.our_name_for_external),
        ]
        .into_iter()
        .all(|(real, name)| same_size(real, name))
    }
}

/// The address with the host part of `ip` in the network `to`.
pub fn map_ip_to_network(ip: IpAddr, from: Cidr, to: Cidr) -> Result<IpAddr, TranslateError> {
    if !same_size(from, to) {
        return Err(TranslateError::DifferentSize { from, to });
    }
    match (ip, from.net(), to.net()) {
        (IpAddr::V4(ip), IpNet::V4(net), IpNet::V4(other)) if net.contains(&ip) => {
            let host = u32::from(ip) & u32::from(net.hostmask());
            Ok(Ipv4Addr::from(u32::from(other.network()) | host).into())
        }
        (IpAddr::V6(ip), IpNet::V6(net), IpNet::V6(other)) if net.contains(&ip) => {
            let host = u128::from(ip) & u128::from(net.hostmask());
            Ok(Ipv6Addr::from(u128::from(other.network()) | host).into())
        }
        _ => Err(TranslateError::NotInNetwork { ip, from, to }),
    }
}

/// The first address of a network that a host can have.
pub fn first_host(network: Cidr) -> IpAddr {
    network.net().hosts().next().unwrap_or_else(|| network.net().network())
}

/// Whether two networks overlap.
pub fn overlap(one: Cidr, other: Cidr) -> bool {
    one.net().contains(&other.net()) || other.net().contains(&one.net())
}

/// Whether two networks have the same size and family.
pub fn same_size(one: Cidr, other: Cidr) -> bool {
    one.net().max_prefix_len() == other.net().max_prefix_len()
        && one.net().prefix_len() == other.net().prefix_len()
}

/// How a status says that `real` is called `name`.
pub fn nat(real: Cidr, name: Cidr) -> NatCidr {
    if real == name { NatCidr::None } else { NatCidr::Remapped(name) }
}

impl fmt::Display for RealIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TranslatedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn map_in_either(
    ip: IpAddr,
    pods: (Cidr, Cidr),
    external: (Cidr, Cidr),
) -> Result<IpAddr, TranslateError> {
    if pods.0.net().contains(&ip) {
        map_ip_to_network(ip, pods.0, pods.1)
    } else if external.0.net().contains(&ip) {
        map_ip_to_network(ip, external.0, external.1)
    } else {
        Err(TranslateError::Outside { ip, pods: pods.0, external: external.0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tombolo_api::net::{BackendType, TunnelEndpointSpec, TunnelEndpointStatus};

    use super::*;

    #[test]
    fn a_peer_with_the_same_networks_is_called_by_other_ones() {
        let networks = Networks::from_tunnel_endpoint(&endpoint()).unwrap();
        let pod = RealIp(ip("10.0.3.7"));
        assert_eq!(networks.name_here(pod), Ok(TranslatedIp(ip("10.8.3.7"))));
        assert_eq!(networks.name_there(pod), Ok(TranslatedIp(ip("10.9.3.7"))));
        assert_eq!(networks.real_from_name_here(TranslatedIp(ip("10.8.3.7"))), Ok(pod));
        assert_eq!(networks.real_from_name_there(TranslatedIp(ip("10.9.3.7"))), Ok(pod));
        assert_eq!(networks.their_name_for_self().to_string(), "10.6.0.1");
        assert_eq!(networks.our_name_for_their_self().to_string(), "10.5.0.1");
    }

    #[test]
    fn an_address_of_neither_network_is_an_error_that_names_it() {
        let networks = Networks::from_tunnel_endpoint(&endpoint()).unwrap();
        let error = networks.name_here(RealIp(ip("192.0.2.1"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "192.0.2.1 is neither in the network 10.0.0.0/16 nor in 10.5.0.0/16"
        );
    }

    #[test]
    fn until_all_networks_are_known_there_are_none() {
        let full = endpoint();
        let without = |change: fn(&mut TunnelEndpointStatus)| {
            let mut endpoint = full.clone();
            change(endpoint.status.as_mut().unwrap());
            Networks::from_tunnel_endpoint(&endpoint)
        };
        assert_eq!(without(|status| status.local_pod_cidr = None), None);
        assert_eq!(without(|status| status.local_external_cidr = None), None);
        assert_eq!(without(|status| status.local_nat_pod_cidr = None), None);
        assert_eq!(without(|status| status.remote_nat_external_cidr = None), None);
        let larger = |status: &mut TunnelEndpointStatus| {
            status.remote_nat_pod_cidr = Some("10.8.0.0/15".parse().unwrap());
        };
        assert_eq!(without(larger), None);
        assert_eq!(Networks::from_tunnel_endpoint(&TunnelEndpoint { status: None, ..full }), None);
    }

    #[test]
    fn networks_of_different_sizes_or_families_cant_be_mapped() {
        let map = |from: &str, to: &str| map_ip_to_network(ip("10.0.0.5"), cidr(from), cidr(to));
        for (from, to) in [("10.0.0.0/16", "10.1.0.0/17"), ("10.0.0.0/16", "fd00::/16")] {
            let error = TranslateError::DifferentSize { from: cidr(from), to: cidr(to) };
            assert_eq!(map(from, to), Err(error));
        }
        assert!(matches!(
            map("10.1.0.0/16", "10.2.0.0/16"),
            Err(TranslateError::NotInNetwork { .. })
        ));
    }

    proptest! {
        #[test]
        fn an_address_comes_back_with_its_host_part(from: u32, to: u32, host: u32, length in 0_u8..=32) {
            let net = |bits: u32| {
                let net = IpNet::new(Ipv4Addr::from(bits).into(), length).unwrap();
                Cidr::try_from(net.trunc()).unwrap()
            };
            let hostmask = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            let IpAddr::V4(first) = net(from).net().network() else { unreachable!() };
            let ip: IpAddr = Ipv4Addr::from(u32::from(first) | (host & hostmask)).into();
            let there = map_ip_to_network(ip, net(from), net(to)).unwrap();
            prop_assert!(net(to).net().contains(&there));
            prop_assert_eq!(map_ip_to_network(there, net(to), net(from)), Ok(ip));
            let IpAddr::V4(there) = there else { unreachable!() };
            prop_assert_eq!(u32::from(there) & hostmask, host & hostmask);
        }

        #[test]
        fn ipv6_too(from: u128, to: u128, host: u128, length in 0_u8..=128) {
            let net = |bits: u128| {
                let net = IpNet::new(Ipv6Addr::from(bits).into(), length).unwrap();
                Cidr::try_from(net.trunc()).unwrap()
            };
            let hostmask = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            let IpAddr::V6(first) = net(from).net().network() else { unreachable!() };
            let ip: IpAddr = Ipv6Addr::from(u128::from(first) | (host & hostmask)).into();
            let there = map_ip_to_network(ip, net(from), net(to)).unwrap();
            prop_assert_eq!(map_ip_to_network(there, net(to), net(from)), Ok(ip));
        }

        #[test]
        fn names_lead_back_to_the_address(host: u16, external: bool) {
            let networks = Networks::from_tunnel_endpoint(&endpoint()).unwrap();
            let [a, b] = host.to_be_bytes();
            let local = RealIp(Ipv4Addr::new(10, if external { 4 } else { 0 }, a, b).into());
            let there = networks.name_there(local).unwrap();
            prop_assert_eq!(networks.real_from_name_there(there), Ok(local));
            let remote = RealIp(Ipv4Addr::new(10, if external { 5 } else { 0 }, a, b).into());
            let here = networks.name_here(remote).unwrap();
            prop_assert_eq!(networks.real_from_name_here(here), Ok(remote));
        }
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }
}
