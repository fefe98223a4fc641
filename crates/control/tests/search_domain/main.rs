//! The clusters that a domain lists in a real DNS server become ForeignClusters of that domain.
//! They follow the records, and expire after the last answer, never before their TTL.

#[path = "../common/mod.rs"]
mod common;

use std::net::Ipv4Addr;

use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tombolo_api::{
    config::ClusterConfig,
    discovery::{ForeignCluster, SearchDomain},
};
use tombolo_control::discovery::Servers;
use tombolo_testbed::{ClusterSpec, Testbed, answer_to};
use tombolo_testing::{DnsServer, Side};

use common::Running;

const DOMAIN: &str = "company";

/// Milan has an IPv4 address and turin an IPv6 one.
const TWO: &str = "
clusters PTR campus-1.clusters
clusters PTR campus-6.clusters
campus-1.clusters SRV 0 0 443 auth.campus-1
campus-1.clusters TXT \"id=milan-id\" \"name=milan\" \
    \"fingerprint=0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\"
campus-6.clusters SRV 9 0 1 nowhere
campus-6.clusters SRV 0 0 31200 auth.campus-6
campus-6.clusters TXT id=turin-id name=turin
auth.campus-1 A 192.0.2.1
auth.campus-6 AAAA 2001:db8::6
";

/// Turin is gone. One has no TXT record, one is incomplete, two have an entry already, one is this
/// cluster itself.
const OTHERS: &str = "
clusters PTR campus-1.clusters
clusters PTR campus-2.clusters
clusters PTR campus-3.clusters
clusters PTR campus-4.clusters
clusters PTR campus-5.clusters
clusters PTR campus-7.clusters
campus-1.clusters SRV 0 0 443 auth.campus-1
campus-1.clusters TXT id=milan-id name=milan
campus-2.clusters SRV 0 0 443 auth.campus-2
campus-4.clusters SRV 0 0 443 auth.campus-1
campus-4.clusters TXT id=naples-id name=naples
campus-5.clusters SRV 0 0 443 auth.campus-1
campus-5.clusters TXT id=genoa-id name=genoa
campus-7.clusters SRV 0 0 443 auth.campus-1
campus-7.clusters TXT id=id-of-rome name=rome
auth.campus-1 A 192.0.2.1
auth.campus-2 A 192.0.2.2
";

const ONE: &str = "
clusters PTR campus-1.clusters
campus-1.clusters SRV 0 0 443 auth.campus-1
campus-1.clusters TXT id=milan-id name=milan
auth.campus-1 A 192.0.2.1
";

/// Of DNS records, in seconds. Long enough for entries to be renewed in time on a busy machine.
const TTL: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_followed() {
    let bed = Testbed::builder("search-domain")
        .cluster(ClusterSpec::new("rome").control_plane_only())
        .start()
        .await
        .expect("the API server starts");
    let cluster = bed.cluster("rome");
    let mut rome = Side::new(cluster).await;
    rome.settings.host_ip = cluster.node(1).address().into();
    let mut dns = DnsServer::new(cluster.node(1).network_namespace(), Ipv4Addr::LOCALHOST);

    found(&rome, &mut dns).await;
}

