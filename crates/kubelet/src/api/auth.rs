//! Authorization of callers by SubjectAccessReviews to the API server of this cluster, cached for a
//! short time.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer, X509Certificate};

const CACHED: Duration = Duration::from_secs(30);

/// A caller with a client certificate: the common name is the user, the organisations are groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Caller {
    pub user: String,
    groups: Vec<String>,
}

impl Caller {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let organisations = subject.iter_organization();
        let mut groups: Vec<String> =
            organisations.filter_map(|name| name.as_str().ok()).map(str::to_owned).collect();
        groups.push("system:authenticated".into());
        Some(Self { user, groups })
    }
}

type Question = (Caller, &'static str, String);

/// Authorizes callers.
pub(super) struct Authorizer {
    api: Api<SubjectAccessReview>,
    answers: Mutex<BTreeMap<Question, (Instant, bool)>>,
}

impl Authorizer {
    pub(super) fn new(client: Client) -> Self {
        Self { api: Api::all(client), answers: Mutex::default() }
    }

    /// Whether the caller may use `nodes/proxy` of the node with this HTTP method.
    pub(super) async fn allows(
        &self,
        caller: &Caller,
        method: &Method,
        node: &str,
    ) -> kube::Result<bool> {
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        let question = (caller.clone(), verb, node.to_owned());
        if let Some(allowed) = self.known(&question) {
            return Ok(allowed);
        }
        let review = review(caller, verb, node);
        let answer = self.api.create(&PostParams::default(), &review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (since, _)| since.elapsed() < CACHED);
        answers.insert(question, (Instant::now(), allowed));
        Ok(allowed)
    }

    fn known(&self, question: &Question) -> Option<bool> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, allowed) = answers.get(question)?;
        (since.elapsed() < CACHED).then_some(*allowed)
    }
}

fn review(caller: &Caller, verb: &str, node: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(caller.user.clone()),
            groups: Some(caller.groups.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".into()),
                resource: Some("nodes".into()),
                subresource: Some("proxy".into()),
                name: Some(node.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_groups_are_the_subject_of_the_certificate() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver-kubelet-client");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let caller = Caller::of(certificate.der()).unwrap();
        assert_eq!(caller.user, "kube-apiserver-kubelet-client");
        assert_eq!(caller.groups, ["system:masters", "system:authenticated"]);
    }
}
