//! RoleBindings of ServiceAccounts and users in a namespace.

use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use kube::api::ObjectMeta;

/// The role that a binding refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights<'a> {
    /// A Role of the same namespace.
    Role(&'a str),
    /// A ClusterRole.
    ClusterRole(&'a str),
}

/// A RoleBinding of a role to the ServiceAccount of a namespace.
pub(crate) fn binding(name: &str, rights: Rights<'_>, account: (&str, &str)) -> RoleBinding {
    bind(name, rights, vec![account_of(account)])
}

/// A ServiceAccount as a subject.
pub(crate) fn account_of((name, namespace): (&str, &str)) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }
}

/// The user of a client certificate as a subject.
pub(crate) fn user(name: String) -> Subject {
    Subject {
        kind: "User".to_owned(),
        name,
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        ..Subject::default()
    }
}

/// A RoleBinding of a role to all these subjects.
pub(crate) fn bind(name: &str, rights: Rights<'_>, subjects: Vec<Subject>) -> RoleBinding {
    let (kind, role) = match rights {
        Rights::Role(role) => ("Role", role),
        Rights::ClusterRole(role) => ("ClusterRole", role),
    };
    RoleBinding {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: kind.to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(subjects),
    }
}
