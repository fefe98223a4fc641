//! Rate limits and connection limits: excess requests are rejected, other clients are still served.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_api::discovery::AuthStatus;
use tombolo_testbed::eventually;

use crate::{
    caller::{Answer, Caller, read_until_closed},
    hostile::{a_valid_request_succeeds, record_names},
    logs::Logs,
    replay::Lucca,
    side::Side,
    story::delete_and_wait,
};

/// Attempts per request when the connection fails.
const TRIES: usize = 5;

/// A wrong token.
pub const WRONG: &str = "wr0ng-token";

/// Below the limits: no request is rejected.
pub async fn two_hundred_clusters_can_share_one_address(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 0]).await;
    let start = Instant::now();
    let unheard = Arc::new(AtomicUsize::new(0));
    let all = (0..200).map(|number| {
        let (caller, unheard) = (caller.clone(), unheard.clone());
        // A client under load may run into the timeout. It retries, as clusters do.
        let request = async move |method: &str, path: &str, body: &str| {
            for _ in 0..TRIES {
                match caller.try_request(method, path, body).await {
                    Ok(answer) => return (answer.status, answer.reason().to_owned()),
                    Err(error) => println!("cluster {number} retries: {error}"),
                }
                unheard.fetch_add(1, Ordering::Relaxed);
            }
            panic!("{method} {path}: no response after {TRIES} attempts");
        };
        tokio::spawn(async move {
            let body = json!({ "clusterID": format!("id-of-{number}"), "nonce": "n" }).to_string();
            let info = request("GET", "/info", "").await;
            let first = request("POST", "/identity", &body).await;
            (info.0, first, request("POST", "/identity", &body).await)
        })
    });
    for answers in join_all(all).await {
        let refused = (401, "EmptyTokenRefused".to_owned());
        assert_eq!(answers.expect("answers"), (200, refused.clone(), refused));
    }
    let (millis, unheard) = (start.elapsed().as_millis(), unheard.load(Ordering::Relaxed));
    println!("600 requests of 200 clusters at once: {millis} ms, {unheard} failed attempts");
    assert!(unheard < 200, "{unheard} failed attempts");
}

/// Eight clusters each request several certificates concurrently.
pub async fn concurrent_certificate_requests_do_not_delay_others(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 6]).await;
    let token = milan.token().await;
    let request = |cluster: usize, turn: usize| {
        let body = json!({
            "clusterID": format!("id-of-hasty-{cluster}"), "token": token, "nonce": "hasty-nonce",
            "signingRequest": format!("{turn} is no signing request"),
        });
        let caller = caller.clone();
        tokio::spawn(async move { caller.post("/identity/certificate", &body).await })
    };
    let all: Vec<_> = (0..40).map(|number| request(number % 8, number / 8)).collect();
    let recorded = async || {
        let names = record_names(milan).await;
        names.iter().filter(|name| name.starts_with("identity-id-of-hasty-")).count()
    };
    eventually("all clusters have a record", recorded, |count| *count == 8).await;
    let start = Instant::now();
    a_valid_request_succeeds(milan).await;
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    for answer in join_all(all).await {
        let Answer { status, body, .. } = answer.expect("an answer");
        let expected = match status {
            409 => "a later request of this cluster has replaced this one: try again",
            503 => "an earlier request of this cluster is still being processed: try again",
            _ => "",
        };
        assert!([409, 422, 503].contains(&status), "{status}: {body}");
        assert!(expected.is_empty() || body["error"] == expected, "{status}: {body}");
    }
}

pub async fn requests_per_address_are_rate_limited(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 1]).await;
    let start = Instant::now();
    let lines = (0..4).map(async |_| {
        let mut line = caller.connect().await.expect("TLS");
        let mut answers = Vec::new();
        for _ in 0..400 {
            answers.push(line.request("GET", "/info", "").await.expect("an answer"));
        }
        answers
    });
    let (answers, ()) = tokio::join!(join_all(lines), a_valid_request_succeeds(milan));
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    let seconds = start.elapsed().as_secs();
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((1000..=1000 + 20 * (seconds as usize + 1)).contains(&answered), "{answered}");
    let refused = answers.iter().find(|answer| answer.status != 200).expect("too many");
    assert_rate_limited(refused, "your address");
    println!("{answered} of {} requests in {seconds} s from one address", answers.len());
    let again = async || caller.request("GET", "/info", "").await.status;
    eventually("requests are accepted again", again, |status| *status == 200).await;
}

