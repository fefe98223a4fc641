//! Several interfaces, and interfaces and addresses that come and go while discovery runs.

use serde_json::json;
use tombolo_api::discovery::ForeignCluster;

use crate::{
    lan::{Lan, address},
    side::Side,
};

pub async fn are_followed(rome: &Side, milan: &Side) {
    for side in [rome, milan] {
        side.clear::<ForeignCluster>().await;
        side.none::<ForeignCluster>().await;
        side.configure(json!({ "ttlSeconds": 3 })).await;
    }
    let one = &rome.cluster.node(1).network_namespace()[..];
    let other = &milan.cluster.node(1).network_namespace()[..];
    let at_rome = rome.start();
    let at_milan = milan.start();
    let node = milan.cluster.node(1).address().to_string();
    finds_at(rome, milan, &node).await;
    milan.finds("rome").await;

    // On an interface that does not exist they do not discover each other.
    for side in [rome, milan] {
        side.configure(json!({ "ttlSeconds": 3, "interfaces": ["lan0"] })).await;
    }
    rome.forgets("milan").await;
    milan.forgets("rome").await;

    // Once it exists they do, and they follow its addresses.
    let lan = Lan::connect((one, "lan0"), (other, "lan0"));
    address(one, "add", "198.51.100.1/24", "lan0");
    address(other, "add", "198.51.100.2/24", "lan0");
    finds_at(rome, milan, "198.51.100.2").await;
    finds_at(milan, rome, "198.51.100.1").await;
    address(other, "add", "198.51.100.3/24", "lan0");
    address(other, "del", "198.51.100.2/24", "lan0");
    // Deleting the primary address has deleted the secondary one.
    address(other, "replace", "198.51.100.3/24", "lan0");
    finds_at(rome, milan, "198.51.100.3").await;
    drop(lan);
    rome.forgets("milan").await;
    milan.forgets("rome").await;

    // Without configured interfaces all are used. Milan is reached at its address in a network that
    // rome is in, and rome ignores its own announcements, although it receives them.
    let lan = Lan::connect((one, "lan0"), (other, "lan0"));
    let circle = Lan::connect((one, "lan1"), (one, "lan2"));
    address(one, "add", "192.0.2.1/24", "lan0");
    address(other, "add", "192.0.2.2/24", "lan0");
    address(one, "add", "203.0.113.1/24", "lan1");
    address(one, "add", "203.0.113.2/24", "lan2");
    for side in [rome, milan] {
        side.configure(json!({ "ttlSeconds": 3 })).await;
    }
    finds_at(milan, rome, &rome.cluster.node(1).address().to_string()).await;
    finds_at(rome, milan, &node).await;
    assert!(rome.entry("rome").await.is_none());

    // One network is gone: they discover each other in the other.
    for side in [rome, milan] {
        side.configure(json!({ "ttlSeconds": 3, "interfaces": ["lan0", "lan1", "lan2"] })).await;
    }
    finds_at(rome, milan, "192.0.2.2").await;
    finds_at(milan, rome, "192.0.2.1").await;
    assert!(rome.entry("rome").await.is_none());
    drop((lan, circle));
    at_milan.stop();
    at_rome.stop();
}

/// Only IPv6 between the clusters.
pub async fn may_be_ipv6_only(rome: &Side, milan: &Side) {
    for side in [rome, milan] {
        side.clear::<ForeignCluster>().await;
        side.none::<ForeignCluster>().await;
        side.configure(json!({ "ttlSeconds": 3, "interfaces": ["lan0"] })).await;
    }
    let one = &rome.cluster.node(1).network_namespace()[..];
    let other = &milan.cluster.node(1).network_namespace()[..];
    let lan = Lan::connect((one, "lan0"), (other, "lan0"));
    address(one, "add", "2001:db8:6::1/64", "lan0");
    address(other, "add", "2001:db8:6::2/64", "lan0");
    let at_rome = rome.start();
    let at_milan = milan.start();
    finds_at(rome, milan, "[2001:db8:6::2]").await;
    finds_at(milan, rome, "[2001:db8:6::1]").await;
    at_milan.stop();
    rome.forgets("milan").await;
    at_rome.stop();
    drop(lan);
}

/// Waits until the entry of `other` has this address.
async fn finds_at(side: &Side, other: &Side, address: &str) {
    let url = format!("https://{address}:{}", other.port().await);
    let name = other.settings.cluster_name.as_str();
    side.until::<ForeignCluster>(name, |entry| entry.spec.auth_url == url).await;
}
