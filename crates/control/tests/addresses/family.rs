//! A cluster with IPv6 networks.

use std::net::IpAddr;

use jiff::SignedDuration;
use tombolo_api::{ClusterId, NatCidr, ipam::GetHomePodIpRequest};
use tombolo_control::testing::Context;
use tombolo_core::ipam::{NETWORKS, QUARANTINE, WRITER};
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};
use tombolo_testbed::eventually;
use tonic::Code;

use crate::side::{Side, Time, cidr, map, remote, serve_in, unmap};

#[tokio::test(flavor = "multi_thread")]
async fn mappings_and_quarantines_of_an_ipv6_cluster_survive_a_restart() {
    let (rome, _alone) = Side::alone("rome").await;
    let time = Time::default();
    let start = async || {
        let settings = Settings {
            pod_cidr: cidr("fd00:10::/56"),
            service_cidr: cidr("fd00:11::/112"),
            ..rome.settings.clone()
        };
        let context = Context::new(rome.client.clone(), settings, Shutdown::new());
        let (ipam, client) = serve_in(&context, time.clock()).await;
        (ipam, client, context.shutdown)
    };
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let (node, other) = ("2001:db8::7", "2001:db8::8");

    let (ipam, mut client, service) = start().await;
    let external = ipam.external_cidr().await.unwrap();
    assert_eq!(external.net().prefix_len(), 112, "as many addresses as in a /16: {external}");
    let pods = cidr("fd00:10::/56");
    let subnets = ipam.reserve(turin.clone(), pods, cidr("fd00:21::/112")).await.unwrap();
    let NatCidr::Remapped(translated) = subnets.remote_nat_pod_cidr else {
        panic!("both have {pods}")
    };
    assert_eq!(translated.net().prefix_len(), 56);
    assert_eq!(subnets.remote_nat_external_cidr, NatCidr::None);
    let local = NatCidr::Remapped(cidr("fd00:60::/112"));
    ipam.set_local_nat_cidrs(turin.clone(), NatCidr::None, local).await.unwrap();

    let mapped = map(&mut client, "id-of-turin", node).await.unwrap();
    assert!(mapped.starts_with("fd00:60::"), "{mapped} is as translated in turin");
    assert_eq!(rome.until_nat_mappings(1).await[node], mapped);
    assert_eq!(map(&mut client, "id-of-turin", "fd00:10::1:7").await.unwrap(), "fd00:10::1:7");
    let wrong = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
    let request = GetHomePodIpRequest { cluster_id: turin.to_string(), ip: "fd00:10::2:9".into() };
    let home = client.get_home_pod_ip(request).await.unwrap().into_inner().home_ip;
    let home: IpAddr = home.parse().unwrap();
    assert!(translated.net().contains(&home) && home.to_string().ends_with(":2:9"), "{home}");

    unmap(&mut client, "id-of-turin", node).await;
    let gone = remote(&mut client, "id-of-turin", node).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    rome.until_nat_mappings(0).await;
    service.trigger();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the former service has stopped", ended, |it| *it).await;

    let (ipam, mut client, service) = start().await;
    assert_eq!(ipam.external_cidr().await.unwrap(), external);
    let second = map(&mut client, "id-of-turin", other).await.unwrap();
    assert_ne!(second, mapped, "it is quarantined");
    assert_eq!(
        map(&mut client, "id-of-turin", node).await.unwrap(),
        mapped,
        "the last endpoint gets it back"
    );
    ipam.release(turin).await.unwrap();
    time.pass(QUARANTINE + SignedDuration::from_secs(15));
    let names = async || {
        ipam.external_cidr().await.expect("it answers");
        rome.all_object_names().await
    };
    eventually("nothing is left", names, |names| *names == [NETWORKS, WRITER]).await;
    service.trigger();
}
