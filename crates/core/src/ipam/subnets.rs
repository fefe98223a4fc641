//! The networks of and for each peer.

use jiff::Timestamp;
use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};

use super::{Ipam, IpamError, Part};
use crate::translate::{NamedNetwork, nat, overlap, same_size};

impl Ipam {
    /// Chooses what a peer's networks are called here: as the peer calls them, unless that
    /// overlaps anything in use or is a network of the world. The same networks keep their names
    /// as long as these are free. Where there is no room all stays as it was.
    pub fn reserve(
        &mut self,
        cluster: &ClusterId,
        pods: Cidr,
        external: Cidr,
    ) -> Result<&Subnets, IpamError> {
        let before = self.clusters.get(cluster);
        let kept = |real: Option<Cidr>, name: Option<Cidr>, wanted: Cidr| {
            if real == Some(wanted) { name } else { None }
        };
        let known_pods =
            before.and_then(|it| kept(it.remote_pod_cidr, it.our_name_for_pods(), pods));
        let known_external = before
            .and_then(|it| kept(it.remote_external_cidr, it.our_name_for_external(), external));
        let mut taken = self.taken(cluster);
        let pod_name = taken.keep_or_choose(known_pods, pods, &self.config.pools)?;
        taken.extend([pod_name]);
        let external_name = taken.keep_or_choose(known_external, external, &self.config.pools)?;
        let subnets = Subnets {
            remote_pod_cidr: Some(pods),
            remote_external_cidr: Some(external),
            remote_nat_pod_cidr: nat(pods, pod_name),
            remote_nat_external_cidr: nat(external, external_name),
            ..before.cloned().unwrap_or_default()
        };
        if before != Some(&subnets) {
            let before = self.clusters.insert(cluster.clone(), subnets);
            self.note_freed(cluster, before.as_ref());
            self.changes.parts.insert(Part::Networks(cluster.clone()));
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
        let external_cidr = self.external_cidr();
        let subnets = self
            .clusters
            .get_mut(cluster)
            .ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
        for (real, name) in [(self.config.pod_cidr, pods), (external_cidr, external)] {
            NamedNetwork::from_nat(real, name)?;
        }
        let (pods, external) = (Some(pods), Some(external));
        let networks = || Part::Networks(cluster.clone());
        if subnets.local_nat_pod_cidr != pods {
            subnets.local_nat_pod_cidr = pods;
            self.changes.parts.insert(networks());
        }
        if subnets.local_nat_external_cidr != external {
            subnets.local_nat_external_cidr = external;
            self.changes.parts.insert(networks());
            let parts = self.external.all().map(|(part, ..)| part);
            self.changes.parts.extend(parts.filter(|part| part.cluster() == cluster));
        }
        Ok(())
    }

    /// Frees whatever there is of and for a peer.
    pub fn release(&mut self, cluster: &ClusterId, now: Timestamp) {
        let before = self.clusters.remove(cluster);
        if before.is_some() {
            self.note_freed(cluster, before.as_ref());
            self.changes.parts.insert(Part::Networks(cluster.clone()));
            self.changes.parts.extend(self.external.remove_cluster(cluster, now));
            // Where there is no other one it stays: nobody uses it.
            let _ = self.settle_external();
        }
    }

    fn note_freed(&mut self, cluster: &ClusterId, before: Option<&Subnets>) {
        let names = before.into_iter().flat_map(|subnets| {
            [subnets.our_name_for_pods(), subnets.our_name_for_external()].into_iter().flatten()
        });
        self.freed.extend(names.map(|name| (cluster.clone(), name)));
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
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr()];
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
            || !is_name_for(subnets.local_nat_external_cidr, self.external_cidr())
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
