//! Where an address is that pods of another cluster, the destination, ask for. There are three
//! cases, and each has a name on either side of the peering.

use std::net::IpAddr;

use super::{ExternalIp, Networks, NotInNetwork, RealIp, TranslatedIp};

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// It is a pod of the destination itself.
    There(Pod),
    /// It is a pod of this cluster.
    Here(Pod),
    /// It is neither, such as a pod of a third cluster, a node or something in the world. This is
    /// the address by which this cluster reaches it; the destination gets one of this cluster's
    /// external network.
    Elsewhere(IpAddr),
}

/// A pod by both its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// In its own cluster.
    pub real: RealIp,
    /// In the other one.
    pub name: TranslatedIp,
}

impl Networks {
    /// Where an address is that this cluster knows. A pod of the destination comes first: it is
    /// where it is asked from.
    pub fn locate(&self, ip: IpAddr) -> Location {
        let name = TranslatedIp(ip);
        if let Ok(real) = self.remote_pods.back(name) {
            return Location::There(Pod { real, name });
        }
        let real = RealIp(ip);
        match self.local_pods.translate(real) {
            Ok(name) => Location::Here(Pod { real, name }),
            Err(_) => Location::Elsewhere(ip),
        }
    }

    /// Where an address is that pods of the destination use; `endpoint` knows what an address of
    /// the external network stands for. Nothing is known of what else they may reach.
    pub fn locate_from_there(
        &self,
        ip: IpAddr,
        endpoint: impl FnOnce(ExternalIp) -> Option<IpAddr>,
    ) -> Option<Location> {
        let real = RealIp(ip);
        if let Ok(name) = self.remote_pods.translate(real) {
            return Some(Location::There(Pod { real, name }));
        }
        let name = TranslatedIp(ip);
        if let Ok(real) = self.local_pods.back(name) {
            return Some(Location::Here(Pod { real, name }));
        }
        let external = self.local_external.back(name).ok()?;
        endpoint(ExternalIp(external.0)).map(Location::Elsewhere)
    }

    /// What pods of the destination call an address that this cluster knows; `external` knows, or
    /// chooses, the address that stands for what is elsewhere.
    pub fn name_there<E: From<NotInNetwork>>(
        &self,
        ip: IpAddr,
        external: impl FnOnce(IpAddr) -> Result<ExternalIp, E>,
    ) -> Result<IpAddr, E> {
        Ok(match self.locate(ip) {
            Location::There(pod) => pod.real.0,
            Location::Here(pod) => pod.name.0,
            Location::Elsewhere(ip) => self.local_external.translate(external(ip)?.real())?.0,
        })
    }

    /// What this cluster calls an address that pods of the destination use.
    pub fn name_here(
        &self,
        ip: IpAddr,
        endpoint: impl FnOnce(ExternalIp) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        Some(match self.locate_from_there(ip, endpoint)? {
            Location::There(pod) => pod.name.0,
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
    use crate::translate::NamedNetwork;

    fn none(_: IpAddr) -> Result<ExternalIp, NotInNetwork> {
        panic!("a pod needs no address of the external network")
    }

    #[test]
    fn a_pod_of_this_cluster_goes_by_the_name_of_its_network_over_there() {
        assert_eq!(networks().name_there(ip("10.0.7.7"), none), Ok(ip("10.80.7.7")));
        assert_eq!(networks().name_here(ip("10.80.7.7"), |_| None), Some(ip("10.0.7.7")));
    }

    #[test]
    fn a_pod_of_the_destination_goes_by_its_own_address() {
        assert_eq!(networks().name_there(ip("10.2.7.7"), none), Ok(ip("10.0.7.7")));
        assert_eq!(networks().name_here(ip("10.0.7.7"), |_| None), Some(ip("10.2.7.7")));
    }

    #[test]
    fn anything_else_goes_by_an_external_address() {
        let (endpoint, external) = (ip("192.0.2.9"), ExternalIp(ip("10.1.0.4")));
        assert_eq!(networks().locate(endpoint), Location::Elsewhere(endpoint));
        let to = |ip| if ip == endpoint { Ok(external) } else { none(ip) };
        assert_eq!(networks().name_there(endpoint, to), Ok(ip("10.81.0.4")));
        let from = |ip| (ip == external).then_some(endpoint);
        assert_eq!(networks().name_here(ip("10.81.0.4"), from), Some(endpoint));
        assert_eq!(networks().name_here(ip("10.81.0.5"), from), None, "it stands for nothing");
    }

    #[test]
    fn an_external_address_of_another_network_is_an_error_that_names_it() {
        let wrong = |_| Ok::<_, NotInNetwork>(ExternalIp(ip("10.9.0.4")));
        let error = networks().name_there(ip("192.0.2.9"), wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.9.0.4 is not in the network 10.1.0.0/16, so it can't be mapped to 10.81.0.0/16"
        );
    }

    #[test]
    fn a_pod_of_the_destination_comes_first() {
        let networks = Networks {
            local_pods: NamedNetwork::new(cidr("10.2.0.0/15"), cidr("10.80.0.0/15")).unwrap(),
            ..networks()
        };
        assert!(matches!(networks.locate(ip("10.2.7.7")), Location::There(_)));
        assert!(matches!(networks.locate(ip("10.3.7.7")), Location::Here(_)));
    }

    #[test]
    fn nothing_is_known_of_what_only_the_destination_reaches() {
        for only_there in ["192.0.2.9", "10.2.0.1", "fd00::1"] {
            assert_eq!(networks().locate_from_there(ip(only_there), |_| panic!()), None);
        }
    }

    proptest! {
        #[test]
        fn a_pod_has_the_way_back_from_either_side(
            Peering { here, .. } in peering(),
            host: u128,
            is_there: bool,
        ) {
            let network = if is_there { here.remote_pods.name() } else { here.local_pods.real() };
            let known_here = in_network(network, host);
            let there = here.name_there(known_here, none).unwrap();
            prop_assert_eq!(here.name_here(there, |_| None), Some(known_here));
            prop_assert_eq!(
                here.locate_from_there(there, |_| None),
                Some(here.locate(known_here))
            );
        }

        #[test]
        fn an_endpoint_has_the_way_back_from_either_side(
            Peering { here, .. } in peering(),
            endpoint: IpAddr,
            host: u128,
        ) {
            prop_assume!(here.locate(endpoint) == Location::Elsewhere(endpoint));
            let external = ExternalIp(in_network(here.local_external.real(), host));
            let there = here.name_there(endpoint, |_| Ok::<_, NotInNetwork>(external)).unwrap();
            let from = |ip| (ip == external).then_some(endpoint);
            prop_assert_eq!(here.name_here(there, from), Some(endpoint));
        }

        #[test]
        fn what_one_side_says_of_a_pod_the_other_says_too(
            Peering { here, there } in peering(),
            host: u128,
        ) {
            let known_here = in_network(here.local_pods.real(), host);
            let known_there = here.name_there(known_here, none).unwrap();
            prop_assert_eq!(there.name_there(known_there, none), Ok(known_here));
            let (Location::Here(at_home), Location::There(from_there)) =
                (here.locate(known_here), there.locate(known_there))
            else {
                panic!("it is where it is")
            };
            prop_assert_eq!(at_home, from_there);
        }
    }
}
