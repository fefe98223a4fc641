//! Who has asked for a mapping, and may give it back.

use std::{collections::BTreeSet, str::FromStr};

use tombolo_api::net::ClusterMapping;

use super::IpamError;

/// How many owners one mapping may have: they are stored with it.
const MAX_OWNERS: usize = 16;

/// Characters of a name.
const MAX_LENGTH: usize = 63;

/// A client of the address service, by the name that it has chosen. Those that give none share the
/// empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappingOwner(String);

/// A text that can't be the name of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an owner has at most 63 characters: lower-case letters, digits, '-' and '.'")]
pub struct NotAnOwner;

impl FromStr for MappingOwner {
    type Err = NotAnOwner;

    fn from_str(text: &str) -> Result<Self, NotAnOwner> {
        let is_valid = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        match text.len() <= MAX_LENGTH && text.bytes().all(is_valid) {
            true => Ok(Self(text.to_owned())),
            false => Err(NotAnOwner),
        }
    }
}

/// The owners of one mapping, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners(Vec<MappingOwner>);

impl Owners {
    pub(super) fn only(owner: &MappingOwner) -> Self {
        Self(vec![owner.clone()])
    }

    /// As they are stored. No name stands for the empty one; names that can't be any are left out.
    pub(super) fn restore(stored: &ClusterMapping) -> Self {
        let read: Vec<_> = stored.owners.iter().filter_map(|name| name.parse().ok()).collect();
        let read: Vec<_> = read.into_iter().take(MAX_OWNERS).collect();
        Self(if read.is_empty() { vec![MappingOwner::default()] } else { read })
    }

    /// As they are stored.
    pub(super) fn stored(&self) -> ClusterMapping {
        let is_unnamed = *self.0 == [MappingOwner::default()];
        let named = self.0.iter().filter(|_| !is_unnamed);
        ClusterMapping { owners: named.map(|owner| owner.0.clone()).collect() }
    }

    pub(super) fn has(&self, owner: &MappingOwner) -> bool {
        self.0.binary_search(owner).is_ok()
    }

    /// Returns whether it is a new one.
    pub(super) fn add(&mut self, owner: &MappingOwner) -> Result<bool, IpamError> {
        match self.0.binary_search(owner) {
            Ok(_) => Ok(false),
            Err(_) if self.0.len() >= MAX_OWNERS => Err(IpamError::TooManyOwners(MAX_OWNERS)),
            Err(place) => {
                self.0.insert(place, owner.clone());
                Ok(true)
            }
        }
    }

    /// Returns whether it was one.
    pub(super) fn remove(&mut self, owner: &MappingOwner) -> bool {
        self.0.binary_search(owner).map(|place| self.0.remove(place)).is_ok()
    }

    /// Takes over others, as many as there is room for.
    pub(super) fn extend(&mut self, others: &Self) {
        let all: BTreeSet<_> = self.0.iter().chain(&others.0).cloned().collect();
        self.0 = all.into_iter().take(MAX_OWNERS).collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_short_name_or_none() {
        for good in ["", "liqo-kubelet", "a.b-1", &"a".repeat(63)] {
            assert_eq!(good.parse(), Ok(MappingOwner(good.to_owned())), "{good:?}");
        }
        for bad in ["A", "a b", "a/b", "\u{e4}", &"a".repeat(64)] {
            assert_eq!(bad.parse::<MappingOwner>(), Err(NotAnOwner), "{bad:?}");
        }
    }

    #[test]
    fn owners_are_stored_and_read_as_they_are() {
        let mut owners = Owners::default();
        owners.add(&MappingOwner::default()).unwrap();
        assert_eq!(owners.stored(), ClusterMapping::default(), "as it was before there were any");
        assert_eq!(Owners::restore(&owners.stored()), owners);
        owners.add(&"b".parse().unwrap()).unwrap();
        owners.add(&"a".parse().unwrap()).unwrap();
        assert_eq!(Owners::restore(&owners.stored()), owners);
        assert!(owners.remove(&MappingOwner::default()));
        assert_eq!(Owners::restore(&owners.stored()), owners);
    }

    #[test]
    fn what_somebody_has_spoiled_keeps_the_mapping() {
        let spoiled = ClusterMapping { owners: ["Not a name".to_owned()].into() };
        assert!(Owners::restore(&spoiled).has(&MappingOwner::default()));
        let many = ClusterMapping { owners: (0..100).map(|n| format!("o{n}")).collect() };
        assert_eq!(Owners::restore(&many).0.len(), MAX_OWNERS);
    }

    #[test]
    fn a_mapping_has_only_so_many_owners() {
        let mut owners = Owners::default();
        let owner = |n: usize| format!("o{n}").parse::<MappingOwner>().unwrap();
        for n in 0..MAX_OWNERS {
            assert_eq!(owners.add(&owner(n)), Ok(true));
        }
        assert!(owners.add(&owner(MAX_OWNERS)).is_err());
        assert_eq!(owners.add(&owner(0)), Ok(false), "those that are there stay");
    }
}
