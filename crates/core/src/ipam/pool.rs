//! The search for a free CIDR in the pools.

use std::{net::IpAddr, ops::RangeInclusive, sync::LazyLock};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tombolo_api::Cidr;

use super::{Config, IpamError};
use crate::translate::overlap;

/// The default pools: private networks (RFC 1918, RFC 4193).
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12", "fd00::/8"];

/// Other networks that are not public. A peer that uses them keeps them, but nothing is allocated
/// from them.
const LOCAL: [&str; 3] = ["100.64.0.0/10", "198.18.0.0/15", "fc00::/7"];

/// Networks with a special meaning on hosts. They are never allocated, and their addresses are not
/// mapped.
static SPECIAL: LazyLock<[(Cidr, &str); 9]> = LazyLock::new(|| {
    let link_local =
        "it is link-local: a different host on every node, such as a cloud's metadata service";
    [
        ("0.0.0.0/8", "it is unspecified"),
        ("127.0.0.0/8", "it is a loopback address"),
        ("169.254.0.0/16", link_local),
        ("224.0.0.0/4", "it is a multicast address"),
        ("240.0.0.0/4", "it is reserved, or used by the overlay between the nodes"),
        ("::/128", "it is unspecified"),
        ("::1/128", "it is a loopback address"),
        ("fe80::/10", link_local),
        ("ff00::/8", "it is a multicast address"),
    ]
    .map(|(text, why)| (text.parse().expect("a network"), why))
});

/// Prefix lengths of the ExternalCIDR: the first is preferred, longer ones are for full pools.
const EXTERNAL_PREFIXES: RangeInclusive<u8> = 16..=24;

/// The default pools and additional ones.
pub fn pools(additional: &[Cidr]) -> Vec<Cidr> {
    parse(&PRIVATE).chain(additional.iter().copied()).collect()
}

/// The assumed network of a node's address. Kubernetes does not report its prefix length.
pub fn node_network(ip: IpAddr) -> Cidr {
    let net = match ip {
        IpAddr::V4(ip) => Ipv4Net::new_assert(ip, 24).trunc().into(),
        IpAddr::V6(ip) => Ipv6Net::new_assert(ip, 64).trunc().into(),
    };
    IpNet::try_into(net).expect("it is truncated")
}

/// The meaning of an address in a special network.
pub(super) fn special(ip: IpAddr) -> Option<&'static str> {
    SPECIAL.iter().find(|(network, _)| network.net().contains(&ip)).map(|(_, why)| *why)
}

/// CIDRs in use and in quarantine.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    used: Vec<Cidr>,
    /// With the remaining seconds.
    quarantined: Vec<(Cidr, i64)>,
}

impl Taken {
    pub(super) fn new(own: &[Cidr], reserved: &[Cidr]) -> Self {
        let special = SPECIAL.iter().map(|(network, _)| network);
        let used = special.chain(own).chain(reserved).copied().collect();
        Self { used, quarantined: Vec::new() }
    }

    pub(super) fn extend(&mut self, cidrs: impl IntoIterator<Item = Cidr>) {
        self.used.extend(cidrs);
    }

    /// Adds quarantined CIDRs with the remaining seconds.
    pub(super) fn quarantine(&mut self, cidrs: impl IntoIterator<Item = (Cidr, i64)>) {
        self.quarantined.extend(cidrs);
    }

    /// The `current` translated CIDR of a network if no other cluster uses it, else a new one.
    pub(super) fn keep_or_choose(
        &self,
        current: Option<Cidr>,
        former: &[Cidr],
        wanted: Cidr,
        pools: &[Cidr],
    ) -> Result<Cidr, IpamError> {
        match current {
            Some(cidr) if !self.used.iter().any(|used| overlap(*used, cidr)) => Ok(cidr),
            _ => self.choose(former, wanted, pools),
        }
    }

