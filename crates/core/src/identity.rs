//! Identities: admission, rights, transfer and renewal.

mod admission;
mod eviction;
mod kubeconfig;
mod lifetime;
mod nonce;
mod obstacle;
mod record;
mod rights;
mod secret_token;
mod signing_request;
mod subject;
mod tenant;
mod token;

pub use admission::{Admission, Tokens, admit};
pub use eviction::{MAX_IDENTITIES, is_evictable};
pub use kubeconfig::{Access, Credentials, Incomplete};
pub use lifetime::Lifetime;
pub use nonce::{hash, nonce};
pub use obstacle::Obstacle;
pub use record::{NotARecord, Record, record_name, recorded_cluster, return_token_name};
pub use rights::{Stage, rules, stage, twin_role};
pub use secret_token::token_in;
pub use signing_request::{InvalidSigningRequest, requested};
pub use subject::{NotASubject, ORGANISATION, Subject, is_generation};
pub use tenant::{TenantUsers, tenant_namespaces};
pub use token::{NotAToken, TokenClaims};

use tombolo_api::{ClusterId, ClusterIdentity, ClusterName};

/// The name of a cluster; for a cluster without a name its id, shortened to fit.
pub fn name_or_id(name: Option<&ClusterName>, id: &ClusterId) -> ClusterName {
    let short = || {
        let text = id.as_str();
        text[..text.len().min(ClusterName::MAX_LEN)].trim_end_matches('-').parse()
    };
    name.cloned().unwrap_or_else(|| short().expect("the start of a DNS label is one"))
}

/// Error for a peer with the name of this cluster: objects of a peering are named after their
/// cluster and share a namespace.
pub fn name_conflict(us: &ClusterIdentity, peer: &ClusterIdentity) -> Option<String> {
    (us.cluster_name == peer.cluster_name).then(|| {
        format!(
            "clusters {} and {} are both named {}, and peers need different names: rename one with \
             `tombolo install --cluster-name`",
            us.cluster_id, peer.cluster_id, us.cluster_name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_with_the_same_name_can_not_be_a_peer() {
        let cluster = |id: &str, name: &str| ClusterIdentity {
            cluster_id: id.parse().unwrap(),
            cluster_name: name.parse().unwrap(),
        };
        let us = cluster("1", "kubernetes");
        assert_eq!(name_conflict(&us, &cluster("2", "milan")), None);
        let message = name_conflict(&us, &cluster("2", "kubernetes")).unwrap();
        assert!(message.contains("tombolo install --cluster-name"), "{message}");
    }

    #[test]
    fn a_cluster_without_a_name_is_named_by_its_id() {
        let id: ClusterId = "9f0f1f3e-9f2c".parse().unwrap();
        assert_eq!(name_or_id(None, &id).as_str(), "9f0f1f3e-9f2c");
        let rome = "rome".parse().unwrap();
        assert_eq!(name_or_id(Some(&rome), &id), rome);
        let long: ClusterId = format!("{}-{}", "a".repeat(44), "b".repeat(18)).parse().unwrap();
        assert_eq!(name_or_id(None, &long).as_str(), "a".repeat(44));
    }
}
