//! Whom a certificate names: a cluster, in one generation of its identity. Kubernetes can't revoke a
//! certificate, but rights are bound to this exact user, and no generation ever comes again.

use std::{fmt, str::FromStr};

use tombolo_api::ClusterId;

/// The organisation in every certificate of a cluster. No rights are bound to it.
pub const ORGANISATION: &str = "liqo.io";

const PREFIX: &str = "liqo";

/// The user that a certificate is for: `liqo:<cluster id>:<generation>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// Which of its identities, one after the other.
    pub generation: String,
}

/// A name that is no [`Subject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cluster's certificate is for liqo:<cluster id>:<generation>")]
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

/// Whether a text can be the generation of an identity.
pub fn is_generation(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_read_as_it_is_written() {
        let subject: Subject = "liqo:id-of-rome:7d2c-11".parse().unwrap();
        assert_eq!(subject.cluster_id.as_str(), "id-of-rome");
        assert_eq!(subject.generation, "7d2c-11");
        assert_eq!(subject.to_string(), "liqo:id-of-rome:7d2c-11");
    }

    #[test]
    fn nobody_else_is_a_subject() {
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