    /// `wanted` itself if it is free and not public, else a free one of its `former` translated
    /// CIDRs, else the first free CIDR of its size. A peer that uses a public network must not make
    /// the real one unreachable.
    fn choose(&self, former: &[Cidr], wanted: Cidr, pools: &[Cidr]) -> Result<Cidr, IpamError> {
        let is_within = |pool: &Cidr| pool.net().contains(&wanted.net());
        let is_local = pools.iter().copied().chain(parse(&LOCAL)).any(|pool| is_within(&pool));
        if is_local && self.overlapping(wanted).is_none() {
            return Ok(wanted);
        }
        if let Some(cidr) = former.iter().find(|cidr| self.overlapping(**cidr).is_none()) {
            return Ok(*cidr);
        }
        let same_family = |pool: &&Cidr| is_same_family(**pool, wanted);
        pools
            .iter()
            .filter(same_family)
            .find_map(|pool| self.first_free(*pool, wanted.net().prefix_len()))
            .ok_or_else(|| self.no_room(wanted, pools))
    }

    fn no_room(&self, wanted: Cidr, pools: &[Cidr]) -> IpamError {
        let quarantined = self.quarantined.iter();
        let quarantined = quarantined.filter(|(cidr, _)| is_same_family(*cidr, wanted));
        let left = quarantined.map(|(_, left)| *left);
        IpamError::NoRoom {
            wanted,
            pools: pools.to_vec(),
            quarantined: left.clone().count(),
            first: left.min().unwrap_or(0),
        }
    }

    /// The first free CIDR with that prefix length.
    fn first_free(&self, pool: Cidr, prefix: u8) -> Option<Cidr> {
        if prefix < pool.net().prefix_len() {
            return None;
        }
        let mut candidate = network(pool.net().network(), prefix);
        while pool.net().contains(&candidate.net()) {
            let Some(obstacle) = self.overlapping(candidate) else { return Some(candidate) };
            let end = candidate.net().broadcast().max(obstacle.net().broadcast());
            candidate = network(after(end)?, prefix);
        }
        None
    }

    fn overlapping(&self, cidr: Cidr) -> Option<Cidr> {
        let quarantined = self.quarantined.iter().map(|(cidr, _)| cidr);
        self.used.iter().chain(quarantined).copied().find(|taken| overlap(*taken, cidr))
    }
}

/// Chooses this cluster's ExternalCIDR, of the address family of the PodCIDR.
pub(super) fn choose_external(config: &Config) -> Result<Cidr, IpamError> {
    let own = [config.pod_cidr, config.service_cidr];
    let taken = Taken::new(&own, &config.reserved);
    let pools = config.pools.iter().filter(|pool| is_same_family(**pool, config.pod_cidr));
    let prefixes = external_prefixes(config);
    prefixes
        .clone()
        .flat_map(|prefix| pools.clone().map(move |pool| (*pool, prefix)))
        .find_map(|(pool, prefix)| taken.first_free(pool, prefix))
        .ok_or_else(|| {
            let wanted = network(config.pod_cidr.net().network(), *prefixes.end());
            taken.no_room(wanted, &config.pools)
        })
}

/// Whether the ExternalCIDR can stay. While peers use it, its prefix length and reserved CIDRs do
/// not matter.
pub(super) fn is_external(network: Cidr, config: &Config, is_alone: bool) -> bool {
    let own = [config.pod_cidr, config.service_cidr];
    let has_size = external_prefixes(config).contains(&network.net().prefix_len());
    is_same_family(network, config.pod_cidr)
        && !own.into_iter().any(|own| overlap(own, network))
        && (!is_alone || has_size && !config.reserved.iter().any(|it| overlap(*it, network)))
}

/// The allowed prefix lengths of the ExternalCIDR: as many addresses in IPv6 as in IPv4.
fn external_prefixes(config: &Config) -> RangeInclusive<u8> {
    let more = config.pod_cidr.net().max_prefix_len() - 32;
    let (first, last) = match config.external_prefix {
        Some(prefix) => (prefix, prefix),
        None => (*EXTERNAL_PREFIXES.start(), *EXTERNAL_PREFIXES.end()),
    };
    first + more..=last + more
}

fn is_same_family(one: Cidr, other: Cidr) -> bool {
    one.net().max_prefix_len() == other.net().max_prefix_len()
}

