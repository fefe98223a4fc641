//! Mapped endpoints: they survive restarts, refusals have a reason, many requests share writes, and
//! only the leader writes.

use std::{collections::BTreeMap, time::Instant};

use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{
    ClusterId, NatCidr,
    ipam::{
        GetHomePodIpRequest, ListRequest, MapBatchRequest, MapRequest, UnmapRequest, map_result,
    },
    net::{IpamStorage, IpamStorageSpec, NatMapping},
};
use tombolo_core::ipam::{SHARD_SIZE, StorageShard, WRITER};
use tombolo_testbed::eventually;
use tonic::Code;

use crate::{
    side::{Side, Time, cidr, map, remote},
    wire::Wire,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_survives_a_restart() {
    let (rome, _alone) = Side::alone("rome").await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let node = "192.0.2.77";

    let (ipam, mut client, service) = rome.serve().await;
    ipam.reserve(turin.clone(), cidr("10.244.0.0/16"), cidr("10.245.0.0/16")).await.unwrap();
    let external = NatCidr::Remapped(cidr("10.60.0.0/16"));
    ipam.set_local_nat_cidrs(turin.clone(), NatCidr::None, external).await.unwrap();
    let mapped = map(&mut client, turin.as_str(), node).await.unwrap();
    assert!(mapped.starts_with("10.60."), "{mapped} is as translated in turin");
    assert_eq!(rome.until_nat_mappings(1).await[node], mapped, "a NatMapping is written");
    assert_eq!(map(&mut client, turin.as_str(), "10.244.1.7").await.unwrap(), "10.244.1.7");
    service.trigger();

    let (_, mut client, service) = rome.serve().await;
    assert_eq!(remote(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    assert_eq!(map(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    let other = map(&mut client, turin.as_str(), "192.0.2.78").await.unwrap();
    assert_ne!(other, mapped);

    let unmap = UnmapRequest { cluster_id: turin.to_string(), ip: node.into(), owner: None };
    client.unmap_endpoint_ip(unmap.clone()).await.unwrap();
    client.unmap_endpoint_ip(unmap).await.expect("unmapping is idempotent");
    let gone = remote(&mut client, turin.as_str(), node).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let only = |mappings: &BTreeMap<String, String>| mappings.keys().eq(["192.0.2.78"]);
    let mappings = async || rome.nat_mappings().await;
    eventually("gateways have only the other mapping", mappings, only).await;
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_exists_until_its_last_owner_unmaps_it() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let owned = |owner: Option<&str>| (owner.map(str::to_owned), "id-of-turin".to_owned());
    for owner in [Some("kubelet"), Some("other"), None] {
        let (owner, cluster_id) = owned(owner);
        let request = MapRequest { cluster_id, ip: "192.0.2.1".into(), owner };
        client.map_endpoint_ip(request).await.unwrap();
    }
    service.trigger();

    let (_, mut client, service) = rome.serve().await;
    let list = |owner: Option<&str>| {
        let (owner, cluster_id) = owned(owner);
        ListRequest { cluster_id, owner, page_token: String::new() }
    };
    let unmap = |owner: Option<&str>| {
        let (owner, cluster_id) = owned(owner);
        UnmapRequest { cluster_id, ip: "192.0.2.1".into(), owner }
    };
    let listed = client.list_mapped_endpoints(list(Some("kubelet"))).await.unwrap().into_inner();
    assert_eq!((listed.ips, listed.next_page_token), (vec!["192.0.2.1".into()], String::new()));
    let listed = client.list_mapped_endpoints(list(Some("nobody"))).await.unwrap().into_inner();
    assert!(listed.ips.is_empty());
    for owner in [None, Some("nobody"), Some("kubelet"), Some("kubelet")] {
        client.unmap_endpoint_ip(unmap(owner)).await.unwrap();
        remote(&mut client, "id-of-turin", "192.0.2.1").await.expect("it has another owner");
    }
    client.unmap_endpoint_ip(unmap(Some("other"))).await.unwrap();
    let gone = remote(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let wrong = client.unmap_endpoint_ip(unmap(Some("No Name"))).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
    let unknown = ListRequest { cluster_id: "id-of-nobody".into(), ..ListRequest::default() };
    let unknown = client.list_mapped_endpoints(unknown).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    let wrong = ListRequest { page_token: "next".into(), ..list(None) };
    let wrong = client.list_mapped_endpoints(wrong).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_have_a_reason() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();

    let says = |error: tonic::Status, code, text: &str| {
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
    };
    let error = map(&mut client, "", "192.0.2.1").await.unwrap_err();
    says(error, Code::InvalidArgument, "clusterID");
    let error = map(&mut client, "id-of-turin", "192.0.2.256").await.unwrap_err();
    says(error, Code::InvalidArgument, "\"192.0.2.256\"");
    let error = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::NotFound, "id-of-turin");

    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    let error = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::Unavailable, "id-of-turin");
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let error = remote(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::NotFound, "192.0.2.1");
    let error = map(&mut client, "id-of-turin", "127.0.0.1").await.unwrap_err();
    says(error, Code::InvalidArgument, "127.0.0.1");
    let home_request =
        |ip: &str| GetHomePodIpRequest { cluster_id: "id-of-turin".into(), ip: ip.into() };
    let error = client.get_home_pod_ip(home_request("192.0.2.1")).await.unwrap_err();
    says(error, Code::NotFound, "10.20.0.0/16");
    let home = client.get_home_pod_ip(home_request("10.20.3.4")).await.unwrap().into_inner();
    assert_eq!(home.home_ip, "10.20.3.4");

    let request =
        |ip: &str| MapRequest { cluster_id: "id-of-turin".into(), ip: ip.into(), owner: None };
    let requests = vec![request("192.0.2.1"), request("nonsense"), request("192.0.2.2")];
    let batch = client.map_endpoint_ip_batch(MapBatchRequest { requests }).await.unwrap();
    let results: Vec<_> =
        batch.into_inner().results.into_iter().filter_map(|result| result.result).collect();
    let [first, wrong, second] = results.as_slice() else { panic!("{results:?}") };
    assert!(matches!(first, map_result::Result::Response(_)));
    assert!(matches!(second, map_result::Result::Response(_)));
    let map_result::Result::Failure(failure) = wrong else { panic!("{wrong:?}") };
    assert_eq!(Code::from_i32(failure.code), Code::InvalidArgument);
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_share_writes_and_get_different_addresses() {
    let (rome, _alone) = Side::alone("rome").await;
    let wire = Wire::new(&rome);
    let (ipam, client, service) = rome.serve_at(wire.client(), Time::default().clock()).await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();

    let (start, before) = (Instant::now(), wire.writes());
    let tasks: Vec<_> = (0..50_u8)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let mut addresses = Vec::new();
                for n in 0..20 {
                    let ip = format!("198.51.{task}.{n}");
                    addresses.push(map(&mut client, "id-of-turin", &ip).await.unwrap());
                }
                addresses
            })
        })
        .collect();
    let mut addresses = Vec::new();
    for task in tasks {
        addresses.extend(task.await.unwrap());
    }
    let writes = wire.writes() - before;
    println!("1000 mappings for 50 clients: {writes} writes in {:?}", start.elapsed());
    assert!(writes * 4 < addresses.len(), "{writes} writes for {} requests", addresses.len());
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 1000);
    rome.until_nat_mappings(1000).await;
    let storages = rome.all::<IpamStorage>();
    let storages = storages.list(&ListParams::default()).await.unwrap();
    let most = storages.iter().map(|storage| storage.spec.endpoint_mappings.len()).max();
    assert!(most.unwrap() <= SHARD_SIZE as usize, "objects stay small");
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_cannot_write_and_stops() {
    let (rome, _alone) = Side::alone("rome").await;
    let (turin, genoa): (ClusterId, ClusterId) =
        ("id-of-turin".parse().unwrap(), "id-of-genoa".parse().unwrap());
    let deposed = async |act: &str| {
        let (old, mut old_client, _) = rome.serve().await;
        for (peer, pods, external) in
            [(&turin, "10.20.0.0/16", "10.21.0.0/16"), (&genoa, "10.30.0.0/16", "10.31.0.0/16")]
        {
            old.reserve(peer.clone(), cidr(pods), cidr(external)).await.unwrap();
            old.set_local_nat_cidrs(peer.clone(), NatCidr::None, NatCidr::None).await.unwrap();
        }
        let first = map(&mut old_client, "id-of-turin", "192.0.2.1").await.unwrap();
        let (_, mut new_client, new_service) = rome.serve().await;
        let before = rome.all_addresses().await;
        // It tries to write to an open shard, a missing shard, or the networks shard.
        match act {
            "known shard" => {
                let error = map(&mut old_client, "id-of-turin", "192.0.2.2").await.unwrap_err();
                assert_eq!(error.code(), Code::Unavailable, "{error}");
            }
            "new shard" => {
                let error = map(&mut old_client, "id-of-genoa", "192.0.2.2").await.unwrap_err();
                assert_eq!(error.code(), Code::Unavailable, "{error}");
            }
            "unmap" => {
                let ip = "192.0.2.1".into();
                let unmap = UnmapRequest { cluster_id: turin.to_string(), ip, owner: None };
                let error = old_client.unmap_endpoint_ip(unmap).await.unwrap_err();
                assert_eq!(error.code(), Code::Unavailable, "{error}");
            }
            _ => {
                let (pods, external) = (cidr("10.40.0.0/16"), cidr("10.41.0.0/16"));
                let peer = "id-of-pisa".parse().unwrap();
                old.reserve(peer, pods, external).await.unwrap_err();
            }
        }
        assert_eq!(rome.all_addresses().await, before, "{act}: nothing has changed");
        eventually("the old service stops", async || old.external_cidr().await.is_err(), |it| *it)
            .await;
        assert_eq!(remote(&mut new_client, "id-of-turin", "192.0.2.1").await.unwrap(), first);
        map(&mut new_client, "id-of-genoa", "192.0.2.9").await.unwrap();
        new_service.trigger();
    };
    for act in ["known shard", "new shard", "unmap", "networks"] {
        deposed(act).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_writer_creates_the_open_shards_of_the_former_one() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    service.trigger();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the former service has stopped", ended, |it| *it).await;

    // The former writer died right after it had opened these shards.
    let shard = StorageShard::Endpoints("id-of-turin".parse().unwrap(), 0);
    let nobody = StorageShard::Endpoints("id-of-nobody".parse().unwrap(), 3);
    let new = StorageShard::Networks("id-of-nobody".parse().unwrap());
    let open = [&shard, &nobody, &new].map(StorageShard::to_string);
    let writer = json!({ "holder": "before", "open": open });
    rome.put::<IpamStorage>(WRITER, json!({ "spec": { "writer": writer } })).await;
    let (_, mut client, service) = rome.serve().await;
    let empty = rome.get::<IpamStorage>(&shard.storage()).await.unwrap();
    assert_eq!(empty.spec, IpamStorageSpec::default());
    let nat_mapping = shard.nat_mapping().unwrap().name();
    let empty = rome.get::<NatMapping>(&nat_mapping).await.unwrap();
    assert!(empty.spec.cluster_mappings.is_empty());
    let empty = rome.get::<IpamStorage>(&new.storage()).await.unwrap();
    assert_eq!(empty.spec, IpamStorageSpec::default());
    assert_eq!(rome.get::<IpamStorage>(&nobody.storage()).await, None, "there is no such peer");

    let mapped = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap();
    assert_eq!(rome.until_nat_mappings(1).await["192.0.2.1"], mapped);
    let ip = "192.0.2.1".into();
    client
        .unmap_endpoint_ip(UnmapRequest { cluster_id: "id-of-turin".into(), ip, owner: None })
        .await
        .unwrap();
    rome.until_nat_mappings(0).await;
    assert!(rome.get::<NatMapping>(&nat_mapping).await.is_some(), "the empty fence stays");
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_recovers_from_changes_by_other_clients() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let first = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap();

    rome.until_nat_mappings(1).await;
    rome.clear::<NatMapping>().await;
    let second = map(&mut client, "id-of-turin", "192.0.2.2").await.unwrap();
    let mappings = rome.until_nat_mappings(2).await;
    assert_eq!((&mappings["192.0.2.1"], &mappings["192.0.2.2"]), (&first, &second));

    let shard = StorageShard::Endpoints("id-of-turin".parse().unwrap(), 0);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "by": "hand" } } }));
    let storages = rome.all::<IpamStorage>();
    storages.patch(&shard.storage(), &PatchParams::default(), &patch).await.unwrap();
    let error = map(&mut client, "id-of-turin", "192.0.2.3").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "it has to reload: {error}");
    map(&mut client, "id-of-turin", "192.0.2.3").await.unwrap();
    rome.until_nat_mappings(3).await;
    service.trigger();
}
