//! Addresses rest after their last use, and are free again then.

use jiff::SignedDuration;
use tombolo_api::{ClusterId, NatCidr};
use tombolo_core::ipam::REST;
use tombolo_testbed::eventually;

use crate::side::{Side, Time, cidr, map, remote, unmap};

#[tokio::test(flavor = "multi_thread")]
async fn what_has_rested_is_free_again_however_often_others_ask() {
    let (rome, _alone) = Side::alone("rome").await;
    let time = Time::default();
    let (ipam, mut client, service) = rome.serve_at(rome.client.clone(), time.clock()).await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();
    map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap();
    map(&mut client, "id-of-turin", "192.0.2.2").await.unwrap();
    unmap(&mut client, "id-of-turin", "192.0.2.1").await;

    let rest = async || {
        remote(&mut client.clone(), "id-of-turin", "192.0.2.2").await.unwrap();
        let storages = rome.all_addresses().await.0;
        storages.iter().map(|storage| storage.resting.len()).sum::<usize>()
    };
    assert_eq!(rest().await, 1);
    time.pass(REST - SignedDuration::from_secs(30));
    assert_eq!(rest().await, 1, "it has not rested for long enough");
    time.pass(SignedDuration::from_secs(60));
    eventually("it is free again", rest, |count| *count == 0).await;
    remote(&mut client, "id-of-turin", "192.0.2.2").await.expect("the other one has its address");
    service.ask();
}
