//! Identities in the form of a certificate. The private key never leaves its cluster, the
//! certificate is renewed before it expires, and revocation removes all permissions.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    certificates::v1::CertificateSigningRequest,
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};
use serde_json::{Value, json};
use tombolo_api::discovery::ResourceRequest;
use tombolo_testbed::{Component, eventually};

use crate::{
    rights,
    service::call,
    side::Side,
    story::{delete_and_wait, touch},
};

const TENANT: &str = "liqo-tenant-milan";

/// Rome has an identity in milan.
pub async fn the_private_key_never_leaves_its_cluster(rome: &Side, milan: &Side) {
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.ends_with("in the form of a certificate"), "{message}");
    let account = milan.get_in::<ServiceAccount>("liqo-tenant-rome", "liqo-cluster").await;
    let account = account.expect("the account");
    let generation = &account.annotations()["discovery.liqo.io/generation"];
    let user = username(&client(&kubeconfig(rome).await).await).await;
    assert_eq!(user, format!("liqo:id-of-rome:{generation}"));

    // Milan keeps neither the key nor the CertificateSigningRequest.
    let key = part(&kubeconfig(rome).await, "client-key-data");
    let pem = String::from_utf8(STANDARD.decode(&key).expect("base64")).expect("PEM");
    let secrets = milan.within::<Secret>("liqo-auth").list(&Default::default()).await;
    for secret in secrets.expect("the records") {
        for value in secret.data.unwrap_or_default().into_values() {
            let text = String::from_utf8_lossy(&value.0).into_owned();
            assert!(!text.contains(&key) && !text.contains(&pem), "the key has left rome");
        }
    }
    let requests = Api::<CertificateSigningRequest>::all(milan.client.clone());
    let left = async || {
        let all = requests.list(&Default::default()).await.expect("a list");
        let names = all.iter().map(ResourceExt::name_any);
        names.filter(|name| name.starts_with("liqo-")).collect::<Vec<_>>()
    };
    eventually("no signing request is left", left, Vec::is_empty).await;
}

/// A certificate signed by milan's CA, past two thirds of its validity.
pub async fn a_certificate_is_renewed_before_it_expires(rome: &Side, milan: &Side) {
    let before = rome.identity_at(milan).await;
    let user = username(&before.client).await;
    let old = kubeconfig(rome).await;
    let pem = STANDARD.decode(part(&old, "client-key-data")).expect("base64");
    let key = KeyPair::from_pem(std::str::from_utf8(&pem).expect("PEM")).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "liqo.io");
    params.distinguished_name.push(DnType::CommonName, user.as_str());
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let at = |hours| {
        let time = Timestamp::now() + SignedDuration::from_hours(hours);
        rcgen::date_time_ymd(1970, 1, 1)
            + std::time::Duration::from_secs(time.as_second().unsigned_abs())
    };
    (params.not_before, params.not_after) = (at(-20), at(1));
    let pki = milan.cluster.kubeconfig().with_file_name("ca");
    let read = |end: &str| std::fs::read_to_string(pki.with_extension(end)).expect("the authority");
    let authority = KeyPair::from_pem(&read("key")).expect("its key");
    let authority = Issuer::from_ca_cert_pem(&read("crt"), authority).expect("its certificate");
    let signed = params.signed_by(&key, &authority).expect("signed").pem();
    let signed = STANDARD.encode(signed);
    let current = part(&old, "client-certificate-data");
    let due = old.to_string().replace(&current, &signed);
    let data = Patch::Merge(json!({ "stringData": { "kubeconfig": due } }));
    let secrets = rome.within::<Secret>(TENANT);
    secrets.patch("liqo-identity", &PatchParams::default(), &data).await.expect("changed");
    assert_eq!(username(&client(&kubeconfig(rome).await).await).await, user, "milan accepts it");

    // Renewal needs no token: a wrong one has no effect.
    rome.add_token("token-for-milan", &milan.cluster(), "another one").await;
    touch(rome, "milan").await;
    let now = async || part(&kubeconfig(rome).await, "client-certificate-data");
    eventually("a renewed certificate", now, |now| *now != signed && *now != current).await;
    assert_ne!(part(&kubeconfig(rome).await, "client-key-data"), part(&old, "client-key-data"));
    assert_eq!(username(&rome.identity_at(milan).await.client).await, user);
    rome.add_token("token-for-milan", &milan.cluster(), &milan.token().await).await;
}

