//! Malformed and oversized requests, and other protocols. The service responds with an error or
//! closes the connection, and creates nothing.

use k8s_openapi::api::core::v1::{Event, Secret};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    caller::{Answer, Caller, read_until_closed},
    logs::Logs,
    side::Side,
};

const NONCE: &str = "n0nce-of-the-good-one";

/// A client with the correct token gets an identity, regardless of other clients.
pub async fn a_valid_request_succeeds(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 9]).await;
    let answer = caller.post("/identity", &good(milan).await).await;
    assert_eq!(answer.status, 200, "{}", answer.error());
    assert!(answer.body["kubeconfig"].as_str().is_some_and(|text| text.contains("liqo-tenant")));
}

async fn good(milan: &Side) -> Value {
    let token = milan.token().await;
    json!({ "clusterID": "id-of-good", "clusterName": "good", "token": token, "nonce": NONCE })
}

pub async fn malformed_requests_get_an_error(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 4]).await;
    let token = milan.token().await;
    let records = record_names(milan).await;
    let deep = format!("{{\"clusterID\": {}", "[".repeat(8000));
    let long = format!(r#"{{"clusterID": "{}", "token": "{token}"}}"#, "x".repeat(300));
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"{",
        b"null",
        b"7",
        b"[]",
        b"{}",
        br#"{"clusterID": 7}"#,
        br#"{"clusterID": null}"#,
        br#"{"clusterID": {"a": 1}}"#,
        br#"{"clusterID": "x", "token": 7}"#,
        br#"{"clusterID": "x", "token": ["y"]}"#,
        br#"{"clusterID": "x", "clusterID": "y"}"#,
        br#"{"clusterID": "../.."}"#,
        br#"{"clusterID": "x\u0000"}"#,
        br#"{"clusterID": ""}"#,
        br#"{"clusterID": "X"}"#,
        br#"{"clusterID": "x"} {"clusterID": "y"}"#,
        br#"{"clusterID": "x", "nonce": 1e999}"#,
        b"{\"clusterID\": \"\xff\xfe\"}",
        b"\xff\xfe\x00\x01",
        deep.as_bytes(),
        long.as_bytes(),
    ];
    for path in ["/identity", "/identity/certificate"] {
        for body in &bodies {
            let answer = raw(&caller, "POST", path, body).await;
            let shown = String::from_utf8_lossy(body).chars().take(60).collect::<String>();
            assert_eq!(answer.status, 400, "{path} {shown}");
            assert!(!answer.error().is_empty(), "{path} {shown}");
        }
    }
    for body in [&b"{}"[..], br#"{"clusterID": "x"}"#, br#"{"clusterID": "x", "nonce": 7}"#] {
        assert_eq!(raw(&caller, "DELETE", "/identity", body).await.status, 400);
    }
    let incomplete = json!({ "clusterID": "x", "token": token, "nonce": "n" });
    assert_eq!(caller.post("/identity/certificate", &incomplete).await.status, 400);
    for (method, path, expected) in [
        ("BREW", "/identity", 405),
        ("PATCH", "/identity", 405),
        ("TRACE", "/info", 405),
        ("OPTIONS", "/info", 405),
        ("POST", "/info", 405),
        ("GET", "/", 404),
        ("GET", "/identity/../secrets", 404),
        ("GET", "//info", 404),
        ("GET", "/info/", 404),
        ("GET", "/%69nfo/x", 404),
        ("GET", "/api/v1/namespaces/liqo/secrets", 404),
    ] {
        let answer = caller.request(method, path, "").await;
        assert_eq!(answer.status, expected, "{method} {path}");
        assert!(!answer.error().is_empty(), "{method} {path}");
    }
    assert_eq!(record_names(milan).await, records, "a malformed request created a record");
}

pub async fn oversized_requests_are_rejected(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 5]).await;
    let start = "POST /identity HTTP/1.1\r\nHost: liqo-auth\r\n";
    let filler = "x".repeat(20_000);
    let huge = format!("{start}Content-Length: {}\r\n\r\n{filler}", filler.len());
    let claimed = format!("{start}Content-Length: 99999999999\r\n\r\n{filler}");
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    let chunked = format!("{start}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(6));
    for sent in [huge, claimed, chunked] {
        let said = caller.send_raw(sent.as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    }
    let one = format!("GET /info HTTP/1.1\r\nHost: liqo-auth\r\nX: {filler}\r\n\r\n");
    let many = format!("GET /info HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(200));
    let path = format!("GET /{filler} HTTP/1.1\r\nHost: liqo-auth\r\n\r\n");
    for sent in [one, many, path] {
        let said = caller.send_raw(sent.as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 4") || said.is_empty(), "{said}");
    }
}

pub async fn other_protocols_are_rejected(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 6]).await;
    for sent in [&b"GET /info HTTP/1.1\r\nHost: liqo-auth\r\n\r\n"[..], b"SSH-2.0-x\r\n", &[0; 512]]
    {
        let mut tcp = caller.tcp().await.expect("TCP");
        tcp.write_all(sent).await.expect("sent");
        let said = read_until_closed(&mut tcp).await;
        assert!(!said.contains("clusterID"), "{said}");
    }
    for sent in [
        &b"GET /info\r\n\r\n"[..],
        b"GET /info HTTP/3.0\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"POST /identity HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"POST /identity HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /identity HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        b"POST /identity HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"GET /info HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET /info HTTP/1.1\r\nHost: a\r\nX\x00: a\r\n\r\n",
    ] {
        let said = caller.send_raw(sent).await;
        let shown = String::from_utf8_lossy(sent);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{shown}: {said}");
    }
}

/// Asserts that logs and events contain no token, nonce or key.
pub async fn no_secret_is_leaked(milan: &Side, logs: &Logs) {
    let token = milan.token().await;
    let events = Api::<Event>::all(milan.client.clone()).list(&Default::default()).await;
    let events = serde_json::to_string(&events.expect("events").items).expect("JSON");
    for secret in [&*token, NONCE, crate::replay::NONCE, crate::floods::WRONG] {
        logs.assert_absent(secret);
        assert!(!events.contains(secret), "a secret is in the events");
    }
    logs.assert_absent("PRIVATE KEY");
    logs.assert_no_token();
}

/// Names of all identity records.
pub async fn record_names(milan: &Side) -> Vec<String> {
    let records = milan.within::<Secret>("liqo-auth").list(&Default::default()).await;
    records.expect("the records").iter().map(ResourceExt::name_any).collect()
}

async fn raw(caller: &Caller, method: &str, path: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: {length}\r\n\r\n");
    let mut line = caller.connect().await.expect("TLS");
    line.send(&[head.as_bytes(), body].concat()).await.expect("sent");
    line.read_answer().await.expect("an answer")
}
