//! An address service that nothing has to be set up for.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
};

use tokio::net::TcpListener;
use tombolo_api::ipam::{
    GetHomePodIpBatchRequest, GetHomePodIpBatchResponse, GetHomePodIpRequest, GetHomePodIpResponse,
    GetRemotePodIpBatchRequest, GetRemotePodIpBatchResponse, GetRemotePodIpRequest,
    GetRemotePodIpResponse, MapBatchRequest, MapBatchResponse, MapRequest, MapResponse, MapResult,
    UnmapBatchRequest, UnmapBatchResponse, UnmapRequest, UnmapResponse,
    ipam_server::{Ipam, IpamServer},
    map_result,
};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

/// An address service that has 10.72.0.x for whatever ends in x.
#[derive(Clone, Default)]
pub struct FixedIpam {
    pub given_back: Arc<Mutex<Vec<String>>>,
}

impl FixedIpam {
    pub async fn serve(self) -> Channel {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = Server::builder().add_service(IpamServer::new(self));
        tokio::spawn(server.serve_with_incoming(incoming));
        Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("nobody asks for this"))
}

#[tonic::async_trait]
impl Ipam for FixedIpam {
    async fn map_endpoint_ip_batch(
        &self,
        request: Request<MapBatchRequest>,
    ) -> Answer<MapBatchResponse> {
        let map = |request: &MapRequest| {
            assert_eq!(request.cluster_id, "id-of-milan");
            let last = request.ip.rsplit('.').next().unwrap();
            let response = MapResponse { ip: format!("10.72.0.{last}") };
            MapResult { result: Some(map_result::Result::Response(response)) }
        };
        let results = request.get_ref().requests.iter().map(map).collect();
        Ok(Response::new(MapBatchResponse { results }))
    }

    async fn unmap_endpoint_ip_batch(
        &self,
        request: Request<UnmapBatchRequest>,
    ) -> Answer<UnmapBatchResponse> {
        let back = request.get_ref().requests.iter().map(|request| request.ip.clone());
        self.given_back.lock().unwrap().extend(back);
        Ok(Response::new(UnmapBatchResponse { results: Vec::new() }))
    }

    async fn map_endpoint_ip(&self, _: Request<MapRequest>) -> Answer<MapResponse> {
        unused()
    }

    async fn unmap_endpoint_ip(&self, _: Request<UnmapRequest>) -> Answer<UnmapResponse> {
        unused()
    }

    async fn get_remote_pod_ip(
        &self,
        _: Request<GetRemotePodIpRequest>,
    ) -> Answer<GetRemotePodIpResponse> {
        unused()
    }

    async fn get_home_pod_ip(
        &self,
        _: Request<GetHomePodIpRequest>,
    ) -> Answer<GetHomePodIpResponse> {
        unused()
    }

    async fn get_remote_pod_ip_batch(
        &self,
        _: Request<GetRemotePodIpBatchRequest>,
    ) -> Answer<GetRemotePodIpBatchResponse> {
        unused()
    }

    async fn get_home_pod_ip_batch(
        &self,
        _: Request<GetHomePodIpBatchRequest>,
    ) -> Answer<GetHomePodIpBatchResponse> {
        unused()
    }
}
