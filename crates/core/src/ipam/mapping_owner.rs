//! The owners of a mapping. It exists until each of them has unmapped it.

use std::{collections::BTreeSet, str::FromStr};

use tombolo_api::net::ClusterMapping;

use super::IpamError;

/// Owners of one mapping. They are stored with it, so the number is limited.
const MAX_OWNERS: usize = 16;

/// Characters of an owner's name.
const MAX_LENGTH: usize = 63;

/// The name of a client of the address service, chosen by the client. Clients that send no name
/// share the empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappingOwner(String);

/// Not a valid owner name.
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

/// The owners of one mapping, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners(Vec<MappingOwner>);

impl Owners {
    pub(super) fn only(owner: &MappingOwner) -> Self {
        Self(vec![owner.clone()])
    }

    /// Reads the stored form. An empty list stands for the empty name; invalid names are dropped.
    pub(super) fn restore(stored: &ClusterMapping) -> Self {
        let read: Vec<_> = stored.owners.iter().filter_map(|name| name.parse().ok()).collect();
        let read: Vec<_> = read.into_iter().take(MAX_OWNERS).collect();
        Self(if read.is_empty() { vec![MappingOwner::default()] } else { read })
    }

    /// The stored form.
    pub(super) fn stored(&self) -> ClusterMapping {
        let is_unnamed = *self.0 == [MappingOwner::default()];
        let named = self.0.iter().filter(|_| !is_unnamed);
        ClusterMapping { owners: named.map(|owner| owner.0.clone()).collect() }
    }

    pub(super) fn has(&self, owner: &MappingOwner) -> bool {
        self.0.binary_search(owner).is_ok()
    }

    /// Returns whether the owner is new.
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

    /// Returns whether it was an owner.
    pub(super) fn remove(&mut self, owner: &MappingOwner) -> bool {
        self.0.binary_search(owner).map(|place| self.0.remove(place)).is_ok()
    }

    /// Adds other owners, up to the maximum.
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
    fn an_owner_name_is_short_or_empty() {
        for good in ["", "liqo-kubelet", "a.b-1", &"a".repeat(63)] {
            assert_eq!(good.parse(), Ok(MappingOwner(good.to_owned())), "{good:?}");
        }
        for bad in ["A", "a b", "a/b", "\u{e4}", &"a".repeat(64)] {
            assert_eq!(bad.parse::<MappingOwner>(), Err(NotAnOwner), "{bad:?}");
        }
    }

    #[test]
    fn stored_owners_are_restored() {
        let mut owners = Owners::default();
        owners.add(&MappingOwner::default()).unwrap();
        assert_eq!(owners.stored(), ClusterMapping::default(), "the empty name is not stored");
        assert_eq!(Owners::restore(&owners.stored()), owners);
        owners.add(&"b".parse().unwrap()).unwrap();
        owners.add(&"a".parse().unwrap()).unwrap();
        assert_eq!(Owners::restore(&owners.stored()), owners);
        assert!(owners.remove(&MappingOwner::default()));
        assert_eq!(Owners::restore(&owners.stored()), owners);
    }

    #[test]
    fn a_mapping_with_invalid_owners_is_kept() {
        let invalid = ClusterMapping { owners: ["Not a name".to_owned()].into() };
        assert!(Owners::restore(&invalid).has(&MappingOwner::default()));
        let many = ClusterMapping { owners: (0..100).map(|n| format!("o{n}")).collect() };
        assert_eq!(Owners::restore(&many).0.len(), MAX_OWNERS);
    }

    #[test]
    fn the_number_of_owners_is_limited() {
        let mut owners = Owners::default();
        let owner = |n: usize| format!("o{n}").parse::<MappingOwner>().unwrap();
        for n in 0..MAX_OWNERS {
            assert_eq!(owners.add(&owner(n)), Ok(true));
        }
        assert!(owners.add(&owner(MAX_OWNERS)).is_err());
        assert_eq!(owners.add(&owner(0)), Ok(false), "existing owners stay");
    }
}
