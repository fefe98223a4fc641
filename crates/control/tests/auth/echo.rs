//! A peer whose auth service repeats the secrets of the request in its error message.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Bytes,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use serde_json::{Value, json};
use tombolo_api::ClusterIdentity;

use crate::{confidential::assert_not_leaked, logs::Logs, side::Side, story::delete_and_wait};

const TOKEN: &str = "t0ken-that-the-echo-was-told";

type Heard = Arc<Mutex<Vec<Value>>>;

pub async fn echoed_secrets_are_not_leaked(rome: &Side, logs: &Logs) {
    let heard = Heard::default();
    let url = start(&heard);
    let echo = ClusterIdentity {
        cluster_id: "id-of-echo".parse().expect("an id"),
        cluster_name: "echo".parse().expect("a name"),
    };
    rome.add_token("token-for-echo", &echo, TOKEN).await;
    rome.add_foreign_cluster("echo", &url).await;
    let message = rome.wait_for_reason("echo", "WrongToken").await;
    assert!(message.contains("(hidden) was your token"), "{message}");
    let (told, request) = ([rome], heard.lock().unwrap()[0].clone());
    let secret = |key: &str| request[key].as_str().expect("a string in the request").to_owned();
    let (token, nonce, return_token) = (secret("token"), secret("nonce"), secret("returnToken"));
    assert_eq!(token, TOKEN);
    // Not even a part of the nonce.
    let half = nonce[..nonce.len() / 4].to_owned();
    assert_not_leaked(&told, &[token.clone(), half.clone(), return_token.clone()], logs).await;

    // The release of the identity sends the nonce again.
    delete_and_wait(rome, "echo").await;
    assert_eq!(heard.lock().unwrap().last().expect("a request")["nonce"], nonce);
    assert_not_leaked(&told, &[token, half, return_token], logs).await;
}

/// Serves until the test ends.
fn start(heard: &Heard) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["echo".to_owned()]).expect("a pair");
    let key = made.signing_key.serialize_der().try_into().expect("a key");
    let tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a pair");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    listener.set_nonblocking(true).expect("set");
    let info = json!({ "clusterID": "id-of-echo", "clusterName": "echo", "apiServerUrl": url });
    let heard = heard.clone();
    let router = Router::new()
        .route("/info", get(async || Json(info)))
        .fallback(async move |body: Bytes| repeat(&heard, &body));
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(tls)));
    let server = axum_server::from_tcp(listener).expect("a server").acceptor(acceptor);
    tokio::spawn(server.serve(router.into_make_service()));
    url
}

/// Places the nonce where a long message is truncated.
fn repeat(heard: &Heard, body: &[u8]) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let part = |key: &str| request[key].as_str().unwrap_or_default();
    let start = format!("{} was your token, {} mine; ", part("token"), part("returnToken"));
    let error = format!("{start:.<1000}{}", part("nonce"));
    let answer = json!({ "error": error, "reason": "WrongToken" });
    heard.lock().unwrap().push(request);
    (StatusCode::UNAUTHORIZED, Json(answer)).into_response()
}
