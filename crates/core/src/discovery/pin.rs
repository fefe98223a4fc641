//! Which certificate an auth service has to show, and who said so: what discovery was told, what
//! somebody has set by hand, or what was shown first.

use tombolo_api::{Fingerprint, discovery::ForeignCluster, names::PINNED_ANNOTATION};

/// Who said which certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedBy {
    /// The cluster's announcement in the local network.
    Mdns,
    /// A TXT record.
    Dns,
    /// Somebody, in the spec or with the peering command.
    Hand,
    /// Nobody: it was shown when the service was asked for the first time.
    FirstUse,
}

impl PinnedBy {
    const NOTED: [Self; 3] = [Self::Mdns, Self::Dns, Self::FirstUse];

    fn word(self) -> &'static str {
        match self {
            Self::Mdns => "mDNS",
            Self::Dns => "DNS",
            Self::Hand => "hand",
            Self::FirstUse => "first-use",
        }
    }

    /// What the certificate is, for people: "the certificate that …".
    pub fn that(self) -> &'static str {
        match self {
            Self::Mdns => "it announces in the local network",
            Self::Dns => "DNS names",
            Self::Hand => "spec.fingerprint was set to",
            Self::FirstUse => "it showed first",
        }
    }

    /// The annotation that notes it.
    pub fn note(self, fingerprint: Fingerprint) -> (String, String) {
        (PINNED_ANNOTATION.to_owned(), format!("{} {fingerprint}", self.word()))
    }

    /// Who has pinned the certificate of an entry, if it is pinned. What was set by hand afterwards
    /// is another one than was noted.
    pub fn of(entry: &ForeignCluster) -> Option<Self> {
        let pin = entry.spec.fingerprint?;
        let annotations = entry.metadata.annotations.as_ref();
        let noted = annotations.and_then(|annotations| annotations.get(PINNED_ANNOTATION));
        let is_it = |by: &Self| noted.is_some_and(|noted| *noted == by.note(pin).1);
        Some(Self::NOTED.into_iter().find(is_it).unwrap_or(Self::Hand))
    }
}

/// Pins an entry.
pub(super) fn pin(entry: &mut ForeignCluster, by: PinnedBy, fingerprint: Option<Fingerprint>) {
    entry.spec.fingerprint = fingerprint;
    if let Some(fingerprint) = fingerprint {
        let (key, value) = by.note(fingerprint);
        entry.metadata.annotations.get_or_insert_default().insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_by_hand_is_not_what_was_noted() {
        let (first, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let spec = serde_json::from_value(serde_json::json!({ "authUrl": "https://milan" }));
        let mut entry = ForeignCluster::new("milan", spec.unwrap());
        assert_eq!(PinnedBy::of(&entry), None);
        for by in PinnedBy::NOTED {
            pin(&mut entry, by, Some(first));
            assert_eq!(PinnedBy::of(&entry), Some(by));
            entry.spec.fingerprint = Some(other);
            assert_eq!(PinnedBy::of(&entry), Some(PinnedBy::Hand));
        }
        entry.metadata.annotations = None;
        assert_eq!(PinnedBy::of(&entry), Some(PinnedBy::Hand));
    }
}
