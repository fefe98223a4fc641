//! Callers that come too often, or too many at a time: they are told so, and keep nobody else out.

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
    caller::{Answer, Caller, until_it_ends},
    hostile::{is_served, names},
    logs::Logs,
    replay::Lucca,
    side::Side,
    story::forget,
};

/// How often a cluster tries to be heard.
const TRIES: usize = 5;

/// A token that is not the right one.
pub const WRONG: &str = "wr0ng-token";

/// Whoever is heard is answered, and nobody is turned away.
pub async fn two_hundred_clusters_may_come_at_once_from_one_address(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 0]).await;
    let start = Instant::now();
    let unheard = Arc::new(AtomicUsize::new(0));
    let all = (0..200).map(|number| {
        let (caller, unheard) = (caller.clone(), unheard.clone());
        // Who was too busy to send in time what it began tries again, as clusters do.
        let asks = async move |method: &str, path: &str, body: &str| {
            for _ in 0..TRIES {
                match caller.tries(method, path, body).await {
                    Ok(answer) => return (answer.status, answer.reason().to_owned()),
                    Err(error) => println!("{number} tries again: {error}"),
                }
                unheard.fetch_add(1, Ordering::Relaxed);
            }
            panic!("{method} {path} is not answered");
        };
        tokio::spawn(async move {
            let body = json!({ "clusterID": format!("id-of-{number}"), "nonce": "n" }).to_string();
            let info = asks("GET", "/info", "").await;
            let first = asks("POST", "/identity", &body).await;
            (info.0, first, asks("POST", "/identity", &body).await)
        })
    });
    for answers in join_all(all).await {
        let refused = (401, "EmptyTokenRefused".to_owned());
        assert_eq!(answers.expect("answers"), (200, refused.clone(), refused));
    }
    let (millis, unheard) = (start.elapsed().as_millis(), unheard.load(Ordering::Relaxed));
    println!("600 requests of 200 clusters at once: {millis} ms, {unheard} more were not heard");
    assert!(unheard < 200, "{unheard} were not heard");
}

/// Eight clusters that ask for one certificate after the other without waiting for any.
pub async fn who_overtakes_himself_keeps_nobody_waiting(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 6]).await;
    let token = milan.token().await;
    let asks = |cluster: usize, turn: usize| {
        let body = json!({
            "clusterID": format!("id-of-hasty-{cluster}"), "token": token, "nonce": "hasty-nonce",
            "signingRequest": format!("{turn} is no signing request"),
        });
        let caller = caller.clone();
        tokio::spawn(async move { caller.posts("/identity/certificate", &body).await })
    };
    let all: Vec<_> = (0..40).map(|number| asks(number % 8, number / 8)).collect();
    let recorded = async || {
        let names = names(milan).await;
        names.iter().filter(|name| name.starts_with("identity-id-of-hasty-")).count()
    };
    eventually("all have asked", recorded, |count| *count == 8).await;
    let start = Instant::now();
    is_served(milan).await;
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

pub async fn an_address_that_comes_too_often_is_told_so(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 1]).await;
    let start = Instant::now();
    let lines = (0..4).map(async |_| {
        let mut line = caller.connect().await.expect("TLS");
        let mut answers = Vec::new();
        for _ in 0..400 {
            answers.push(line.asks("GET", "/info", "").await.expect("an answer"));
        }
        answers
    });
    let (answers, ()) = tokio::join!(join_all(lines), is_served(milan));
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    let seconds = start.elapsed().as_secs();
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((1000..=1000 + 20 * (seconds as usize + 1)).contains(&answered), "{answered}");
    let refused = answers.iter().find(|answer| answer.status != 200).expect("too many");
    is_too_many(refused, "your address");
    println!("{answered} of {} requests in {seconds} s from one address", answers.len());
    let again = async || caller.asks("GET", "/info", "").await.status;
    eventually("it may come again", again, |status| *status == 200).await;
}

/// Rome shares its address with somebody who comes all the time.
pub async fn a_cluster_that_is_told_to_come_again_does(rome: &Side, milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 1]).await;
    let (told, mut is_told) = watch::channel(false);
    let flood = tokio::spawn(async move {
        let mut line = caller.connect().await.expect("TLS");
        loop {
            let answer = line.asks("GET", "/info", "").await.expect("an answer");
            told.send_replace(answer.status == 429);
        }
    });
    is_told.wait_for(|told| *told).await.expect("too many");
    milan.takes_no_token(true).await;
    rome.meets("milan", &milan.url).await;
    let message = rome.says("milan", "AuthFailed").await;
    assert!(message.contains("429") && message.contains("too many requests"), "{message}");
    let status = rome.entry("milan").await.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Pending));
    flood.abort();
    rome.says("milan", "Accepted").await;
    forget(rome, "milan").await;
}

/// After some wrong tokens from an address none is looked at, not even the right one; but who is
/// known by its nonce needs none.
pub async fn tokens_can_not_be_guessed(milan: &Side, lucca: &Lucca) {
    let caller = Caller::new(milan, [127, 0, 0, 7]).await;
    let start = Instant::now();
    let mut line = caller.connect().await.expect("TLS");
    let mut wrong = 0;
    let refused = loop {
        let body = guess(&format!("id-of-guesser-{wrong}"), WRONG);
        let answer = line.asks("POST", "/identity", &body.to_string()).await.expect("an answer");
        if answer.reason() != "WrongToken" {
            break answer;
        }
        assert_eq!(answer.status, 401);
        wrong += 1;
    };
    is_too_many(&refused, "wrong tokens");
    let seconds = start.elapsed().as_secs() as usize;
    assert!((100..=101 + seconds / 2).contains(&wrong), "{wrong} in {seconds} s");
    println!("{wrong} wrong tokens in {seconds} s from one address");
    let right = guess("id-of-guesser", &milan.token().await);
    let refused = line.asks("POST", "/identity", &right.to_string()).await.expect("an answer");
    is_too_many(&refused, "wrong tokens");
    assert_eq!(lucca.asks(&lucca.request).await.status, 200, "a renewal from the same address");
    is_served(milan).await;
}

