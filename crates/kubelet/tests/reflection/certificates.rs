//! The channel to an address service with mutual TLS.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use tokio::net::TcpListener;
use tombolo_api::{
    ipam::{MapRequest, ipam_client::IpamClient},
    names::{IPAM_AUTHORITY_SECRET, IPAM_CLIENT_SECRET, NAMESPACE},
};
use tombolo_kubelet::reflection::address_service_at;
use tombolo_testbed::answer_to;

use crate::{RUNTIME, ipam, shop::Shop};

#[test]
fn the_client_presents_its_certificate_and_uses_a_renewed_one() {
    RUNTIME.block_on(async {
        let shop = Shop::new("certified").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = ipam::serve_secured(&shop.rome, listener).await;
        let channel = address_service_at(&address.to_string(), &shop.rome.client, true);
        let mut client = IpamClient::new(channel);
        let mut map = async || {
            let cluster_id = shop.cluster.cluster_id.to_string();
            let request = MapRequest { cluster_id, ip: "10.244.1.2".into(), owner: None };
            client.map_endpoint_ip(request).await.ok().map(|answer| answer.into_inner().ip)
        };
        // The first certificate may not exist yet.
        assert_eq!(answer_to("a response", &mut map).await, "10.71.1.2");

        // Replace all certificates and the server.
        let before = shop.rome.get_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET).await.unwrap();
        shop.rome.delete_in::<Secret>(NAMESPACE, IPAM_AUTHORITY_SECRET).await;
        let is_new = |secret: &Secret| secret.resource_version() != before.resource_version();
        shop.rome.until_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET, is_new).await;
        service.end().await;
        let listener = TcpListener::bind(address).await.unwrap();
        let service = ipam::serve_secured(&shop.rome, listener).await;
        assert_eq!(answer_to("a response with the new certificates", &mut map).await, "10.71.1.2");
        service.end().await;
    });
}
