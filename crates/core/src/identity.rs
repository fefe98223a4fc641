//! Identities: who gets one, what it may do, how it is handed over and when it is renewed.

mod admission;
mod kubeconfig;
mod lifetime;
mod nonce;
mod obstacle;
mod record;
mod rights;
mod room;
mod secret_token;
mod signing_request;
mod subject;
mod tenant;
mod token;

pub use admission::{Admission, Tokens, admit};
pub use kubeconfig::{Access, Credentials, Incomplete};
pub use lifetime::Lifetime;
pub use nonce::{hash, nonce};
pub use obstacle::Obstacle;
pub use record::{NotARecord, Record, record_name, recorded_cluster, return_token_name};
pub use rights::{Stage, rules, stage, twin_role};
pub use room::{MOST_IDENTITIES, makes_room};
pub use secret_token::token_in;
pub use signing_request::{Unacceptable, requested};
pub use subject::{NotASubject, ORGANISATION, Subject, is_generation};
pub use tenant::{Users, tenant_namespaces};
pub use token::{NotAToken, TokenClaims};

use tombolo_api::{ClusterId, ClusterIdentity, ClusterName};

/// What a cluster is called that has not said its name: by its id, as far as that fits.
pub fn name_or_id(name: Option<&ClusterName>, id: &ClusterId) -> ClusterName {
    let short = || {
        let text = id.as_str();
        text[..text.len().min(ClusterName::MAX_LEN)].trim_end_matches('-').parse()
    };
    name.cloned().unwrap_or_else(|| short().expect("the start of a DNS label is one"))
}

/// Why a cluster can't be a peer that is called as we are, and what to do about it: what two
/// clusters send one another is called after them, and lies side by side.
pub fn namesake(us: &ClusterIdentity, peer: &ClusterIdentity) -> Option<String> {
    (us.cluster_name == peer.cluster_name).then(|| {
        format!(
            "cluster {} and cluster {} are both called {}, and peers need different names: give \
             one of them another with `tombolo install --cluster-name`",
            us.cluster_id, peer.cluster_id, us.cluster_name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_our_own_name_is_no_peer() {
        let cluster = |id: &str, name: &str| ClusterIdentity {
            cluster_id: id.parse().unwrap(),
            cluster_name: name.parse().unwrap(),
        };
        let us = cluster("1", "kubernetes");
        assert_eq!(namesake(&us, &cluster("2", "milan")), None);
        let message = namesake(&us, &cluster("2", "kubernetes")).unwrap();
        assert!(message.contains("tombolo install --cluster-name"), "{message}");
    }

    #[test]
    fn a_cluster_without_a_name_is_called_by_its_id() {
        let id: ClusterId = "9f0f1f3e-9f2c".parse().unwrap();
        assert_eq!(name_or_id(None, &id).as_str(), "9f0f1f3e-9f2c");
        let rome = "rome".parse().unwrap();
        assert_eq!(name_or_id(Some(&rome), &id), rome);
        let long: ClusterId = format!("{}-{}", "a".repeat(44), "b".repeat(18)).parse().unwrap();
        assert_eq!(name_or_id(None, &long).as_str(), "a".repeat(44));
    }
}
