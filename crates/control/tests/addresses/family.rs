//! A cluster whose networks are IPv6.

use std::net::IpAddr;

use jiff::SignedDuration;
use tombolo_api::{ClusterId, NatCidr, ipam::GetHomePodIpRequest};
use tombolo_control::testing::Context;
use tombolo_core::ipam::{NETWORKS, REST, WRITER};
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};
use tombolo_testbed::eventually;
use tonic::Code;

use crate::side::{Side, Time, cidr, map, remote, serve_in, unmap};

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_an_ipv6_cluster_are_mapped_rest_and_survive() {
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
    let names = ipam.reserve(turin.clone(), pods, cidr("fd00:21::/112")).await.unwrap();
    let NatCidr::Remapped(name) = names.remote_nat_pod_cidr else { panic!("both have {pods}") };
    assert_eq!(name.net().prefix_len(), 56);
    assert_eq!(names.remote_nat_external_cidr, NatCidr::None);
    let called = NatCidr::Remapped(cidr("fd00:60::/112"));
    ipam.set_local_names(turin.clone(), NatCidr::None, called).await.unwrap();

    let mapped = map(&mut client, "id-of-turin", node).await.unwrap();
    assert!(mapped.starts_with("fd00:60::"), "{mapped} is as turin calls it");
    assert_eq!(rome.told(1).await[node], mapped);
    assert_eq!(map(&mut client, "id-of-turin", "fd00:10::1:7").await.unwrap(), "fd00:10::1:7");
    let wrong = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
    let ask = GetHomePodIpRequest { cluster_id: turin.to_string(), ip: "fd00:10::2:9".into() };
    let home = client.get_home_pod_ip(ask).await.unwrap().into_inner().home_ip;
    let home: IpAddr = home.parse().unwrap();
    assert!(name.net().contains(&home) && home.to_string().ends_with(":2:9"), "{home}");

    unmap(&mut client, "id-of-turin", node).await;
    let gone = remote(&mut client, "id-of-turin", node).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    rome.told(0).await;
    service.ask();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the one before has ended", ended, |it| *it).await;

    let (ipam, mut client, service) = start().await;
    assert_eq!(ipam.external_cidr().await.unwrap(), external);
    let second = map(&mut client, "id-of-turin", other).await.unwrap();
    assert_ne!(second, mapped, "it rests");
    assert_eq!(map(&mut client, "id-of-turin", node).await.unwrap(), mapped, "it was its own");
    ipam.release(turin).await.unwrap();
    time.pass(REST + SignedDuration::from_secs(15));
    let names = async || {
        ipam.external_cidr().await.expect("it answers");
        rome.all_names().await
    };
    eventually("nothing is left", names, |names| *names == [NETWORKS, WRITER]).await;
    service.ask();
}
