//! Token requests of other clusters: a token is valid for one day at most.

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams};
use tombolo_testbed::eventually;

use crate::{rights::token_form, side::Side};

const POLICY: &str = include_str!("../../../tombolo/manifests/policy.yaml");
const DAY: i64 = 24 * 60 * 60;

/// Rome's identity in milan, as a certificate and as a token.
pub async fn tokens_are_limited_to_one_day(rome: &Side, milan: &Side) {
    let certificate = rome.identity_at(milan).await.client;
    let token = token_form(rome, milan).await;
    assert_eq!(request_token(&token, DAY + 1, None).await, 201, "allowed without the policy");
    milan.cluster.apply(POLICY).await.expect("the policy is created");
    for client in [certificate, token] {
        let too_long = async || request_token(&client, DAY + 1, None).await;
        eventually("more than a day is rejected", too_long, |status| *status == 403).await;
        assert_eq!(request_token(&client, 20 * 365 * DAY, None).await, 403);
        assert_eq!(request_token(&client, DAY, None).await, 201);
        assert_eq!(request_token(&client, 600, None).await, 201);
        let secret = BoundObjectReference {
            kind: Some("Secret".to_owned()),
            api_version: Some("v1".to_owned()),
            name: Some("liqo-identity".to_owned()),
            uid: None,
        };
        assert_eq!(request_token(&client, 600, Some(secret)).await, 403);
    }
    // The policy does not prevent the issuing of identities.
    token_form(rome, milan).await;
}

/// Status code of a TokenRequest.
async fn request_token(client: &Client, seconds: i64, bound: Option<BoundObjectReference>) -> u16 {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "liqo-tenant-rome");
    let spec = TokenRequestSpec {
        expiration_seconds: Some(seconds),
        bound_object_ref: bound,
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let params = PostParams::default();
    match accounts.create_token_request("liqo-cluster", &params, &request).await {
        Ok(_) => 201,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}
