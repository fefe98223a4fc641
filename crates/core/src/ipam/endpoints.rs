//! Endpoints that are reflected to other clusters, and the address that each has there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tombolo_api::{Cidr, ClusterId};

use super::{Clusters, Ipam, IpamError};
use crate::translate::{ExternalIp, first_host, map_ip_to_network};

/// How many addresses, one after the other, share an object.
const SHARD_SIZE: u128 = 128;

impl Ipam {
    /// The address under which pods of `cluster` reach an endpoint of this cluster. One that is
    /// neither a pod of this cluster nor runs over there gets an address of the external network,
    /// the same for all clusters.
    pub fn map_endpoint(&mut self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.name_there(ip, |ip| {
            check_endpoint(ip, self.external_cidr)?;
            let (external, is_new) = self.endpoints.map(cluster, ip)?;
            if is_new {
                let shard = self.endpoints.shard(external);
                self.changes.endpoint(shard);
                self.changes.mapping(cluster, shard);
            }
            Ok(ExternalIp(external))
        })
    }

    /// The endpoint is no longer reflected to `cluster`.
    pub fn unmap_endpoint(&mut self, cluster: &ClusterId, ip: IpAddr) {
        if let Some(external) = self.endpoints.unmap(cluster, ip) {
            let shard = self.endpoints.shard(external);
            self.changes.endpoint(shard);
            self.changes.mapping(cluster, shard);
        }
    }

    /// The address that `ip`, as this cluster knows it, has for pods of `cluster`.
    pub fn remote_pod_ip(&self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.name_there(ip, |ip| {
            let external = self.endpoints.get(cluster, ip).map(ExternalIp);
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

    /// The endpoints of one shard that are reflected to `cluster`, and their addresses there.
    pub(super) fn mappings_of(&self, cluster: &ClusterId, shard: u32) -> BTreeMap<IpAddr, IpAddr> {
        let Some(subnets) = self.subnets(cluster) else { return BTreeMap::new() };
        let Some(name) = subnets.local_nat_external_cidr else { return BTreeMap::new() };
        let name = name.or(self.external_cidr);
        self.endpoints
            .in_shard(shard)
            .filter(|(_, endpoint)| endpoint.clusters.contains(cluster))
            .filter_map(|(ip, endpoint)| {
                Some((*ip, map_ip_to_network(endpoint.external, self.external_cidr, name).ok()?))
            })
            .collect()
    }
}

/// Endpoints that have an address of the external network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoints {
    network: Cidr,
    by_ip: BTreeMap<IpAddr, Endpoint>,
    by_external: BTreeMap<IpAddr, IpAddr>,
    /// Position of the address given last: the next one is looked for after it, so that an
    /// address that was freed is not given to another endpoint at once.
    pub(super) last: u128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) external: IpAddr,
    pub(super) clusters: Clusters,
}

impl Endpoints {
    pub(super) fn new(network: Cidr) -> Self {
        Self { network, by_ip: BTreeMap::new(), by_external: BTreeMap::new(), last: 0 }
    }

    /// Takes over what was stored, if it can be right.
    pub(super) fn restore(&mut self, ip: IpAddr, external: IpAddr, clusters: Clusters) {
        let is_usable = self.network.net().contains(&external)
            && self.positions().contains(&self.position(external))
            && check_endpoint(ip, self.network).is_ok();
        let is_free = !self.by_ip.contains_key(&ip) && !self.by_external.contains_key(&external);
        if is_usable && is_free && !clusters.is_empty() {
            self.last = self.last.max(self.position(external));
            self.by_external.insert(external, ip);
            self.by_ip.insert(ip, Endpoint { external, clusters });
        }
    }

    /// The endpoint's address, and whether it has one for this cluster only now.
    fn map(&mut self, cluster: &ClusterId, ip: IpAddr) -> Result<(IpAddr, bool), IpamError> {
        if let Some(endpoint) = self.by_ip.get_mut(&ip) {
            let is_new = endpoint.clusters.insert(cluster.clone());
            return Ok((endpoint.external, is_new));
        }
        let external = self.allocate().ok_or(IpamError::ExternalFull(self.network))?;
        self.by_external.insert(external, ip);
        self.by_ip.insert(ip, Endpoint { external, clusters: [cluster.clone()].into() });
        Ok((external, true))
    }