/// Milan revokes rome's identity and issues a new one.
pub async fn a_revoked_certificate_stays_revoked(rome: &Side, milan: &Side) {
    let siena = json!({
        "clusterID": "id-of-siena", "clusterName": "siena", "nonce": "s1ena-nonce",
        "token": milan.token().await,
    });
    let (status, answer) = call(milan, "POST", "/identity", &siena.to_string()).await;
    assert_eq!(status, 200);
    let other = serde_json::from_str(answer["kubeconfig"].as_str().expect("a text")).expect("JSON");
    let other = client(&other).await;

    let old = client(&kubeconfig(rome).await).await;
    let token = rights::token_form(rome, milan).await;
    let user = username(&old).await;
    assert_eq!(status_of(&old, "liqo-tenant-rome").await, 200);
    let records = milan.within::<Secret>("liqo-auth");
    records.delete("identity-id-of-rome", &Default::default()).await.expect("deleted");
    let refused = async || status_of(&old, "liqo-tenant-rome").await;
    eventually("the permissions are removed", refused, |status| *status == 403).await;
    assert_eq!(
        status_of(&other, "liqo-tenant-siena").await,
        200,
        "another cluster is not affected"
    );
    for (form, client) in [("certificate", &old), ("token", &token)] {
        rights::assert_no_permissions(form, client).await;
    }

    let again = async || {
        touch(rome, "milan").await;
        username(&client(&kubeconfig(rome).await).await).await
    };
    let now = eventually("a new generation", again, |now| *now != user).await;
    assert!(now.starts_with("liqo:id-of-rome:"), "{now}");
    let new = client(&kubeconfig(rome).await).await;
    assert_eq!(status_of(&new, "liqo-tenant-rome").await, 200);
    rights::assert_no_permissions("certificate", &old).await;
    records.delete("identity-id-of-siena", &Default::default()).await.expect("deleted");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-siena").await;
}

/// A malicious client with a valid token and nonce.
pub async fn other_common_names_are_not_signed(milan: &Side) {
    let token = milan.token().await;
    let post = async |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "liqo.io");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let request = params.serialize_request(&key).expect("a request").pem().expect("PEM");
        let body = json!({
            "clusterID": "id-of-lucca", "clusterName": "lucca", "token": token,
            "nonce": "lucca-nonce", "signingRequest": request,
        });
        call(milan, "POST", "/identity/certificate", &body.to_string()).await
    };
    for name in ["kubernetes-admin", "liqo:id-of-rome:0", "system:serviceaccount:liqo:liqo-control"]
    {
        let (status, answer) = post(name).await;
        assert_eq!((status, &answer["reason"]), (422, &json!("Other")), "{name}: {answer}");
    }
    let (status, answer) = post("liqo:id-of-lucca:0").await;
    assert_eq!((status, &answer["reason"]), (422, &json!("OtherGeneration")), "{answer}");
    let right = format!("liqo:id-of-lucca:{}", answer["generation"].as_str().expect("one"));
    assert_eq!(post(&right).await.0, 200);
    let records = milan.within::<Secret>("liqo-auth");
    records.delete("identity-id-of-lucca", &Default::default()).await.expect("deleted");
}

/// Milan's signer does not respond.
pub async fn without_a_signer_the_identity_is_a_token(rome: &Side, milan: &Side) {
    let fault = milan.cluster.stop(1, Component::ControllerManager).expect("it stops");
    milan.allow_empty_token(true).await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.ends_with("in the form of a token"), "{message}");
    let user = username(&client(&kubeconfig(rome).await).await).await;
    assert_eq!(user, "system:serviceaccount:liqo-tenant-rome:liqo-cluster");
    kubectl_works_with_the_identity(rome, milan).await;
    fault.undo().expect("it runs again");
    delete_and_wait(rome, "milan").await;
}

/// Uses the identity's kubeconfig with kubectl.
pub async fn kubectl_works_with_the_identity(rome: &Side, milan: &Side) {
    let file = std::env::temp_dir().join(format!("tombolo-{}", uuid::Uuid::new_v4()));
    std::fs::write(&file, kubeconfig(rome).await.to_string()).expect("written");
    let path = file.to_str().expect("a path");
    let get = async |what| milan.cluster.kubectl(&["--kubeconfig", path, "get", what]).await;
    let (allowed, refused) = (get("resourcerequests").await, get("secrets").await);
    std::fs::remove_file(&file).expect("removed");
    allowed.expect("ResourceRequests can be listed");
    let refused = format!("{:?}", refused.expect_err("Secrets can't be listed"));
    assert!(refused.contains("forbidden"), "{refused}");
}

async fn kubeconfig(rome: &Side) -> Value {
    let text = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    serde_json::from_str(&text).expect("JSON")
}

fn part(kubeconfig: &Value, key: &str) -> String {
    kubeconfig["users"][0]["user"][key].as_str().unwrap_or_default().to_owned()
}

pub async fn client(kubeconfig: &Value) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig.to_string()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("complete")).expect("a client")
}

/// The username that the API server sees.
async fn username(client: &Client) -> String {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let review = review.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let user = review.expect("an answer").status.and_then(|status| status.user_info);
    user.and_then(|user| user.username).unwrap_or_default()
}

pub async fn status_of(client: &Client, namespace: &str) -> u16 {
    let requests = Api::<ResourceRequest>::namespaced(client.clone(), namespace);
    match requests.list(&Default::default()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}
