//! The networks of and for each peer.

use std::net::IpAddr;

use jiff::Timestamp;
use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};

use super::{IpamError, IpamState, Part, names, pool::Taken};
use crate::translate::{NamedNetwork, nat, overlap, same_size};

impl IpamState {
    /// Chooses what a peer's networks are called here: as the peer calls them, unless that
    /// overlaps anything in use, rests after another peer, or is a network of the world. The same
    /// networks keep their names as long as these are free, and get them back after they were
    /// released. Where there is no room all stays as it was.
    pub fn reserve(
        &mut self,
        cluster: &ClusterId,
        pods: Cidr,
        external: Cidr,
        now: Timestamp,
    ) -> Result<&Subnets, IpamError> {
        let before = self.clusters.get(cluster);
        let kept = |real: Option<Cidr>, name: Option<Cidr>, wanted: Cidr| {
            if real == Some(wanted) { name } else { None }
        };
        let known_pods =
            before.and_then(|it| kept(it.remote_pod_cidr, it.translated_pod_cidr(), pods));
        let known_external = before
            .and_then(|it| kept(it.remote_external_cidr, it.translated_external_cidr(), external));
        let mut taken = self.taken(cluster, now);
        let choose = |taken: &Taken, known, wanted| {
            let had = self.names.that_were(cluster, wanted);
            taken.keep_or_choose(known, &had, wanted, &self.config.pools)
        };
        let pod_name = choose(&taken, known_pods, pods)?;
        taken.extend([pod_name]);
        let external_name = choose(&taken, known_external, external)?;
        let subnets = Subnets {
            remote_pod_cidr: Some(pods),
            remote_external_cidr: Some(external),
            remote_nat_pod_cidr: nat(pods, pod_name),
            remote_nat_external_cidr: nat(external, external_name),
            ..before.cloned().unwrap_or_default()
        };
        if before != Some(&subnets) {
            self.check_names(cluster, &subnets, now)?;
            let before = self.clusters.insert(cluster.clone(), subnets.clone());
            let before = names_of(&before.unwrap_or_default());
            self.begin(cluster, &names_of(&subnets), &before, now);
            self.free(cluster, before, now);
            self.changes.parts.insert(Part::Networks(cluster.clone()));
        }
        Ok(&self.clusters[cluster])
    }

    /// Whether a peer may be called so: it does not have many names that rest.
    fn check_names(
        &self,
        cluster: &ClusterId,
        subnets: &Subnets,
        now: Timestamp,
    ) -> Result<(), IpamError> {
        let after = names_of(subnets);
        let before = self.clusters.get(cluster).map(names_of).unwrap_or_default();
        let is_left = |name: &Cidr| !after.iter().any(|(it, _)| it == name);
        let resting = self.names.of(cluster).into_iter();
        let resting = resting.filter(|(name, it)| is_left(name) && it.until.0 > now);
        let resting: Vec<_> = resting.map(|(_, resting)| names::left(&resting, now)).collect();
        let freed = before.iter().filter(|(name, _)| is_left(name)).count();
        if resting.len() + freed + after.len() <= names::MOST {
            return Ok(());
        }
        let first = resting.iter().min().copied().unwrap_or(0);
        Err(IpamError::TooManyNames { peer: cluster.clone(), resting: resting.len(), first })
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
        if let Some(before) = self.clusters.remove(cluster) {
            self.changes.parts.insert(Part::Networks(cluster.clone()));
            self.changes.parts.extend(self.external.remove_cluster(cluster, now));
            self.free(cluster, names_of(&before), now);
            // Where there is no other one it stays: nobody uses it.
            let _ = self.settle_external();
        }
    }

    /// A peer gets these names: what was an endpoint's address there, but for those that the peer had
    /// `before`, is one of the peer's from now on.
    fn begin(&mut self, cluster: &ClusterId, after: &[Name], before: &[Name], now: Timestamp) {
        let was_theirs = |ip| before.iter().any(|(name, _)| name.net().contains(&ip));
        for (name, _) in after {
            self.names.end(cluster, *name);
            self.changes.parts.extend(self.external.unmap_within(*name, now, was_theirs));
        }
        // What has rested may be what is taken.
        self.changes.parts.extend(self.names.wake(now));
    }

    /// A peer had these names: those that nobody has any more rest, and no address in them is an
    /// endpoint's.
    fn free(&mut self, cluster: &ClusterId, before: Vec<Name>, now: Timestamp) {
        for (name, of) in before {
            let mut used = self.clusters.values().flat_map(names_of);
            if used.all(|(used, _)| used != name) {
                self.names.rest(cluster, name, of, now);
                self.leave(name, now);
            }
        }
    }

    /// The endpoints in a name that rests, but for those of peers that there are, are reflected to
    /// nobody any more.
    pub(super) fn leave(&mut self, name: Cidr, now: Timestamp) {
        let used: Vec<_> = self.clusters.values().flat_map(names_of).collect();
        let stays = |ip| used.iter().any(|(name, _)| name.net().contains(&ip));
        self.changes.parts.extend(self.external.unmap_within(name, now, stays));
    }

    /// Whether an address is one of a peer, as this cluster calls it.
    pub(super) fn is_of_peer(&self, ip: IpAddr) -> bool {
        self.clusters.values().flat_map(names_of).any(|(name, _)| name.net().contains(&ip))
    }

    /// Takes over what was stored, if it does not overlap what is there; else its names rest. What the
    /// peer calls this cluster counts if it was said of the networks that this cluster has.
    pub(super) fn restore_subnets(
        &mut self,
        cluster: &ClusterId,
        subnets: &Subnets,
        is_of_us: bool,
        now: Timestamp,
    ) {
        if !self.is_restorable(cluster, subnets) {
            for (name, of) in names_of(subnets) {
                self.names.rest(cluster, name, of, now);
            }
            return;
        }
        let mut subnets = subnets.clone();
        if !is_of_us
            || !is_name_for(subnets.local_nat_pod_cidr, self.config.pod_cidr)
            || !is_name_for(subnets.local_nat_external_cidr, self.external_cidr())
        {
            subnets.local_nat_pod_cidr = None;
            subnets.local_nat_external_cidr = None;
        }
        self.clusters.insert(cluster.clone(), subnets);
    }

    fn is_restorable(&self, cluster: &ClusterId, subnets: &Subnets) -> bool {
        let (Some(remote_pod), Some(remote_external)) =
            (subnets.remote_pod_cidr, subnets.remote_external_cidr)
        else {
            return false;
        };
        let pods = subnets.remote_nat_pod_cidr.or(remote_pod);
        let external = subnets.remote_nat_external_cidr.or(remote_external);
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr()];
        let names = self.clusters.values().flat_map(names_of).map(|(name, _)| name);
        let is_free = own
            .into_iter()
            .chain(names)
            .all(|taken| !overlap(taken, pods) && !overlap(taken, external));
        let fits = same_size(remote_pod, pods) && same_size(remote_external, external);
        is_free && fits && !overlap(pods, external) && !self.clusters.contains_key(cluster)
    }
}

/// What a network of a peer is called here, and what it is.
type Name = (Cidr, Cidr);

fn names_of(subnets: &Subnets) -> Vec<Name> {
    let pods = subnets.translated_pod_cidr().zip(subnets.remote_pod_cidr);
    let external = subnets.translated_external_cidr().zip(subnets.remote_external_cidr);
    pods.into_iter().chain(external).collect()
}

fn is_name_for(name: Option<NatCidr>, real: Cidr) -> bool {
    name.is_some_and(|name| same_size(name.or(real), real))
}