async fn found(rome: &Side, dns: &mut DnsServer) {
    // Only the TTL triggers another search.
    configure(rome, 3600).await;
    dns.serve(TTL, TWO);
    let spec = json!({ "domain": "clusters.example.com.", "autojoin": true });
    rome.put::<SearchDomain>(DOMAIN, json!({ "spec": spec })).await;
    let running = Running::start(rome, Servers::At(dns.address()));

    let milan = rome.until::<ForeignCluster>("milan", |_| true).await;
    assert_eq!(milan.spec.auth_url, "https://auth.campus-1.example.com:443");
    assert_eq!((milan.spec.ttl, milan.spec.join), (Some(TTL), true));
    assert_eq!(milan.spec.fingerprint.expect("a fingerprint").to_string(), "0f".repeat(32));
    assert_eq!(milan.labels()["discovery.liqo.io/discovery-type"], "WAN");
    let domain = rome.get::<SearchDomain>(DOMAIN).await.expect("it is there");
    let owner = &milan.owner_references()[0];
    assert_eq!((&owner.kind[..], Some(&owner.uid)), ("SearchDomain", domain.uid().as_ref()));
    let turin = rome.until::<ForeignCluster>("turin", |_| true).await;
    assert_eq!(turin.spec.auth_url, "https://auth.campus-6.example.com:31200");
    let message = condition_message(rome, "Found").await;
    assert!(message.contains("127.0.0.1:5300") && message.contains("clusters.example.com."));
    assert_eq!(listed(rome).await, ["milan", "turin"]);

    // A listed entry is refreshed; fields that users set in it stay.
    let (uid, first) = (milan.uid(), seen(&milan));
    rome.join("milan", false).await;
    let milan = rome.until::<ForeignCluster>("milan", |milan| seen(milan) > first).await;
    assert!(milan.uid() == uid && !milan.spec.join);

    // Others are listed. Turin expires, because only `autojoin` wanted a peering that never came
    // about. The stronger kind of discovery wins, and `autojoin` applies first.
    create_entry(rome, "naples", "LAN").await;
    create_entry(rome, "genoa", "Manual").await;
    dns.serve(TTL, OTHERS);
    let nameless = rome.until::<ForeignCluster>("campus-2", |_| true).await;
    assert!(nameless.spec.cluster_identity.is_none() && nameless.spec.join);
    rome.until_gone::<ForeignCluster>("turin").await;
    let is_taken_over = |naples: &ForeignCluster| naples.owner_references().len() == 1;
    let naples = rome.until::<ForeignCluster>("naples", is_taken_over).await;
    assert_eq!(naples.labels()["discovery.liqo.io/discovery-type"], "WAN");
    assert!(naples.spec.join, "no user has set join");
    let message = condition_message(rome, "Incomplete").await;
    assert!(message.contains("campus-3.clusters.example.com. has no SRV record"), "{message}");
    let genoa = rome.get::<ForeignCluster>("genoa").await.expect("it stays");
    assert_eq!(genoa.labels()["discovery.liqo.io/discovery-type"], "Manual");
    assert!(rome.get::<ForeignCluster>("rome").await.is_none());
    assert_eq!(rome.get::<ForeignCluster>("milan").await.and_then(|milan| milan.uid()), uid);

    lost(rome, dns).await;

    // The entries of the domain are deleted with it, and no others.
    dns.serve(60, ONE);
    rome.until::<ForeignCluster>("milan", |_| true).await;
    rome.delete::<SearchDomain>(DOMAIN).await;
    rome.until_gone::<ForeignCluster>("milan").await;
    assert!(rome.get::<ForeignCluster>("genoa").await.is_some());

    left_behind(rome, dns).await;
    running.stop();
}

/// A domain is deleted without its entries: another one adopts them, or they expire with their TTL.
async fn left_behind(rome: &Side, dns: &mut DnsServer) {
    let orphan = DeleteParams::orphan();
    let domains = rome.all::<SearchDomain>();
    let spec = json!({ "spec": { "domain": "clusters.example.com." } });
    rome.put::<SearchDomain>("first", spec.clone()).await;
    let milan = rome.until::<ForeignCluster>("milan", |_| true).await;
    domains.delete("first", &orphan).await.expect("it is deleted");
    rome.until_gone::<SearchDomain>("first").await;
    rome.put::<SearchDomain>("second", spec).await;
    let owner = rome.get::<SearchDomain>("second").await.expect("it is there").uid();
    let is_its = |milan: &ForeignCluster| {
        milan.owner_references().iter().any(|it| Some(&it.uid) == owner.as_ref())
    };
    let taken = rome.until::<ForeignCluster>("milan", is_its).await;
    assert_eq!(taken.uid(), milan.uid());
    dns.serve(3, ONE);
    rome.until::<ForeignCluster>("milan", |milan| milan.spec.ttl == Some(3)).await;
    domains.delete("second", &orphan).await.expect("it is deleted");
    rome.until_gone::<ForeignCluster>("milan").await;
}

