//! Addresses that the service gives out: kept, refused with a reason, many at once, by one leader.

use std::time::Instant;

use kube::api::ListParams;
use tombolo_api::{
    ClusterId, NatCidr,
    ipam::{
        GetHomePodIpRequest, GetRemotePodIpRequest, MapBatchRequest, MapRequest, UnmapRequest,
        ipam_client::IpamClient, map_result,
    },
    net::IpamStorage,
};
use tonic::{Code, transport::Channel};

use crate::side::{Side, cidr};

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_survives_a_restart() {
    let (rome, _alone) = Side::alone("rome").await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let node = "192.0.2.77";

    let (ipam, mut client, service) = rome.serve().await;
    ipam.reserve(turin.clone(), cidr("10.244.0.0/16"), cidr("10.245.0.0/16")).await.unwrap();
    let name = NatCidr::Remapped(cidr("10.60.0.0/16"));
    ipam.set_local_names(turin.clone(), NatCidr::None, name).await.unwrap();
    let mapped = map(&mut client, turin.as_str(), node).await.unwrap();
    assert!(mapped.starts_with("10.60."), "{mapped} is as turin calls it");
    assert_eq!(rome.nat_mappings().await[node], mapped, "the gateway is told");
    assert_eq!(map(&mut client, turin.as_str(), "10.244.1.7").await.unwrap(), "10.244.1.7");
    service.ask();

    let (_, mut client, service) = rome.serve().await;
    assert_eq!(remote(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    assert_eq!(map(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    let other = map(&mut client, turin.as_str(), "192.0.2.78").await.unwrap();
    assert_ne!(other, mapped);

    let unmap = UnmapRequest { cluster_id: turin.to_string(), ip: node.into() };
    client.unmap_endpoint_ip(unmap.clone()).await.unwrap();
    client.unmap_endpoint_ip(unmap).await.expect("what is not mapped can be unmapped");
    let gone = remote(&mut client, turin.as_str(), node).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(rome.nat_mappings().await.keys().collect::<Vec<_>>(), ["192.0.2.78"]);
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cant_be_answered_says_why() {
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
    ipam.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let error = remote(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::NotFound, "192.0.2.1");
    let error = map(&mut client, "id-of-turin", "127.0.0.1").await.unwrap_err();
    says(error, Code::InvalidArgument, "127.0.0.1");
    let ask = |ip: &str| GetHomePodIpRequest { cluster_id: "id-of-turin".into(), ip: ip.into() };
    let error = client.get_home_pod_ip(ask("192.0.2.1")).await.unwrap_err();
    says(error, Code::NotFound, "10.20.0.0/16");
    let home = client.get_home_pod_ip(ask("10.20.3.4")).await.unwrap().into_inner();
    assert_eq!(home.home_ip, "10.20.3.4");

    let request = |ip: &str| MapRequest { cluster_id: "id-of-turin".into(), ip: ip.into() };
    let requests = vec![request("192.0.2.1"), request("nonsense"), request("192.0.2.2")];
    let batch = client.map_endpoint_ip_batch(MapBatchRequest { requests }).await.unwrap();
    let results: Vec<_> =
        batch.into_inner().results.into_iter().filter_map(|result| result.result).collect();
    let [first, wrong, second] = results.as_slice() else { panic!("{results:?}") };
    assert!(matches!(first, map_result::Result::Response(_)));
    assert!(matches!(second, map_result::Result::Response(_)));
    let map_result::Result::Failure(failure) = wrong else { panic!("{wrong:?}") };
    assert_eq!(Code::from_i32(failure.code), Code::InvalidArgument);
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_share_few_writes_and_no_address() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();

    let start = Instant::now();
    let tasks: Vec<_> = (0..5_u8)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let mut names = Vec::new();
                for n in 0..200 {
                    let ip = format!("198.51.{task}.{n}");
                    names.push(map(&mut client, "id-of-turin", &ip).await.unwrap());
                }
                names
            })
        })
        .collect();
    let mut names = Vec::new();
    for task in tasks {
        names.extend(task.await.unwrap());
    }
    println!("1000 mappings for 5 clients: {:?}", start.elapsed());
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1000);
    assert_eq!(rome.nat_mappings().await.len(), 1000);
    let storages = rome.all::<IpamStorage>();
    let storages = storages.list(&ListParams::default()).await.unwrap();
    let most = storages.iter().map(|storage| storage.spec.endpoint_mappings.len()).max();
    assert!(most.unwrap() <= 128, "objects stay small");
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_deposed_cant_write() {
    let (rome, _alone) = Side::alone("rome").await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let (old, mut old_client, old_service) = rome.serve().await;
    old.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    old.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let (_, mut new_client, new_service) = rome.serve().await;

    let first = map(&mut new_client, "id-of-turin", "192.0.2.1").await.unwrap();
    let error = map(&mut old_client, "id-of-turin", "192.0.2.2").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    // It has looked again since.
    assert_eq!(remote(&mut old_client, "id-of-turin", "192.0.2.1").await.unwrap(), first);
    assert_eq!(rome.nat_mappings().await.len(), 1);
    old_service.ask();
    new_service.ask();
}

async fn map(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, tonic::Status> {
    let request = MapRequest { cluster_id: cluster.into(), ip: ip.into() };
    Ok(client.map_endpoint_ip(request).await?.into_inner().ip)
}

async fn remote(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, tonic::Status> {
    let request = GetRemotePodIpRequest { cluster_id: cluster.into(), ip: ip.into() };
    Ok(client.get_remote_pod_ip(request).await?.into_inner().remote_ip)
}