    /// The address that the endpoint no longer has in this cluster, if it had one.
    fn unmap(&mut self, cluster: &ClusterId, ip: IpAddr) -> Option<IpAddr> {
        let endpoint = self.by_ip.get_mut(&ip)?;
        if !endpoint.clusters.remove(cluster) {
            return None;
        }
        let external = endpoint.external;
        if endpoint.clusters.is_empty() {
            self.by_ip.remove(&ip);
            self.by_external.remove(&external);
        }
        Some(external)
    }

    fn get(&self, cluster: &ClusterId, ip: IpAddr) -> Option<IpAddr> {
        let endpoint = self.by_ip.get(&ip)?;
        endpoint.clusters.contains(cluster).then_some(endpoint.external)
    }

    /// Takes a cluster out of all endpoints, and says which shards that changes.
    pub(super) fn remove_cluster(&mut self, cluster: &ClusterId) -> BTreeSet<u32> {
        let concerned = |endpoint: &Endpoint| endpoint.clusters.contains(cluster);
        let ips: Vec<_> =
            self.by_ip.iter().filter(|(_, it)| concerned(it)).map(|(ip, _)| *ip).collect();
        let mut shards = BTreeSet::new();
        for ip in ips {
            if let Some(external) = self.unmap(cluster, ip) {
                shards.insert(self.shard(external));
            }
        }
        shards
    }

    pub(super) fn shards_of(&self, cluster: &ClusterId) -> BTreeSet<u32> {
        self.by_ip
            .values()
            .filter(|endpoint| endpoint.clusters.contains(cluster))
            .map(|endpoint| self.shard(endpoint.external))
            .collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.by_ip.values()
    }

    pub(super) fn in_shard(&self, shard: u32) -> impl Iterator<Item = (&IpAddr, &Endpoint)> {
        let first = u128::from(shard) * SHARD_SIZE;
        let range = self.address(first)..=self.address(first + (SHARD_SIZE - 1));
        self.by_external.range(range).map(|(_, ip)| (ip, &self.by_ip[ip]))
    }

    /// Addresses that are given one after the other are in the same shard, so that those given
    /// together are written together.
    pub(super) fn shard(&self, external: IpAddr) -> u32 {
        u32::try_from(self.position(external) / SHARD_SIZE).unwrap_or(u32::MAX)
    }

    fn allocate(&mut self) -> Option<IpAddr> {
        let positions = self.positions();
        if self.by_external.len() as u128 > *positions.end() - *positions.start() {
            return None;
        }
        let is_free = |position: &u128| !self.by_external.contains_key(&self.address(*position));
        let after = (self.last + 1).max(*positions.start())..=*positions.end();
        let position = after.chain(positions).find(is_free)?;
        self.last = position;
        Some(self.address(position))
    }

    /// What can be given: not the network's own address, not the first host's, which stands for
    /// this cluster itself, and not the broadcast address.
    fn positions(&self) -> std::ops::RangeInclusive<u128> {
        let bits = self.network.net().max_prefix_len() - self.network.net().prefix_len();
        let size = 1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX);
        self.position(first_host(self.network)) + 1..=size.saturating_sub(2)
    }

    fn position(&self, external: IpAddr) -> u128 {
        bits(external) - bits(self.network.net().network())
    }

    fn address(&self, position: u128) -> IpAddr {
        let last = bits(self.network.net().broadcast());
        let bits = bits(self.network.net().network()).saturating_add(position).min(last);
        match self.network.net().network() {
            IpAddr::V4(_) => Ipv4Addr::from(bits as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(bits).into(),
        }
    }
}

fn check_endpoint(ip: IpAddr, external: Cidr) -> Result<(), IpamError> {
    let why = if ip.is_unspecified() {
        "it is unspecified"
    } else if ip.is_loopback() {
        "it is a loopback address"
    } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        "it is a group of hosts"
    } else if ip.is_ipv4() != external.net().network().is_ipv4() {
        "it is of another family than the external network"
    } else if external.net().contains(&ip) {
        "it is in this cluster's external network, whose addresses only other clusters use"
    } else {
        return Ok(());
    };
    Err(IpamError::NotAnEndpoint { ip, why })
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}
