//! Mapping of endpoints that are reflected to other clusters.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use jiff::Timestamp;
use tombolo_api::{Cidr, ClusterId};

use super::{IpamError, IpamState, MappingOwner, StorageShard, cidr_quarantine, pool};
use crate::translate::{CidrTranslation, map_ip_to_network};

impl IpamState {
    /// Refuses an unknown cluster, and an address of another family than the CIDRs of `cluster`.
    pub fn check_family(&self, cluster: &ClusterId, ip: IpAddr) -> Result<(), IpamError> {
        let pods = self.subnets(cluster).and_then(|subnets| subnets.remote_pod_cidr);
        let pods = pods.ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
        if pods.net().network().is_ipv4() == ip.is_ipv4() {
            return Ok(());
        }
        let why = "it is of another family than the CIDRs of that cluster";
        Err(IpamError::NotAnEndpoint { ip, why })
    }

    /// The address by which pods of `cluster` reach an endpoint of this cluster. An endpoint that
    /// is a pod of neither cluster is allocated an address of the ExternalCIDR, the same for all
    /// clusters, until each owner has unmapped it.
    pub fn map_endpoint_for(
        &mut self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        ip: IpAddr,
        now: Timestamp,
    ) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.remote_address(ip, |ip| {
            check_endpoint(ip, self.external_cidr())?;
            self.check_peer(ip, now)?;
            self.external.map(cluster, ip, owner, now, &mut self.changes.shards)
        })
    }

    /// Refuses addresses in a quarantined CIDR: a mapping to a pod of a former peer would lead to a
    /// pod of the next peer with that CIDR.
    fn check_peer(&mut self, ip: IpAddr, now: Timestamp) -> Result<(), IpamError> {
        let Some((peer, cidr, quarantined)) = self.quarantine.containing(ip) else {
            return Ok(());
        };
        if self.is_of_peer(ip) {
            return Ok(());
        }
        let peer = peer.clone();
        if quarantined.until.0 > now {
            let left = cidr_quarantine::remaining_seconds(quarantined, now);
            return Err(IpamError::PeerGone { ip, cidr, peer, left });
        }
        // If the quarantine were still stored, the next start would drop this mapping.
        self.quarantine.remove(&peer, cidr);
        self.changes.shards.insert(StorageShard::Networks(peer));
        self.check_peer(ip, now)
    }

    /// Removes an owner from the mapping of an endpoint for `cluster`. The mapping exists until its
    /// last owner is removed.
    pub fn unmap_endpoint_for(
        &mut self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        ip: IpAddr,
        now: Timestamp,
    ) {
        self.changes.shards.extend(self.external.unmap(cluster, ip, owner, now));
    }

    /// The endpoints that an owner has mapped for `cluster`, in order: at most `most`, only those
    /// greater than `after`.
    pub fn endpoints_of(
        &self,
        owner: &MappingOwner,
        cluster: &ClusterId,
        after: Option<IpAddr>,
        most: usize,
    ) -> Vec<IpAddr> {
        self.external.mapped_by(cluster, owner, after).take(most).collect()
    }

    /// Ends the quarantine of expired CIDRs and of at most `most` expired addresses.
    pub fn expire(&mut self, now: Timestamp, most: usize) {
        self.external.expire(now, most, &mut self.changes.shards);
        self.changes.shards.extend(self.quarantine.expire(now));
    }

    /// When the next quarantine expires.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        [self.external.next_expiry(), self.quarantine.next_expiry()].into_iter().flatten().min()
    }

    /// The address by which pods of `cluster` reach `ip`, an address as seen in this cluster.
    pub fn remote_pod_ip(&self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        self.networks(cluster)?.remote_address(ip, |ip| {
            let external = self.external.get(cluster, ip);
            external.ok_or_else(|| IpamError::NotMapped { ip, cluster: cluster.clone() })
        })
    }

    /// The address in this cluster of the pod with the address `ip` in `cluster`.
    pub fn home_pod_ip(&self, cluster: &ClusterId, ip: IpAddr) -> Result<IpAddr, IpamError> {
        let unknown = || IpamError::UnknownCluster(cluster.clone());
        let subnets = self.subnets(cluster).ok_or_else(unknown)?;
        let pods = subnets.remote_pod_cidr.ok_or_else(unknown)?;
        map_ip_to_network(ip, pods, subnets.remote_nat_pod_cidr.or(pods))
            .map_err(|_| IpamError::NotAPodThere { ip, cluster: cluster.clone(), pods })
    }

    /// The endpoints of these shards that are mapped for `cluster`, with their addresses there.
    pub(super) fn mappings_of(
        &self,
        cluster: &ClusterId,
        shards: Range<u32>,
    ) -> BTreeMap<IpAddr, IpAddr> {
        let Some(subnets) = self.subnets(cluster) else { return BTreeMap::new() };
        let Some(nat) = subnets.local_nat_external_cidr else { return BTreeMap::new() };
        let Ok(translation) = CidrTranslation::from_nat(self.external_cidr(), nat) else {
            return BTreeMap::new();
        };
        let used = self.external.in_shards(shards);
        used.filter(|(_, allocation)| allocation.is_used_by(cluster))
            .filter_map(|(external, allocation)| {
                Some((allocation.ip, translation.translate(external.real()).ok()?.0))
            })
            .collect()
    }
}

pub(super) fn check_endpoint(ip: IpAddr, external: Cidr) -> Result<(), IpamError> {
    let why = if let Some(why) = pool::special(ip) {
        why
    } else if ip.is_ipv4() != external.net().network().is_ipv4() {
        "it is of another family than this cluster's ExternalCIDR"
    } else if external.net().contains(&ip) {
        "it is in this cluster's ExternalCIDR, whose addresses only other clusters use"
    } else {
        return Ok(());
    };
    Err(IpamError::NotAnEndpoint { ip, why })
}
