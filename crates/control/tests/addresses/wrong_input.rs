//! Errors for invalid requests have the field and its value, for every call, alone and in a batch.

use tombolo_api::{
    ClusterId, NatCidr,
    ipam::{
        Failure, GetHomePodIpBatchRequest, GetHomePodIpRequest, GetRemotePodIpBatchRequest,
        GetRemotePodIpRequest, MAX_BATCH, MapBatchRequest, MapRequest, UnmapBatchRequest,
        UnmapRequest, get_home_pod_ip_result, get_remote_pod_ip_result, ipam_client::IpamClient,
        map_result, unmap_result,
    },
};
use tonic::{Code, Status, transport::Channel};

use crate::side::{Side, cidr};

const TURIN: &str = "id-of-turin";

#[derive(Clone, Copy, Debug)]
enum Call {
    Map,
    Unmap,
    Remote,
    Home,
}

const CALLS: [Call; 4] = [Call::Map, Call::Unmap, Call::Remote, Call::Home];

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_invalid_field() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = TURIN.parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();

    let long = "1".repeat(100_000);
    let (invalid, missing) = (Code::InvalidArgument, Code::NotFound);
    let table = [
        (TURIN, "", invalid, "ip: \"\""),
        (TURIN, "nonsense", invalid, "ip: \"nonsense\""),
        (TURIN, "192.0.2.256", invalid, "ip: \"192.0.2.256\""),
        (TURIN, "192.0.2.0/24", invalid, "ip: \"192.0.2.0/24\""),
        (TURIN, &long, invalid, "ip: \"1111"),
        ("", "192.0.2.1", invalid, "clusterID: \"\""),
        ("No Such", "192.0.2.1", invalid, "clusterID: \"No Such\""),
        (&long, "192.0.2.1", invalid, "clusterID: \"1111"),
        ("id-of-nobody", "192.0.2.1", missing, "id-of-nobody"),
        (TURIN, "2001:db8::1", invalid, "2001:db8::1"),
    ];
    for call in CALLS {
        for (cluster, ip, code, named) in table {
            let says = |said: Status, how: &str| {
                assert_eq!(said.code(), code, "{call:?} {how} of {cluster:.20} {ip:.20}: {said}");
                assert!(said.message().contains(named), "{call:?} {how}: {said}");
                assert!(said.message().len() < 300, "{call:?} {how}: {said}");
            };
            says(alone(&mut client, call, cluster, ip).await.unwrap_err(), "alone");
            let inputs = [(TURIN, "10.20.0.1"), (cluster, ip), (TURIN, "10.20.0.2")];
            let results = batch(&mut client, call, &inputs).await.unwrap();
            let [Ok(()), Err(said), Ok(())] = results.as_slice() else {
                panic!("{call:?} of {cluster:.20} {ip:.20}: {results:?}");
            };
            says(said.clone(), "in a batch");
        }
        // An IPv4 address may be written as an IPv6 one.
        alone(&mut client, call, TURIN, "::ffff:10.20.0.1").await.unwrap();
    }
    for unroutable in ["169.254.169.254", "240.0.0.7", "224.0.0.1", "0.0.0.0", "127.0.0.1"] {
        let said = alone(&mut client, Call::Map, TURIN, unroutable).await.unwrap_err();
        assert_eq!(said.code(), invalid, "{said}");
        assert!(said.message().contains(unroutable), "{said}");
    }
    assert!(rome.mapped().await.is_empty(), "nothing was mapped");
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_a_batch_is_limited() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = TURIN.parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    for call in CALLS {
        let mut inputs = vec![(TURIN, "10.20.0.1"); MAX_BATCH];
        let answered = batch(&mut client, call, &inputs).await.unwrap();
        assert_eq!(answered.len(), MAX_BATCH);
        assert!(answered.iter().all(Result::is_ok));
        inputs.push((TURIN, "10.20.0.1"));
        let said = batch(&mut client, call, &inputs).await.unwrap_err();
        assert_eq!(said.code(), Code::InvalidArgument, "{call:?}: {said}");
        assert!(said.message().contains("10001"), "{call:?}: {said}");
    }
    service.trigger();
}

async fn alone(
    client: &mut IpamClient<Channel>,
    call: Call,
    cluster: &str,
    ip: &str,
) -> Result<(), Status> {
    let (cluster_id, ip) = (cluster.to_owned(), ip.to_owned());
    match call {
        Call::Map => {
            client.map_endpoint_ip(MapRequest { cluster_id, ip, owner: None }).await.map(drop)
        }
        Call::Unmap => {
            client.unmap_endpoint_ip(UnmapRequest { cluster_id, ip, owner: None }).await.map(drop)
        }
        Call::Remote => {
            client.get_remote_pod_ip(GetRemotePodIpRequest { cluster_id, ip }).await.map(drop)
        }
        Call::Home => {
            client.get_home_pod_ip(GetHomePodIpRequest { cluster_id, ip }).await.map(drop)
        }
    }
}

async fn batch(
    client: &mut IpamClient<Channel>,
    call: Call,
    inputs: &[(&str, &str)],
) -> Result<Vec<Result<(), Status>>, Status> {
    fn requests<T>(inputs: &[(&str, &str)], new: impl Fn(String, String) -> T) -> Vec<T> {
        inputs.iter().map(|(cluster, ip)| new((*cluster).to_owned(), (*ip).to_owned())).collect()
    }
    let failed = |failure: Failure| Err(Status::new(failure.code.into(), failure.message));
    Ok(match call {
        Call::Map => {
            let requests =
                requests(inputs, |cluster_id, ip| MapRequest { cluster_id, ip, owner: None });
            let answer = client.map_endpoint_ip_batch(MapBatchRequest { requests }).await?;
            let result = |result| match result {
                map_result::Result::Response(_) => Ok(()),
                map_result::Result::Failure(failure) => failed(failure),
            };
            let results = answer.into_inner().results.into_iter();
            results.map(|it| result(it.result.unwrap())).collect()
        }
        Call::Unmap => {
            let requests =
                requests(inputs, |cluster_id, ip| UnmapRequest { cluster_id, ip, owner: None });
            let answer = client.unmap_endpoint_ip_batch(UnmapBatchRequest { requests }).await?;
            let result = |result| match result {
                unmap_result::Result::Response(_) => Ok(()),
                unmap_result::Result::Failure(failure) => failed(failure),
            };
            let results = answer.into_inner().results.into_iter();
            results.map(|it| result(it.result.unwrap())).collect()
        }
        Call::Remote => {
            let requests =
                requests(inputs, |cluster_id, ip| GetRemotePodIpRequest { cluster_id, ip });
            let request = GetRemotePodIpBatchRequest { requests };
            let answer = client.get_remote_pod_ip_batch(request).await?;
            let result = |result| match result {
                get_remote_pod_ip_result::Result::Response(_) => Ok(()),
                get_remote_pod_ip_result::Result::Failure(failure) => failed(failure),
            };
            let results = answer.into_inner().results.into_iter();
            results.map(|it| result(it.result.unwrap())).collect()
        }
        Call::Home => {
            let requests =
                requests(inputs, |cluster_id, ip| GetHomePodIpRequest { cluster_id, ip });
            let request = GetHomePodIpBatchRequest { requests };
            let answer = client.get_home_pod_ip_batch(request).await?;
            let result = |result| match result {
                get_home_pod_ip_result::Result::Response(_) => Ok(()),
                get_home_pod_ip_result::Result::Failure(failure) => failed(failure),
            };
            let results = answer.into_inner().results.into_iter();
            results.map(|it| result(it.result.unwrap())).collect()
        }
    })
}
