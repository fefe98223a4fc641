//! The auth service on a dual-stack listener, as in a cluster.

use serde_json::json;
use tokio::sync::watch;
use tombolo_control::auth;
use tombolo_runtime::{listen, shutdown::Shutdown};

use crate::{caller::Caller, floods::WRONG, service::call_at, side::Side};

pub async fn ipv4_and_ipv6_clients_are_limited_separately(milan: &Side) {
    let listener = listen::everywhere(0).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (ready, mut is_ready) = watch::channel(false);
    let (client, settings, end) = (milan.client.clone(), milan.settings.clone(), Shutdown::new());
    let serving = tokio::spawn(auth::serve(client, settings, listener, ready, end.clone()));
    is_ready.wait_for(|ready| *ready).await.expect("it starts");

    for host in ["[::1]", "127.0.0.1"] {
        let (status, info) = call_at(&format!("https://{host}:{port}"), "GET", "/info", "").await;
        assert_eq!((status, &info["clusterID"]), (200, &json!("id-of-milan")), "{host}");
    }

    // Each IPv4 address is limited separately, although IPv4-mapped addresses share one /64.
    let guesser = Caller::new(milan, [127, 0, 1, 20]).await.to(format!("127.0.0.1:{port}"));
    let body = json!({ "clusterID": "id-of-guesser", "token": WRONG }).to_string();
    let mut line = guesser.connect().await.expect("TLS");
    let mut statuses = Vec::new();
    for _ in 0..120 {
        statuses.push(line.request("POST", "/identity", &body).await.expect("an answer").status);
    }
    assert_eq!((statuses.first(), statuses.last()), (Some(&401), Some(&429)));
    let other = guesser.at([127, 0, 1, 21]);
    assert_eq!(other.request("POST", "/identity", &body).await.status, 401);
    end.trigger();
    drop(line);
    serving.await.expect("the task ends").expect("no error");
}