/// Whatever happens to the server, no entry is deleted before its TTL expires.
async fn lost(rome: &Side, dns: &mut DnsServer) {
    configure(rome, 1).await;
    type Loss = fn(&mut DnsServer);
    // Without an answer a search takes longer.
    let losses: [(&str, u32, Loss); 3] = [
        ("NoSuchDomain", 14, |dns| dns.serve(2, "")),
        ("ServerFailure", 14, DnsServer::lose_the_zone),
        ("NoAnswer", 25, DnsServer::stop),
    ];
    for (reason, ttl, lose) in losses {
        dns.serve(ttl, ONE);
        condition_message(rome, "Found").await;
        // The entry is older than its last discovery, which happens every second.
        let is_found_again = |it: &ForeignCluster| {
            let age = Timestamp::now().duration_since(seen(it)).as_secs();
            it.spec.ttl == Some(ttl) && age >= 5
        };
        let milan = rome.until::<ForeignCluster>("milan", is_found_again).await;
        let found = Timestamp::now().as_second() - 2;
        lose(dns);
        let message = condition_message(rome, reason).await;
        assert!(message.contains("127.0.0.1:5300") && message.contains("clusters.example.com."));
        let still = rome.get::<ForeignCluster>("milan").await;
        let still = still.unwrap_or_else(|| panic!("{reason}: its TTL had not expired"));
        assert_eq!(still.uid(), milan.uid());
        let expiry = found + i64::from(ttl);
        rome.until_gone::<ForeignCluster>("milan").await;
        assert!(Timestamp::now().as_second() >= expiry, "{reason}: it expired too early");
        let is_empty = |domain: &SearchDomain| {
            domain.status.as_ref().is_some_and(|status| status.foreign_clusters.is_empty())
        };
        rome.until::<SearchDomain>(DOMAIN, is_empty).await;
    }
}

async fn configure(rome: &Side, period: u32) {
    let discovery = json!({ "searchPeriodSeconds": period });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "discovery": discovery } })).await;
}

/// An entry of this kind.
async fn create_entry(rome: &Side, name: &str, kind: &str) {
    let entry = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": name, "labels": { "discovery.liqo.io/discovery-type": kind } },
        "spec": {
            "authUrl": "https://192.0.2.9:443", "ttl": 3600, "join": false,
            "clusterIdentity": { "clusterID": format!("{name}-id"), "clusterName": name },
        },
    });
    let entry: ForeignCluster = serde_json::from_value(entry).expect("an entry");
    let params =
        PostParams { field_manager: Some("liqo-discovery".to_owned()), ..Default::default() };
    rome.all::<ForeignCluster>().create(&params, &entry).await.expect("it is made");
}

/// Waits until the condition of the domain has this reason, and returns its message.
async fn condition_message(rome: &Side, reason: &str) -> String {
    let what = format!("the SearchDomain has the reason {reason}");
    let ask = async || {
        let status = rome.get::<SearchDomain>(DOMAIN).await?.status?;
        let said = status.conditions.into_iter().find(|said| said.type_ == "Searched")?;
        (said.reason == reason).then_some(said.message)
    };
    answer_to(&what, ask).await
}

/// The ForeignClusters in the status of the domain.
async fn listed(rome: &Side) -> Vec<String> {
    let domain = rome.get::<SearchDomain>(DOMAIN).await.expect("it is there");
    let found = domain.status.expect("a status").foreign_clusters;
    found.into_iter().map(|found| found.name).collect()
}

fn seen(entry: &ForeignCluster) -> Timestamp {
    entry.annotations()["discovery.liqo.io/last-update-time"].parse().expect("a time")
}
