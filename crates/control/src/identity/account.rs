//! The objects of an identity: a ServiceAccount in the tenant namespace, and a Role bound to it and
//! to the user of its certificates. The user name contains the generation, an annotation of the
//! ServiceAccount. A new identity gets a new generation, so earlier certificates have no rights.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tombolo_api::{
    ClusterName,
    auth::Confidential,
    names::{GENERATION_ANNOTATION, TENANT_ACCOUNT},
};
use tombolo_core::identity::{Stage, Subject, rules};
use tombolo_runtime::writer;

use super::{
    Error, MANAGER, failed,
    tenant::{self, Tenant, retry_forbidden},
};
use crate::binding::{Rights, account_of, bind, user};

/// Lifetime of a token; it is renewed long before.
pub(crate) const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// The generation of the identity in this namespace, if there is one.
pub(super) async fn generation(client: &Client, tenant: &str) -> Result<Option<String>, Error> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), tenant);
    let account = retry_forbidden(|| accounts.get_metadata_opt(TENANT_ACCOUNT)).await;
    let account =
        account.map_err(failed(format!("read ServiceAccount {tenant}/{TENANT_ACCOUNT}")))?;
    Ok(account.and_then(|account| account.annotations().get(GENERATION_ANNOTATION).cloned()))
}

/// Writes account and rights for this stage, and binds them to the user of the certificates. Also
/// binds our own roles, which that requires.
pub(super) async fn ensure(
    client: &Client,
    tenant: &Tenant,
    peer: &ClusterName,
    stage: Stage,
    subject: &Subject,
) -> Result<(), Error> {
    let name = &*tenant.name;
    let metadata = ObjectMeta { name: Some(TENANT_ACCOUNT.to_owned()), ..ObjectMeta::default() };
    let annotation = (GENERATION_ANNOTATION.to_owned(), subject.generation.clone());
    let account = ServiceAccount {
        metadata: ObjectMeta { annotations: Some([annotation].into()), ..metadata.clone() },
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let role = Role { metadata, rules: Some(rules(peer, stage)) };
    let subjects = vec![account_of((TENANT_ACCOUNT, name)), user(subject.to_string())];
    let binding = bind(TENANT_ACCOUNT, Rights::Role(TENANT_ACCOUNT), subjects);
    let failure = |what: &str| failed(format!("apply {what} {name}/{TENANT_ACCOUNT}"));
    let accounts = Api::namespaced(client.clone(), name);
    let roles = Api::namespaced(client.clone(), name);
    let bindings = Api::namespaced(client.clone(), name);
    tenant::bind_control(client, tenant).await?;
    let bound = async {
        // The generation is recorded before rights are bound to it, so that it can be ended.
        let applied = retry_forbidden(|| writer::apply(&accounts, MANAGER, &account));
        applied.await.map_err(failure("ServiceAccount"))?;
        writer::apply(&bindings, MANAGER, &binding).await.map_err(failure("RoleBinding"))
    };
    let granted = async {
        retry_forbidden(|| writer::apply(&roles, MANAGER, &role)).await.map_err(failure("Role"))
    };
    tokio::try_join!(bound, granted, tenant::bind_kubelet(client, tenant)).map(drop)
}

/// Removes the identity: its tokens and certificates lose their rights.
pub(super) async fn remove(client: &Client, tenant: &str) -> Result<(), Error> {
    let failure = || failed(format!("delete the identity in {tenant}"));
    let params = Default::default();
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), tenant);
    let gone = bindings.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(failure())?;
    let roles = Api::<Role>::namespaced(client.clone(), tenant);
    let gone = roles.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(failure())?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), tenant);
    let gone = accounts.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(failure())
}

/// A token of the identity.
pub(super) async fn token(client: &Client, tenant: &str) -> Result<Confidential, Error> {
    let token = request_token(client, tenant, TENANT_ACCOUNT).await;
    token.map_err(failed(format!("request a token of ServiceAccount {tenant}/{TENANT_ACCOUNT}")))
}

/// A token of a ServiceAccount, from this or another cluster.
pub(crate) async fn request_token(
    client: &Client,
    namespace: &str,
    account: &str,
) -> kube::Result<Confidential> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.map(|status| status.token).unwrap_or_default().into())
}
