//! The networks of and for each peer.

use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};

use super::{Ipam, IpamError, StorageShard};
use crate::translate::{NamedNetwork, nat, overlap, same_size};

impl Ipam {
    /// Chooses what a peer's networks are called here: as the peer calls them, unless that
    /// overlaps anything in use or is in none of the pools. The same networks keep their names.
    pub fn reserve(
        &mut self,
        cluster: &ClusterId,
        pods: Cidr,
        external: Cidr,
    ) -> Result<&Subnets, IpamError> {
        let is_same = |subnets: &Subnets| {
            subnets.remote_pod_cidr == Some(pods) && subnets.remote_external_cidr == Some(external)
        };
        if !self.clusters.get(cluster).is_some_and(is_same) {
            self.release(cluster);
            let mut taken = self.taken();
            let pod_name = taken.choose(pods, &self.config.pools)?;
            taken.extend([pod_name]);
            let external_name = taken.choose(external, &self.config.pools)?;
            let subnets = Subnets {
                remote_pod_cidr: Some(pods),
                remote_external_cidr: Some(external),
                remote_nat_pod_cidr: nat(pods, pod_name),
                remote_nat_external_cidr: nat(external, external_name),
                ..Subnets::default()
            };
            self.clusters.insert(cluster.clone(), subnets);
            self.changes.storage.insert(StorageShard::Networks);
        }
        Ok(&self.clusters[cluster])
    }

    /// Notes what a peer calls this cluster's networks.
    pub fn set_local_names(
        &mut self,
        cluster: &ClusterId,
        pods: NatCidr,
        external: NatCidr,
    ) -> Result<(), IpamError> {
        let subnets = self
            .clusters
            .get_mut(cluster)
            .ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
        for (real, name) in [(self.config.pod_cidr, pods), (self.external_cidr, external)] {
            NamedNetwork::from_nat(real, name)?;
        }
        let (pods, external) = (Some(pods), Some(external));
        if subnets.local_nat_pod_cidr != pods {
            subnets.local_nat_pod_cidr = pods;
            self.changes.storage.insert(StorageShard::Networks);
        }
        if subnets.local_nat_external_cidr != external {
            subnets.local_nat_external_cidr = external;
            self.changes.storage.insert(StorageShard::Networks);
            for shard in self.endpoints.shards_of(cluster) {
                self.changes.mapping(cluster, shard);
            }
        }
        Ok(())
    }

    /// Frees whatever there is of and for a peer.
    pub fn release(&mut self, cluster: &ClusterId) {
        if self.clusters.remove(cluster).is_none() {
            return;
        }
        self.changes.storage.insert(StorageShard::Networks);
        for shard in self.endpoints.remove_cluster(cluster) {
            self.changes.endpoint(shard);
            self.changes.mapping(cluster, shard);
        }
    }

    /// Takes over what was stored, if it does not overlap what is there.
    pub(super) fn restore_subnets(&mut self, cluster: &ClusterId, subnets: &Subnets) {
        let (Some(remote_pod), Some(remote_external)) =
            (subnets.remote_pod_cidr, subnets.remote_external_cidr)
        else {
            return;
        };
        let pods = subnets.remote_nat_pod_cidr.or(remote_pod);
        let external = subnets.remote_nat_external_cidr.or(remote_external);
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr];
        let names = self.clusters.values().flat_map(|other| {
            [other.our_name_for_pods(), other.our_name_for_external()].into_iter().flatten()
        });
        let is_free = own
            .into_iter()
            .chain(names)
            .all(|taken| !overlap(taken, pods) && !overlap(taken, external));
        let fits = same_size(remote_pod, pods) && same_size(remote_external, external);
        if !is_free || !fits || overlap(pods, external) || self.clusters.contains_key(cluster) {
            return;
        }
        let mut subnets = subnets.clone();
        if !is_name_for(subnets.local_nat_pod_cidr, self.config.pod_cidr)
            || !is_name_for(subnets.local_nat_external_cidr, self.external_cidr)
        {
            subnets.local_nat_pod_cidr = None;
            subnets.local_nat_external_cidr = None;
        }
        self.clusters.insert(cluster.clone(), subnets);
    }
}

fn is_name_for(name: Option<NatCidr>, real: Cidr) -> bool {
    name.is_some_and(|name| same_size(name.or(real), real))
}
