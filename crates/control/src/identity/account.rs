//! What an identity consists of: a ServiceAccount in the tenant namespace, and a Role bound to it and
//! to the user that certificates are for. That user carries the account's uid, so it is another one
//! whenever the identity is given anew, and what was signed before has no rights any more.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tombolo_api::{ClusterIdentity, auth::Confidential, names::TENANT_ACCOUNT};
use tombolo_core::identity::{Stage, Subject, rules};
use tombolo_runtime::writer;

use super::{Error, MANAGER, failed};
use crate::binding::{Rights, account_of, bind, user};

/// How long a token counts; it is renewed long before.
pub(crate) const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// Makes account and rights what they should be at this stage. Returns the user that certificates
/// are for.
pub(super) async fn ensure(
    client: &Client,
    tenant: &str,
    peer: &ClusterIdentity,
    stage: Stage,
) -> Result<Subject, Error> {
    let metadata = ObjectMeta { name: Some(TENANT_ACCOUNT.to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount {
        metadata: metadata.clone(),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let role = Role { metadata: metadata.clone(), rules: Some(rules(&peer.cluster_name, stage)) };
    let said = |what: &str| failed(format!("make the {what} {tenant}/{TENANT_ACCOUNT}"));
    let accounts = Api::namespaced(client.clone(), tenant);
    let account =
        writer::apply(&accounts, MANAGER, &account).await.map_err(said("ServiceAccount"))?;
    let subject = Subject {
        cluster_id: peer.cluster_id.clone(),
        generation: account.metadata.uid.unwrap_or_default(),
    };
    let subjects = vec![account_of((TENANT_ACCOUNT, tenant)), user(subject.to_string())];
    let binding = bind(TENANT_ACCOUNT, Rights::Role(TENANT_ACCOUNT), subjects);
    let roles = Api::namespaced(client.clone(), tenant);
    writer::apply(&roles, MANAGER, &role).await.map_err(said("Role"))?;
    let bindings = Api::namespaced(client.clone(), tenant);
    writer::apply(&bindings, MANAGER, &binding).await.map_err(said("RoleBinding"))?;
    Ok(subject)
}

/// Removes the identity: whatever token or certificate there is counts no more.
pub(super) async fn remove(client: &Client, tenant: &str) -> Result<(), Error> {
    let said = || failed(format!("delete the identity in {tenant}"));
    let params = Default::default();
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), tenant);
    let gone = bindings.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(said())?;
    let roles = Api::<Role>::namespaced(client.clone(), tenant);
    let gone = roles.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(said())?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), tenant);
    let gone = accounts.delete(TENANT_ACCOUNT, &params).await.map(drop);
    writer::absent_is_fine(gone).map_err(said())
}

/// A token of the identity.
pub(super) async fn token(client: &Client, tenant: &str) -> Result<Confidential, Error> {
    let token = request_token(client, tenant, TENANT_ACCOUNT).await;
    token.map_err(failed(format!("get a token of ServiceAccount {tenant}/{TENANT_ACCOUNT}")))
}

/// A token of a ServiceAccount, from whichever cluster.
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
