//! The view of a SearchDomain.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::Resource;
use tombolo_api::discovery::SearchDomain;

/// The fields of a SearchDomain that decisions depend on.
#[derive(Clone, Debug)]
pub struct Domain<'a> {
    /// The DNS domain.
    pub domain: &'a str,
    /// Whether to peer with the clusters that it lists, if that is set.
    pub autojoin: Option<bool>,
    /// The last report on its search.
    pub conditions: &'a [Condition],
    /// The reference to it in the entries that it owns.
    pub owner: Option<OwnerReference>,
}

impl<'a> Domain<'a> {
    /// The view of this resource.
    pub fn from_resource(domain: &'a SearchDomain) -> Self {
        Self {
            domain: &domain.spec.domain,
            autojoin: domain.spec.autojoin,
            conditions: domain.status.as_ref().map_or(&[], |status| &status.conditions),
            owner: domain.owner_ref(&()),
        }
    }
}