/// Rome shares its address with a client that floods the service.
pub async fn a_rate_limited_cluster_retries(rome: &Side, milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 1]).await;
    let (told, mut is_told) = watch::channel(false);
    let flood = tokio::spawn(async move {
        let mut line = caller.connect().await.expect("TLS");
        loop {
            let answer = line.request("GET", "/info", "").await.expect("an answer");
            told.send_replace(answer.status == 429);
        }
    });
    is_told.wait_for(|told| *told).await.expect("too many");
    milan.allow_empty_token(true).await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    let message = rome.wait_for_reason("milan", "AuthFailed").await;
    assert!(message.contains("429") && message.contains("too many requests"), "{message}");
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Pending));
    flood.abort();
    rome.wait_for_reason("milan", "Accepted").await;
    delete_and_wait(rome, "milan").await;
}

/// After too many wrong tokens from an address even the correct token is rejected. Renewals with a
/// known nonce need no token and still succeed.
pub async fn wrong_tokens_are_rate_limited(milan: &Side, lucca: &Lucca) {
    let caller = Caller::new(milan, [127, 0, 0, 7]).await;
    let start = Instant::now();
    let mut line = caller.connect().await.expect("TLS");
    let mut wrong = 0;
    let refused = loop {
        let body = guess(&format!("id-of-guesser-{wrong}"), WRONG);
        let answer = line.request("POST", "/identity", &body.to_string()).await.expect("an answer");
        if answer.reason() != "WrongToken" {
            break answer;
        }
        assert_eq!(answer.status, 401);
        wrong += 1;
    };
    assert_rate_limited(&refused, "wrong tokens");
    let seconds = start.elapsed().as_secs() as usize;
    assert!((100..=101 + seconds / 2).contains(&wrong), "{wrong} in {seconds} s");
    println!("{wrong} wrong tokens in {seconds} s from one address");
    let right = guess("id-of-guesser", &milan.token().await);
    let refused = line.request("POST", "/identity", &right.to_string()).await.expect("an answer");
    assert_rate_limited(&refused, "wrong tokens");
    assert_eq!(lucca.send(&lucca.request).await.status, 200, "a renewal from the same address");
    a_valid_request_succeeds(milan).await;
}

/// The limit also applies to requests with the correct token and nonce.
pub async fn requests_per_cluster_are_rate_limited(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 3]).await;
    let token = milan.token().await;
    let body = json!({
        "clusterID": "id-of-eager", "clusterName": "eager", "token": token, "nonce": "eager-nonce",
    });
    let start = Instant::now();
    let mut given = 0;
    let refused = loop {
        let answer = caller.post("/identity", &body).await;
        if answer.status != 200 {
            break answer;
        }
        given += 1;
    };
    assert_rate_limited(&refused, "of this cluster");
    let seconds = start.elapsed().as_secs() as usize;
    assert!((30..=31 + seconds / 2).contains(&given), "{given} in {seconds} s");
    a_valid_request_succeeds(milan).await;
    let again = async || caller.post("/identity", &body).await.status;
    eventually("requests are accepted again", again, |status| *status == 200).await;
}

/// Ten thousand unknown clusters from a thousand addresses. Unit tests of the limits cover the
/// maximum number of tracked clients.
pub async fn ten_thousand_unknown_clusters_use_little_memory(milan: &Side, logs: &Logs) {
    let caller = Caller::new(milan, [127, 0, 2, 0]).await;
    let before = memory().saturating_sub(logs.bytes());
    let start = Instant::now();
    let addresses = stream::iter(0..1000_u16).map(async |number| {
        let [high, low] = number.to_be_bytes();
        let caller = caller.at([127, 2, high, low]);
        let mut line = caller.connect().await.expect("TLS");
        for turn in 0..10 {
            let body = guess(&format!("invented-{number}-{turn}"), WRONG).to_string();
            let answer = line.request("POST", "/identity", &body).await.expect("an answer");
            assert_eq!((answer.status, answer.reason()), (401, "WrongToken"));
        }
    });
    let all = addresses.buffer_unordered(16).collect::<Vec<()>>();
    tokio::join!(all, a_valid_request_succeeds(milan));
    let after = memory().saturating_sub(logs.bytes());
    let grown = after.saturating_sub(before) >> 20;
    println!("10,000 clusters in {} s: {grown} MiB more", start.elapsed().as_secs());
    assert!(grown < 48, "{grown} MiB more");
}