fn network(ip: IpAddr, prefix: u8) -> Cidr {
    let net = IpNet::new(ip, prefix).expect("a prefix of the same family").trunc();
    net.try_into().expect("it is truncated")
}

fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}

fn parse(texts: &'static [&'static str]) -> impl Iterator<Item = Cidr> {
    texts.iter().map(|text| text.parse().expect("a network"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_cidr_is_not_translated() {
        let taken = Taken::new(&[cidr("10.0.0.0/16")], &[]);
        assert_eq!(taken.choose(&[], cidr("10.1.0.0/16"), &pools(&[])), Ok(cidr("10.1.0.0/16")));
    }

    #[test]
    fn the_search_skips_cidrs_in_use() {
        let taken =
            Taken::new(&[cidr("10.0.0.0/15"), cidr("10.2.128.0/17")], &[cidr("10.3.7.0/24")]);
        assert_eq!(taken.choose(&[], cidr("10.0.0.0/16"), &pools(&[])), Ok(cidr("10.4.0.0/16")));
        assert_eq!(taken.choose(&[], cidr("10.0.0.0/17"), &pools(&[])), Ok(cidr("10.2.0.0/17")));
    }

    #[test]
    fn the_next_pool_is_used_when_one_is_full() {
        let taken = Taken::new(&[cidr("10.0.0.0/8")], &[]);
        assert_eq!(taken.choose(&[], cidr("10.0.0.0/16"), &pools(&[])), Ok(cidr("192.168.0.0/16")));
        assert_eq!(taken.choose(&[], cidr("10.0.0.0/14"), &pools(&[])), Ok(cidr("172.16.0.0/14")));
        let error = taken.choose(&[], cidr("10.0.0.0/9"), &pools(&[])).unwrap_err();
        assert!(error.to_string().contains("additionalPools"), "{error}");
        let more = pools(&[cidr("100.0.0.0/8")]);
        assert_eq!(taken.choose(&[], cidr("10.0.0.0/9"), &more), Ok(cidr("100.0.0.0/9")));
    }

    #[test]
    fn a_public_network_is_translated_unless_it_is_in_a_pool() {
        let taken = Taken::new(&[], &[]);
        let public = cidr("8.8.8.0/24");
        assert_eq!(taken.choose(&[], public, &pools(&[])), Ok(cidr("10.0.0.0/24")));
        assert_eq!(taken.choose(&[], public, &pools(&[cidr("8.8.0.0/16")])), Ok(public));
        assert_eq!(taken.choose(&[], cidr("2001:db8::/64"), &pools(&[])), Ok(cidr("fd00::/64")));
        assert_eq!(taken.choose(&[], cidr("fd12::/64"), &pools(&[])), Ok(cidr("fd12::/64")));
        assert_eq!(
            taken.choose(&[], cidr("100.64.0.0/14"), &pools(&[])),
            Ok(cidr("100.64.0.0/14"))
        );
    }

    #[test]
    fn the_overlay_is_never_allocated() {
        let taken = Taken::new(&[], &[]);
        let pools = pools(&[]);
        assert_ne!(taken.choose(&[], cidr("241.0.0.0/16"), &pools), Ok(cidr("241.0.0.0/16")));
        assert_eq!(taken.choose(&[], cidr("255.0.0.0/8"), &[cidr("240.0.0.0/4")]).ok(), None);
    }

    #[test]
    fn the_external_cidr_shrinks_when_the_pools_are_full() {
        let mut config = Config {
            pod_cidr: cidr("10.0.0.0/16"),
            service_cidr: cidr("10.96.0.0/12"),
            pools: pools(&[]),
            reserved: vec![],
            external_prefix: None,
        };
        assert_eq!(choose_external(&config), Ok(cidr("10.1.0.0/16")));
        config.pools = vec![cidr("10.0.0.0/15")];
        config.reserved = vec![cidr("10.1.128.0/17"), cidr("10.1.0.0/18")];
        assert_eq!(choose_external(&config), Ok(cidr("10.1.64.0/18")));
        config.pools = vec![cidr("10.0.0.0/16")];
        assert!(choose_external(&config).is_err());
    }

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }
}
