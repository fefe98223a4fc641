//! A leader that is frozen for longer than its lease lasts, and then continues.

use std::{net::SocketAddr, sync::mpsc, thread};

use tokio::{
    net::TcpListener,
    runtime,
    sync::{mpsc as tokio_mpsc, oneshot},
};
use tombolo_api::{
    ClusterId, NatCidr,
    ipam::{GetRemotePodIpRequest, MapRequest, UnmapRequest, ipam_client::IpamClient},
    names::NAMESPACE,
};
use tombolo_control::testing::{AddressService, MANAGER};
use tombolo_runtime::{
    lease::{Leading, lead},
    shutdown::Shutdown,
};
use tonic::Code;

use crate::side::{Side, cidr};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_neither_writes_nor_answers() {
    let (rome, _alone) = Side::alone("rome").await;
    let first = Replica::start().await;
    let client = IpamClient::connect(format!("http://{}", first.address)).await.unwrap();
    let request =
        |ip: &str| MapRequest { cluster_id: "id-of-turin".into(), ip: ip.into(), owner: None };
    let mapped = client.clone().map_endpoint_ip(request("192.0.2.1")).await.unwrap().into_inner();

    let frozen = first.freeze().await;
    let mut caller = client.clone();
    let write =
        tokio::spawn(async move { caller.map_endpoint_ip(request("192.0.2.2")).await.map(drop) });
    let look = GetRemotePodIpRequest { cluster_id: "id-of-turin".into(), ip: "192.0.2.1".into() };
    let (mut caller, again) = (client.clone(), look.clone());
    let read = tokio::spawn(async move { caller.get_remote_pod_ip(again).await.map(drop) });

    let shutdown = Shutdown::new();
    let leading = lead(rome.client.clone(), NAMESPACE, MANAGER, "second", &shutdown).await;
    let (address, _) = serve(&rome, leading).await;
    let mut second = IpamClient::connect(format!("http://{address}")).await.unwrap();
    let known = second.get_remote_pod_ip(look.clone()).await.unwrap().into_inner();
    assert_eq!(known.remote_ip, mapped.ip, "the new leader has all mappings");
    let unmap =
        UnmapRequest { cluster_id: "id-of-turin".into(), ip: "192.0.2.1".into(), owner: None };
    second.unmap_endpoint_ip(unmap).await.unwrap();

    frozen.thaw();
    for answer in [write, read] {
        let said = answer.await.unwrap().expect_err("it is not the leader any more");
        assert_eq!(said.code(), Code::Unavailable, "{said}");
    }
    assert!(rome.mapped().await.is_empty(), "the former leader has written nothing");
    first.ended().await;
    rome.until_nat_mappings(0).await;
    assert!(!shutdown.is_triggered(), "the second replica leads");
    shutdown.trigger();
}

/// A replica on a thread of its own, which can be frozen.
struct Replica {
    address: SocketAddr,
    freezes: tokio_mpsc::Sender<Freeze>,
    ended: oneshot::Receiver<()>,
}

struct Freeze {
    frozen: oneshot::Sender<()>,
    thaw: mpsc::Receiver<()>,
}

/// A frozen replica.
struct Frozen(mpsc::Sender<()>);

impl Frozen {
    fn thaw(self) {
        self.0.send(()).expect("it waits for this");
    }
}

impl Replica {
    async fn start() -> Self {
        let (started, has_started) = oneshot::channel();
        let (freezes, inbox) = tokio_mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(live(started, inbox));
            end.send(()).expect("the test waits");
        });
        Self { address: has_started.await.expect("it starts"), freezes, ended }
    }

    async fn freeze(&self) -> Frozen {
        let (frozen, is_frozen) = oneshot::channel();
        let (sender, thaw) = mpsc::channel();
        self.freezes.send(Freeze { frozen, thaw }).await.expect("it lives");
        is_frozen.await.expect("it is frozen");
        Frozen(sender)
    }

    async fn ended(self) {
        self.ended.await.expect("it notices that it is not the leader any more");
    }
}

/// Leads until another replica does.
async fn live(started: oneshot::Sender<SocketAddr>, mut freezes: tokio_mpsc::Receiver<Freeze>) {
    let rome = Side::of("rome").await;
    let shutdown = Shutdown::new();
    let leading = lead(rome.client.clone(), NAMESPACE, MANAGER, "first", &shutdown).await;
    let end = leading.shutdown.clone();
    let (address, ipam) = serve(&rome, leading).await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();
    started.send(address).expect("the test waits");
    while let Some(Some(freeze)) = end.or(freezes.recv()).await {
        freeze.frozen.send(()).expect("the test waits");
        // Blocks the whole replica, because all of its tasks are on this thread.
        freeze.thaw.recv().expect("the test goes on");
    }
}

async fn serve(rome: &Side, leading: Leading) -> (SocketAddr, AddressService) {
    let ipam = AddressService::start(&rome.context(&leading.shutdown)).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(ipam.clone().serve_on(listener, leading, None));
    (address, ipam)
}