/// Without a token, any client could otherwise fill the API server with records.
pub async fn the_number_of_identities_is_limited(milan: &Side) {
    milan.allow_empty_token(true).await;
    let caller = Caller::new(milan, [127, 0, 1, 4]).await;
    let request = async |id: &str| {
        let body = json!({ "clusterID": id, "nonce": "n-of-one-of-many" });
        caller.post("/identity", &body).await
    };
    let first = async || request("id-of-first").await.status;
    eventually("empty tokens are accepted", first, |status| *status == 200).await;
    // An unused identity is kept until the limit is reached.
    assert_eq!(request("id-of-unused").await.status, 200);
    let (unused, tenant) = ("identity-id-of-unused", "liqo-tenant-id-of-unused");
    let long_ago = || json!({ "stringData": { "answeredAt": "2026-01-01T12:00:00Z" } });
    milan.put_in::<Secret>("liqo-auth", unused, long_ago()).await;
    assert_eq!(request("id-of-first").await.status, 200, "a renewal below the limit");
    let kept = milan.get_in::<Secret>("liqo-auth", unused).await.expect("the record");
    assert!(kept.metadata.deletion_timestamp.is_none());

    let records = milan.within::<Secret>("liqo-auth");
    let filler = |number| {
        let labels = json!({ "discovery.liqo.io/identity": "true", "filler": "true" });
        let metadata = json!({ "name": format!("identity-filler-{number}"), "labels": labels });
        serde_json::from_value::<Secret>(json!({ "metadata": metadata })).expect("a Secret")
    };
    let made = stream::iter(0..1024).map(async |number| {
        records.create(&PostParams::default(), &filler(number)).await.expect("made");
    });
    made.buffer_unordered(16).collect::<Vec<()>>().await;
    let full = async || {
        let answer = request("id-of-one-too-many").await;
        (answer.status, answer.error().to_owned())
    };
    let (_, error) = eventually("the limit is reached", full, |(status, _)| *status == 507).await;
    assert!(error.contains("delete the Secret identity-<cluster id>"), "{error}");
    assert!(milan.get_in::<Secret>("liqo-auth", "identity-id-of-one-too-many").await.is_none());
    assert_eq!(request("id-of-first").await.status, 200, "existing identities can be renewed");

    // At the limit the unused identity is evicted. Identities in use are kept.
    assert!(milan.get::<Namespace>(tenant).await.is_some());
    let touched = json!({ "metadata": { "annotations": { "touched": "" } } });
    let touched = Patch::Merge(touched);
    for name in [unused, "identity-id-of-first"] {
        records.patch(name, &PatchParams::default(), &touched).await.expect("touched");
    }
    milan.until_gone_in::<Secret>("liqo-auth", unused).await;
    milan.until_gone::<Namespace>(tenant).await;
    let kept = milan.get_in::<Secret>("liqo-auth", "identity-id-of-first").await;
    assert!(kept.is_some_and(|kept| kept.metadata.deletion_timestamp.is_none()));
    a_valid_request_succeeds(milan).await;

    let fillers = ListParams::default().labels("filler=true");
    records.delete_collection(&DeleteParams::default(), &fillers).await.expect("deleted");
    let room = async || request("id-of-one-too-many").await.status;
    eventually("new identities are issued again", room, |status| *status == 200).await;
    milan.allow_empty_token(false).await;
}

/// Connections per address are limited, and idle ones are closed soon.
pub async fn connections_per_address_are_limited(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 5]).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(caller.tcp().await.expect("TCP"));
    }
    // Excess connections are closed without a response.
    assert!(caller.connect().await.is_err(), "a connection above the limit was accepted");
    a_valid_request_succeeds(milan).await;
    join_all(open.iter_mut().map(read_until_closed)).await;
    let again = async || caller.connect().await.is_ok();
    eventually("connections are accepted again", again, |there| *there).await;
}

fn guess(id: &str, token: &str) -> Value {
    json!({ "clusterID": id, "token": token, "nonce": "n" })
}

fn assert_rate_limited(answer: &Answer, what: &str) {
    assert_eq!(answer.status, 429, "{}", answer.error());
    assert!(answer.error().starts_with("too many") && answer.error().contains(what));
    assert!(answer.retry_after().is_some_and(|seconds| (1..=60).contains(&seconds)));
}

/// Resident memory of this process, which includes the service.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}
