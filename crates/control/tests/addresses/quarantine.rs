//! Released addresses are quarantined, and free after the expiry.

use jiff::SignedDuration;
use tombolo_api::{ClusterId, NatCidr};
use tombolo_core::ipam::QUARANTINE;
use tombolo_testbed::eventually;

use crate::side::{Side, Time, cidr, map, remote, unmap};

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_expires_even_under_constant_requests() {
    let (rome, _alone) = Side::alone("rome").await;
    let time = Time::default();
    let (ipam, mut client, service) = rome.serve_at(rome.client.clone(), time.clock()).await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap();
    map(&mut client, "id-of-turin", "192.0.2.2").await.unwrap();
    unmap(&mut client, "id-of-turin", "192.0.2.1").await;

    let quarantined = async || {
        remote(&mut client.clone(), "id-of-turin", "192.0.2.2").await.unwrap();
        let storages = rome.all_addresses().await.0;
        storages.iter().map(|storage| storage.quarantined_addresses.len()).sum::<usize>()
    };
    assert_eq!(quarantined().await, 1);
    time.pass(QUARANTINE - SignedDuration::from_secs(30));
    assert_eq!(quarantined().await, 1, "the quarantine has not expired");
    time.pass(SignedDuration::from_secs(60));
    eventually("the address is free again", quarantined, |count| *count == 0).await;
    remote(&mut client, "id-of-turin", "192.0.2.2").await.expect("the other mapping stays");
    service.trigger();
}
