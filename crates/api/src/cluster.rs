//! The identity of a cluster: its id and its name.

use std::{fmt, str::FromStr};

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// The permanent id of a cluster: a DNS label, by default a UUID. It is part of object names, label
/// values and mDNS names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ClusterId(String);

/// The name of a cluster: a DNS label, short enough for prefixes and suffixes in names of nodes and
/// namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ClusterName(String);

/// Id and name of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterIdentity {
    /// Permanent id of the cluster: a DNS label, by default a UUID.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another object"
    ))]
    pub cluster_id: ClusterId,

    /// Name of the cluster: a DNS label of at most 45 characters.
    pub cluster_name: ClusterName,
}

/// An invalid [`ClusterId`] or [`ClusterName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a cluster {what}: use 1 to {max} lower-case letters, digits and '-', \
     with a letter or digit at both ends"
)]
pub struct NotALabel {
    what: &'static str,
    text: String,
    max: usize,
}

impl ClusterId {
    /// Maximum length of a DNS label and of a label value.
    pub const MAX_LEN: usize = 63;

    /// At most the first five characters, to distinguish objects of clusters with the same name.
    pub fn short(&self) -> &str {
        self.0[..self.0.len().min(5)].trim_end_matches('-')
    }
}

impl ClusterName {
    /// Maximum length with which `liqo-tenant-<name>-<short id>` is a DNS label.
    pub const MAX_LEN: usize = 45;
}

macro_rules! label {
    ($type:ident, $what:literal, $schema:path) => {
        impl $type {
            /// As a string slice.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NotALabel;

            fn from_str(text: &str) -> Result<Self, NotALabel> {
                Self::try_from(text.to_owned())
            }
        }

        impl TryFrom<String> for $type {
            type Error = NotALabel;

            fn try_from(text: String) -> Result<Self, NotALabel> {
                if is_dns_label(&text, Self::MAX_LEN) {
                    Ok(Self(text))
                } else {
                    Err(NotALabel { what: $what, text, max: Self::MAX_LEN })
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        schema::checked_by!($type, $schema);
    };
}

label!(ClusterId, "id", schema::cluster_id);
label!(ClusterName, "name", schema::cluster_name);

/// Whether a text is a DNS label (RFC 1123) of at most `max` characters.
pub fn is_dns_label(text: &str, max: usize) -> bool {
    let inside = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=max).contains(&text.len())
        && text.bytes().all(|b| inside(&b))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dns_labels() {
        for good in ["cluster-1", "1", "9f0f1f3e-9f2c-4b6a-8d7e-0c4a7b0f2c11"] {
            assert_eq!(good.parse::<ClusterId>().unwrap().as_str(), good);
        }
        let too_long = "x".repeat(64);
        for bad in ["", "-a", "a-", "Cluster", "a.b", "a b", "ü", &too_long] {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn the_error_describes_valid_names() {
        let error = "Rome!".parse::<ClusterName>().unwrap_err().to_string();
        assert_eq!(
            error,
            "\"Rome!\" is not a cluster name: use 1 to 45 lower-case letters, digits and \
             '-', with a letter or digit at both ends"
        );
    }

    #[test]
    fn a_short_id_ends_in_a_letter_or_digit() {
        let short = |id: &str| id.parse::<ClusterId>().unwrap().short().to_owned();
        assert_eq!(short("9f0f1f3e-9f2c"), "9f0f1");
        assert_eq!(short("abc"), "abc");
        assert_eq!(short("abc--d"), "abc");
    }

    #[test]
    fn json_is_validated() {
        assert!(serde_json::from_str::<ClusterId>("\"A\"").is_err());
        let id: ClusterId = serde_json::from_str("\"a\"").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"a\"");
    }
}
