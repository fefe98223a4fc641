//! The HTTP API of the auth service.

use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client, Config, client::Body};
use serde_json::{Value, json};
use tombolo_api::config::ClusterConfig;
use tombolo_testbed::eventually;

use crate::{logs::Logs, side::Side};

pub async fn an_identity_is_issued_once(milan: &Side) {
    let token = milan.token().await;
    let post = async |body: Value| call(milan, "POST", "/identity", &body.to_string()).await;

    // Rome has an identity: requests with its id but without its nonce are rejected.
    for nonce in [json!("another"), Value::Null] {
        let body = json!({ "clusterID": "id-of-rome", "token": token, "nonce": nonce });
        let (status, answer) = post(body).await;
        assert_eq!((status, &answer["reason"]), (409, &json!("IdentityTaken")), "{answer}");
    }
    let release = json!({ "clusterID": "id-of-rome", "nonce": "another" }).to_string();
    assert_eq!(call(milan, "DELETE", "/identity", &release).await.0, 409);

    // The request without a nonce, as the seed prints it, works once.
    let naples = issue_identity_to_naples(milan).await;
    assert_eq!(post(naples).await.0, 409);
    let namespaces = Api::<Namespace>::all(milan.client.clone());

    // The record does not keep the response.
    let records = Api::<Secret>::namespaced(milan.client.clone(), "liqo-auth");
    let keys = async || {
        let record = records.get("identity-id-of-naples").await.expect("the record");
        record.data.unwrap_or_default().into_keys().collect::<Vec<_>>()
    };
    let left = |keys: &Vec<String>| !keys.iter().any(|key| key == "kubeconfig");
    eventually("no kubeconfig in the record", keys, left).await;

    // With its own nonce a cluster can repeat the request.
    let pisa =
        json!({ "clusterID": "id-of-pisa", "clusterName": "pisa", "token": token, "nonce": "n0" });
    for _ in 0..2 {
        assert_eq!(post(pisa.clone()).await.0, 200);
    }
    // Deleting the record revokes the identity.
    records.delete("identity-id-of-pisa", &Default::default()).await.expect("deleted");
    let there = async || namespaces.get_opt("liqo-tenant-pisa").await.expect("an answer").is_some();
    eventually("the tenant namespace is deleted", there, |there| !there).await;
}

/// Returns the request that naples sent.
pub async fn issue_identity_to_naples(milan: &Side) -> Value {
    let naples = json!({ "clusterID": "id-of-naples", "token": milan.token().await });
    let (status, answer) = call(milan, "POST", "/identity", &naples.to_string()).await;
    assert_eq!(status, 200, "{}", answer["error"]);
    assert!(answer["kubeconfig"].as_str().expect("a kubeconfig").contains("milan"));
    milan.get::<Namespace>("liqo-tenant-id-of-naples").await.expect("its namespace");
    naples
}

pub async fn info_and_errors_are_returned(milan: &Side) {
    let (status, info) = call(milan, "GET", "/info", "").await;
    assert_eq!(status, 200);
    assert_eq!(info["clusterID"], "id-of-milan");
    assert_eq!(info["clusterName"], "milan");
    assert_eq!(info["apiServerUrl"], milan.settings.api_server_url);
    assert!(info["apiServerCA"].as_str().is_some_and(|pem| pem.starts_with("-----BEGIN")));

    let namesake =
        json!({ "clusterID": "id-of-x", "clusterName": "milan", "token": milan.token().await });
    let (status, answer) = call(milan, "POST", "/identity", &namesake.to_string()).await;
    assert_eq!((status, &answer["reason"]), (409, &json!("SameName")), "{answer}");
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains("tombolo install --cluster-name"), "{error}");

    let huge = json!({ "clusterID": "x", "token": "y".repeat(20_000) }).to_string();
    for (method, path, body, expected) in [
        ("POST", "/identity", r#"{"clusterID": "id-of-x", "token": "wrong"}"#, 401),
        ("POST", "/identity", r#"{"clusterID": "id-of-x"}"#, 401),
        ("POST", "/identity", r#"{"clusterID": "../.."}"#, 400),
        ("POST", "/identity", "{", 400),
        ("POST", "/identity", &huge, 413),
        ("GET", "/identity", "", 405),
        ("GET", "/secrets", "", 404),
    ] {
        let (status, answer) = call(milan, method, path, body).await;
        assert_eq!(status, expected, "{method} {path}");
        assert!(answer["error"].is_string(), "{method} {path}: {answer}");
    }
}

/// The ClusterConfig refers to a Secret that is created later and then renewed.
pub async fn a_user_provided_certificate_is_loaded_when_created_or_renewed(
    rome: &Side,
    logs: &Logs,
) {
    let auth = json!({ "certificate": "given" });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "auth": auth } })).await;
    let missed = async || logs.have("use the certificate in Secret liqo/given");
    eventually("the missing Secret is logged", missed, |missed| *missed).await;
    for name in ["first.example.com", "second.example.com"] {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a pair");
        let pem = made.cert.pem();
        let data = json!({ "tls.crt": pem, "tls.key": made.signing_key.serialize_pem() });
        rome.put_in::<Secret>("liqo", "given", json!({ "stringData": data })).await;
        let used = async || rome.secret("liqo", "liqo-auth-cert", "tls.crt").await;
        eventually(&format!("the certificate for {name} is used"), used, |used| *used == pem).await;
    }
}

pub async fn call(side: &Side, method: &str, path: &str, body: &str) -> (u16, Value) {
    call_at(&side.url, method, path, body).await
}

pub async fn call_at(url: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut config = Config::new(url.parse().expect("a URL"));
    config.accept_invalid_certs = true;
    let client = Client::try_from(config).expect("a client");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::from(body.as_bytes().to_vec()))
        .expect("a request");
    let response = client.send(request).await.expect("an answer");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}
