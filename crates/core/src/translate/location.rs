//! Which address pods of a peer use for an address of this cluster, and the other way round. There
//! are three cases, each with an address on either side of the peering.

use std::net::IpAddr;

use super::{ExternalIp, Networks, NotInNetwork, RealIp, TranslatedIp};

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A pod of the peer.
    There(Pod),
    /// A pod of this cluster.
    Here(Pod),
    /// Anything else, such as a pod of a third cluster, a node or an external host, by its address
    /// in this cluster. The peer uses an address of this cluster's ExternalCIDR for it.
    Elsewhere(IpAddr),
}

/// The two addresses of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// In its own cluster.
    pub real: RealIp,
    /// In the other cluster.
    pub translated: TranslatedIp,
}

impl Networks {
    /// What an address of this cluster belongs to. The peer's PodCIDR comes first, because the
    /// address is located for the peer.
    pub fn locate(&self, ip: IpAddr) -> Location {
        let translated = TranslatedIp(ip);
        if let Ok(real) = self.remote_pods.reverse(translated) {
            return Location::There(Pod { real, translated });
        }
        let real = RealIp(ip);
        match self.local_pods.translate(real) {
            Ok(translated) => Location::Here(Pod { real, translated }),
            Err(_) => Location::Elsewhere(ip),
        }
    }

    /// What an address used by pods of the peer belongs to, or `None` if it is outside of the
    /// peering. `endpoint` returns the endpoint to which an address of the ExternalCIDR is
    /// allocated.
    pub fn locate_from_peer(
        &self,
        ip: IpAddr,
        endpoint: impl FnOnce(ExternalIp) -> Option<IpAddr>,
    ) -> Option<Location> {
        let real = RealIp(ip);
        if let Ok(translated) = self.remote_pods.translate(real) {
            return Some(Location::There(Pod { real, translated }));
        }
        let translated = TranslatedIp(ip);
        if let Ok(real) = self.local_pods.reverse(translated) {
            return Some(Location::Here(Pod { real, translated }));
        }
        let external = self.local_external.reverse(translated).ok()?;
        endpoint(ExternalIp(external.0)).map(Location::Elsewhere)
    }

    /// The address that pods of the peer use for an address of this cluster. `external` returns, or
    /// allocates, the address of the ExternalCIDR for an endpoint that is not a pod.
    pub fn remote_address<E: From<NotInNetwork>>(
        &self,
        ip: IpAddr,
        external: impl FnOnce(IpAddr) -> Result<ExternalIp, E>,
    ) -> Result<IpAddr, E> {
        Ok(match self.locate(ip) {
            Location::There(pod) => pod.real.0,
            Location::Here(pod) => pod.translated.0,
            Location::Elsewhere(ip) => self.local_external.translate(external(ip)?.real())?.0,
        })
    }

