//! The user name in a certificate: a cluster and the generation of its identity. Kubernetes can't
//! revoke a certificate, but rights are bound to this exact user, and a generation is never used
//! again.

use std::{fmt, str::FromStr};

use tombolo_api::ClusterId;

/// The organisation in every cluster's certificate. It has no rights.
pub const ORGANISATION: &str = "liqo.io";

const PREFIX: &str = "liqo";

/// The user of a certificate: `liqo:<cluster id>:<generation>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// Generation of its identity.
    pub generation: String,
}

/// A name that is not a [`Subject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the user in a cluster's certificate must be liqo:<cluster id>:<generation>")]
pub struct NotASubject;

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}:{}", self.cluster_id, self.generation)
    }
}

impl FromStr for Subject {
    type Err = NotASubject;

    fn from_str(name: &str) -> Result<Self, NotASubject> {
        let mut parts = name.split(':');
        let (Some(PREFIX), Some(id), Some(generation), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotASubject);
        };
        if !is_generation(generation) {
            return Err(NotASubject);
        }
        let cluster_id = id.parse().map_err(|_| NotASubject)?;
        Ok(Self { cluster_id, generation: generation.to_owned() })
    }
}

/// Whether a text is a valid generation.
pub fn is_generation(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_survives_a_round_trip() {
        let subject: Subject = "liqo:id-of-rome:7d2c-11".parse().unwrap();
        assert_eq!(subject.cluster_id.as_str(), "id-of-rome");
        assert_eq!(subject.generation, "7d2c-11");
        assert_eq!(subject.to_string(), "liqo:id-of-rome:7d2c-11");
    }

    #[test]
    fn other_names_are_rejected() {
        for name in [
            "",
            "liqo",
            "liqo:rome",
            "liqo:rome:",
            "liqo::1",
            "liqo:rome:1:2",
            "liqo:../..:1",
            "system:masters:1",
            "liqo:rome:1 ",
            "liqo:rome:a/b",
            "Liqo:rome:1",
            "liqo:rome:\u{e9}",
        ] {
            assert_eq!(name.parse::<Subject>(), Err(NotASubject), "{name:?}");
        }
    }
}