/// Even with all that it takes.
pub async fn a_cluster_that_comes_too_often_is_told_so(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 3]).await;
    let token = milan.token().await;
    let body = json!({
        "clusterID": "id-of-eager", "clusterName": "eager", "token": token, "nonce": "eager-nonce",
    });
    let start = Instant::now();
    let mut given = 0;
    let refused = loop {
        let answer = caller.posts("/identity", &body).await;
        if answer.status != 200 {
            break answer;
        }
        given += 1;
    };
    is_too_many(&refused, "of this cluster");
    let seconds = start.elapsed().as_secs() as usize;
    assert!((30..=31 + seconds / 2).contains(&given), "{given} in {seconds} s");
    is_served(milan).await;
    let again = async || caller.posts("/identity", &body).await.status;
    eventually("it may come again", again, |status| *status == 200).await;
}

/// Little is remembered of ten thousand clusters that nobody knows, from a thousand addresses. That only
/// so many of them are kept apart is tested where the limits are.
pub async fn ten_thousand_invented_clusters_take_no_room(milan: &Side, logs: &Logs) {
    let caller = Caller::new(milan, [127, 0, 2, 0]).await;
    let before = memory().saturating_sub(logs.bytes());
    let start = Instant::now();
    let addresses = stream::iter(0..1000_u16).map(async |number| {
        let [high, low] = number.to_be_bytes();
        let caller = caller.at([127, 2, high, low]);
        let mut line = caller.connect().await.expect("TLS");
        for turn in 0..10 {
            let body = guess(&format!("invented-{number}-{turn}"), WRONG).to_string();
            let answer = line.asks("POST", "/identity", &body).await.expect("an answer");
            assert_eq!((answer.status, answer.reason()), (401, "WrongToken"));
        }
    });
    let all = addresses.buffer_unordered(16).collect::<Vec<()>>();
    tokio::join!(all, is_served(milan));
    let after = memory().saturating_sub(logs.bytes());
    let grown = after.saturating_sub(before) >> 20;
    println!("10,000 clusters in {} s: {grown} MiB more", start.elapsed().as_secs());
    assert!(grown < 48, "{grown} MiB more");
}

/// Where it takes no token, whoever comes could fill the API server.
pub async fn there_are_only_so_many_identities(milan: &Side) {
    milan.takes_no_token(true).await;
    let caller = Caller::new(milan, [127, 0, 1, 4]).await;
    let asks = async |id: &str| {
        let body = json!({ "clusterID": id, "nonce": "n-of-one-of-many" });
        caller.posts("/identity", &body).await
    };
    let first = async || asks("id-of-first").await.status;
    eventually("it takes no token", first, |status| *status == 200).await;
    // Whoever does not come again keeps its identity as long as there is room.
    assert_eq!(asks("id-of-unused").await.status, 200);
    let (unused, tenant) = ("identity-id-of-unused", "liqo-tenant-id-of-unused");
    let long_ago = || json!({ "stringData": { "answeredAt": "2026-01-01T12:00:00Z" } });
    milan.put_in::<Secret>("liqo-auth", unused, long_ago()).await;
    assert_eq!(asks("id-of-first").await.status, 200, "that was seen, too");
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
        let answer = asks("id-of-one-too-many").await;
        (answer.status, answer.error().to_owned())
    };
    let (_, error) = eventually("there are enough", full, |(status, _)| *status == 507).await;
    assert!(error.contains("delete the Secret identity-<cluster id>"), "{error}");
    assert!(milan.get_in::<Secret>("liqo-auth", "identity-id-of-one-too-many").await.is_none());
    assert_eq!(asks("id-of-first").await.status, 200, "who has one keeps it");

    // Now it makes room, and nobody who has come since does.
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
    is_served(milan).await;

    let fillers = ListParams::default().labels("filler=true");
    records.delete_collection(&DeleteParams::default(), &fillers).await.expect("deleted");
    let room = async || asks("id-of-one-too-many").await.status;
    eventually("there is room again", room, |status| *status == 200).await;
    milan.takes_no_token(false).await;
}

/// One address gets only some of the connections, and who says nothing loses them soon.
pub async fn an_address_gets_only_some_of_the_connections(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 1, 5]).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(caller.tcp().await.expect("TCP"));
    }
    // Those that are one too many are closed without a word.
    assert!(caller.connect().await.is_err(), "there is room for more");
    is_served(milan).await;
    join_all(open.iter_mut().map(until_it_ends)).await;
    let again = async || caller.connect().await.is_ok();
    eventually("there is room again", again, |there| *there).await;
}

fn guess(id: &str, token: &str) -> Value {
    json!({ "clusterID": id, "token": token, "nonce": "n" })
}

fn is_too_many(answer: &Answer, what: &str) {
    assert_eq!(answer.status, 429, "{}", answer.error());
    assert!(answer.error().starts_with("too many") && answer.error().contains(what));
    assert!(answer.retry_after().is_some_and(|seconds| (1..=60).contains(&seconds)));
}

/// What this process, and with it the service, has in memory.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}