    /// The address in this cluster for an address that pods of the peer use.
    pub fn local_address(
        &self,
        ip: IpAddr,
        endpoint: impl FnOnce(ExternalIp) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        Some(match self.locate_from_peer(ip, endpoint)? {
            Location::There(pod) => pod.translated.0,
            Location::Here(pod) => pod.real.0,
            Location::Elsewhere(ip) => ip,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::strategies::{Peering, cidr, in_network, ip, networks, peering};
    use super::*;
    use crate::translate::CidrTranslation;

    fn none(_: IpAddr) -> Result<ExternalIp, NotInNetwork> {
        panic!("a pod needs no address of the ExternalCIDR")
    }

    #[test]
    fn a_local_pod_has_a_translated_address_in_the_peer() {
        assert_eq!(networks().remote_address(ip("10.0.7.7"), none), Ok(ip("10.80.7.7")));
        assert_eq!(networks().local_address(ip("10.80.7.7"), |_| None), Some(ip("10.0.7.7")));
    }

    #[test]
    fn a_pod_of_the_peer_has_its_real_address_there() {
        assert_eq!(networks().remote_address(ip("10.2.7.7"), none), Ok(ip("10.0.7.7")));
        assert_eq!(networks().local_address(ip("10.0.7.7"), |_| None), Some(ip("10.2.7.7")));
    }

    #[test]
    fn other_endpoints_have_an_external_address_in_the_peer() {
        let (endpoint, external) = (ip("192.0.2.9"), ExternalIp(ip("10.1.0.4")));
        assert_eq!(networks().locate(endpoint), Location::Elsewhere(endpoint));
        let to = |ip| if ip == endpoint { Ok(external) } else { none(ip) };
        assert_eq!(networks().remote_address(endpoint, to), Ok(ip("10.81.0.4")));
        let from = |ip| (ip == external).then_some(endpoint);
        assert_eq!(networks().local_address(ip("10.81.0.4"), from), Some(endpoint));
        assert_eq!(networks().local_address(ip("10.81.0.5"), from), None, "it is not allocated");
    }

    #[test]
    fn an_external_address_outside_of_the_external_cidr_is_an_error() {
        let wrong = |_| Ok::<_, NotInNetwork>(ExternalIp(ip("10.9.0.4")));
        let error = networks().remote_address(ip("192.0.2.9"), wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.9.0.4 is not in the network 10.1.0.0/16, so it can't be mapped to 10.81.0.0/16"
        );
    }

    #[test]
    fn the_pod_cidr_of_the_peer_comes_first() {
        let networks = Networks {
            local_pods: CidrTranslation::new(cidr("10.2.0.0/15"), cidr("10.80.0.0/15")).unwrap(),
            ..networks()
        };
        assert!(matches!(networks.locate(ip("10.2.7.7")), Location::There(_)));
        assert!(matches!(networks.locate(ip("10.3.7.7")), Location::Here(_)));
    }

    #[test]
    fn addresses_outside_of_the_peering_are_not_located() {
        for only_there in ["192.0.2.9", "10.2.0.1", "fd00::1"] {
            assert_eq!(networks().locate_from_peer(ip(only_there), |_| panic!()), None);
        }
    }

    proptest! {
        #[test]
        fn translation_of_a_pod_is_reversible(
            Peering { here, .. } in peering(),
            host: u128,
            is_there: bool,
        ) {
            let network = if is_there { here.remote_pods.translated() } else { here.local_pods.real() };
            let known_here = in_network(network, host);
            let there = here.remote_address(known_here, none).unwrap();
            prop_assert_eq!(here.local_address(there, |_| None), Some(known_here));
            prop_assert_eq!(
                here.locate_from_peer(there, |_| None),
                Some(here.locate(known_here))
            );
        }

        #[test]
        fn translation_of_an_endpoint_is_reversible(
            Peering { here, .. } in peering(),
            endpoint: IpAddr,
            host: u128,
        ) {
            prop_assume!(here.locate(endpoint) == Location::Elsewhere(endpoint));
            let external = ExternalIp(in_network(here.local_external.real(), host));
            let there = here.remote_address(endpoint, |_| Ok::<_, NotInNetwork>(external)).unwrap();
            let from = |ip| (ip == external).then_some(endpoint);
            prop_assert_eq!(here.local_address(there, from), Some(endpoint));
        }

        #[test]
        fn both_clusters_locate_a_pod_in_the_same_way(
            Peering { here, there } in peering(),
            host: u128,
        ) {
            let known_here = in_network(here.local_pods.real(), host);
            let known_there = here.remote_address(known_here, none).unwrap();
            prop_assert_eq!(there.remote_address(known_there, none), Ok(known_here));
            let (Location::Here(at_home), Location::There(from_there)) =
                (here.locate(known_here), there.locate(known_there))
            else {
                panic!("one cluster locates it elsewhere")
            };
            prop_assert_eq!(at_home, from_there);
        }
    }
}
