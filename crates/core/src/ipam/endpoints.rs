//! Endpoints that are reflected to other clusters, and the address that each has there.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use jiff::Timestamp;
use tombolo_api::{Cidr, ClusterId};

use super::{Ipam, IpamError, MappingOwner, Part, names, pool};
use crate::translate::{NamedNetwork, map_ip_to_network};

impl Ipam {
    /// Refuses an address of another family than the networks of `cluster`, which has to have some.
    pub fn check_family(&self, cluster: &ClusterId, ip: IpAddr) -> Result<(), IpamError> {
        let pods = self.subnets(cluster).and_then(|subnets| subnets.remote_pod_cidr);
        let pods = pods.ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
        if pods.net().network().is_ipv4() == ip.is_ipv4() {
            return Ok(());
        }
        let why = "it is of another family than the networks of that cluster";
        Err(IpamError::NotAnEndpoint { ip, why })
    }

    /// The address under which pods of `cluster` reach an endpoint of this cluster. One that is
    /// neither a pod of this cluster nor runs over there gets an address of the external network,
    /// the same for all clusters, until each owner has given it back.
    pub fn map_endpoint_for(
        &mut self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        ip: IpAddr,
        now: Timestamp,
    ) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.name_there(ip, |ip| {
            check_endpoint(ip, self.external_cidr())?;
            self.check_peer(ip, now)?;
            self.external.map(cluster, ip, owner, now, &mut self.changes.parts)
        })
    }

    /// Whether an address is of no peer that has just gone: until its name has rested, whoever still
    /// asks for one of its pods would get to another peer's later.
    fn check_peer(&mut self, ip: IpAddr, now: Timestamp) -> Result<(), IpamError> {
        let Some((peer, name, resting)) = self.names.around(ip) else { return Ok(()) };
        if self.is_of_peer(ip) {
            return Ok(());
        }
        let peer = peer.clone();
        if resting.until.0 > now {
            return Err(IpamError::PeerGone { ip, name, peer, left: names::left(resting, now) });
        }
        // What is given here is not taken back at the next start, as it were if that rested still.
        self.names.end(&peer, name);
        self.changes.parts.insert(Part::Networks(peer));
        self.check_peer(ip, now)
    }

    /// An owner does not need the address of an endpoint for `cluster` any more. What others have
    /// asked for stays theirs.
    pub fn unmap_endpoint_for(
        &mut self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        ip: IpAddr,
        now: Timestamp,
    ) {
        self.changes.parts.extend(self.external.unmap(cluster, ip, owner, now));
    }

    /// The endpoints, in order, that an owner has mapped for `cluster`: at most so many, after this
    /// one.
    pub fn endpoints_of(
        &self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        after: Option<IpAddr>,
        most: usize,
    ) -> Vec<IpAddr> {
        self.external.mapped_by(cluster, owner, after).take(most).collect()
    }

    /// Addresses that have rested can be given again: at most so many. So can names.
    pub fn wake(&mut self, now: Timestamp, most: usize) {
        self.external.wake(now, most, &mut self.changes.parts);
        self.changes.parts.extend(self.names.wake(now));
    }

    /// When the next address or name has rested, if one rests.
    pub fn next_to_wake(&self) -> Option<Timestamp> {
        [self.external.next_to_wake(), self.names.next_to_wake()].into_iter().flatten().min()
    }

    /// The address that `ip`, as this cluster knows it, has for pods of `cluster`.
    pub fn remote_pod_ip(&self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.name_there(ip, |ip| {
            let external = self.external.get(cluster, ip);
            external.ok_or_else(|| IpamError::NotMapped { ip, cluster: cluster.clone() })
        })
    }

    /// The address that a pod in `cluster`, known as `ip` over there, has in this cluster.
    pub fn home_pod_ip(&self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        let unknown = || IpamError::UnknownCluster(cluster.clone());
        let subnets = self.subnets(cluster).ok_or_else(unknown)?;
        let pods = subnets.remote_pod_cidr.ok_or_else(unknown)?;
        map_ip_to_network(ip, pods, subnets.remote_nat_pod_cidr.or(pods))
            .map_err(|_| IpamError::NotAPodThere { ip, cluster: cluster.clone(), pods })
    }

    /// The endpoints in the places of these parts that are reflected to `cluster`, and their
    /// addresses there.
    pub(super) fn mappings_of(
        &self,
        cluster: &ClusterId,
        parts: Range<u32>,
    ) -> BTreeMap<IpAddr, IpAddr> {
        let Some(subnets) = self.subnets(cluster) else { return BTreeMap::new() };
        let Some(name) = subnets.local_nat_external_cidr else { return BTreeMap::new() };
        let Ok(named) = NamedNetwork::from_nat(self.external_cidr(), name) else {
            return BTreeMap::new();
        };
        let used = self.external.in_parts(parts).filter(|(_, given)| given.is_used_by(cluster));
        used.filter_map(|(external, given)| {
            Some((given.ip, named.translate(external.real()).ok()?.0))
        })
        .collect()
    }
}

pub(super) fn check_endpoint(ip: IpAddr, external: Cidr) -> Result<(), IpamError> {
    let why = if let Some(why) = pool::special(ip) {
        why
    } else if ip.is_ipv4() != external.net().network().is_ipv4() {
        "it is of another family than the external network"
    } else if external.net().contains(&ip) {
        "it is in this cluster's external network, whose addresses only other clusters use"
    } else {
        return Ok(());
    };
    Err(IpamError::NotAnEndpoint { ip, why })
}
