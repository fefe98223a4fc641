//! The pinned certificate of an auth service, and where the fingerprint came from.

use tombolo_api::{Fingerprint, discovery::ForeignCluster, names::PINNED_ANNOTATION};

/// Source of a pinned fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedBy {
    /// The cluster's announcement in the local network.
    Mdns,
    /// A TXT record.
    Dns,
    /// A user, in the spec or by `tombolo peer`.
    Hand,
    /// Trust on first use: the certificate that the service presented first.
    FirstUse,
}

impl PinnedBy {
    const ANNOTATED: [Self; 3] = [Self::Mdns, Self::Dns, Self::FirstUse];

    fn as_str(self) -> &'static str {
        match self {
            Self::Mdns => "mDNS",
            Self::Dns => "DNS",
            Self::Hand => "hand",
            Self::FirstUse => "first-use",
        }
    }

    /// Completes "the certificate that …" in a message.
    pub fn that(self) -> &'static str {
        match self {
            Self::Mdns => "it announces by mDNS",
            Self::Dns => "its TXT record names",
            Self::Hand => "a user has set in spec.fingerprint",
            Self::FirstUse => "it presented first",
        }
    }

    /// The annotation that records it.
    pub fn annotation(self, fingerprint: Fingerprint) -> (String, String) {
        (PINNED_ANNOTATION.to_owned(), format!("{} {fingerprint}", self.as_str()))
    }

    /// Source of a fingerprint, by the annotation. A fingerprint other than the annotated one was
    /// set by a user.
    pub(crate) fn read(fingerprint: Fingerprint, annotation: Option<&str>) -> Self {
        let is_it = |by: &Self| annotation == Some(by.annotation(fingerprint).1.as_str());
        Self::ANNOTATED.into_iter().find(is_it).unwrap_or(Self::Hand)
    }
}

/// Pins an entry to a certificate.
pub(super) fn pin(entry: &mut ForeignCluster, by: PinnedBy, fingerprint: Option<Fingerprint>) {
    entry.spec.fingerprint = fingerprint;
    if let Some(fingerprint) = fingerprint {
        let (key, value) = by.annotation(fingerprint);
        entry.metadata.annotations.get_or_insert_default().insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Entry;

    #[test]
    fn a_fingerprint_other_than_the_annotated_one_is_manual() {
        let (first, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let spec = serde_json::from_value(serde_json::json!({ "authUrl": "https://milan" }));
        let mut entry = ForeignCluster::new("milan", spec.unwrap());
        let pinned_by = |entry: &ForeignCluster| Entry::from_resource(entry).pinned_by();
        assert_eq!(pinned_by(&entry), None);
        for by in PinnedBy::ANNOTATED {
            pin(&mut entry, by, Some(first));
            assert_eq!(pinned_by(&entry), Some(by));
            entry.spec.fingerprint = Some(other);
            assert_eq!(pinned_by(&entry), Some(PinnedBy::Hand));
        }
        entry.metadata.annotations = None;
        assert_eq!(pinned_by(&entry), Some(PinnedBy::Hand));
    }
}
