//! Somebody announces clusters whose auth service takes every connection and never says a word.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::net::TcpListener;
use tombolo_testbed::eventually;

use crate::{logs::Logs, side::Side, story::forget};

const COUNT: usize = 100;

/// Less than one who never answers is waited for.
const SOON: Duration = Duration::from_secs(4);

pub async fn who_never_answers_keeps_nobody_waiting(rome: &Side, milan: &Side, logs: &Logs) {
    milan.takes_no_token(true).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let tarpit = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok(connection) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            open.push(connection);
        }
    });
    let names: Vec<String> = (0..COUNT).map(|number| format!("tarpit-{number:03}")).collect();
    join_all(names.iter().map(|name| rome.meets(name, &url))).await;
    let asked = async || taken.load(Ordering::Relaxed);
    eventually("all are waited for", asked, |asked| *asked >= COUNT).await;

    let start = Instant::now();
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "Accepted").await;
    println!("identity {} ms after {COUNT} tarpits", start.elapsed().as_millis());
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    // Nor does who has one.
    let start = Instant::now();
    forget(rome, "milan").await;
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());

    eventually("all were tried again", asked, |asked| *asked >= 2 * COUNT).await;
    for name in [&names[0], &names[COUNT - 1]] {
        rome.says(name, "AuthUnreachable").await;
        assert_eq!(logs.warnings(name), 1, "{name}");
    }
    join_all(names.iter().map(|name| forget(rome, name))).await;
    tarpit.abort();
}
