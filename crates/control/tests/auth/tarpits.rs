//! Peers whose auth service accepts connections and never responds.

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

use crate::{logs::Logs, side::Side, story::delete_and_wait};

const COUNT: usize = 100;

/// Less than the timeout for a peer that does not respond.
const SOON: Duration = Duration::from_secs(4);

pub async fn unresponsive_peers_do_not_delay_others(rome: &Side, milan: &Side, logs: &Logs) {
    milan.allow_empty_token(true).await;
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
    join_all(names.iter().map(|name| rome.add_foreign_cluster(name, &url))).await;
    let asked = async || taken.load(Ordering::Relaxed);
    eventually("requests to all tarpits are pending", asked, |asked| *asked >= COUNT).await;

    let start = Instant::now();
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "Accepted").await;
    println!("identity {} ms after {COUNT} tarpits", start.elapsed().as_millis());
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    // Deletion is not delayed either.
    let start = Instant::now();
    delete_and_wait(rome, "milan").await;
    assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());

    eventually("all tarpits were retried", asked, |asked| *asked >= 2 * COUNT).await;
    for name in [&names[0], &names[COUNT - 1]] {
        rome.wait_for_reason(name, "AuthUnreachable").await;
        assert_eq!(logs.warnings(name), 1, "{name}");
    }
    join_all(names.iter().map(|name| delete_and_wait(rome, name))).await;
    tarpit.abort();
}
