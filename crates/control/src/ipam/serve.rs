//! The gRPC server: the address service with health checks and server reflection.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tombolo_api::ipam::{
    DESCRIPTORS,
    ipam_server::{IpamServer, SERVICE_NAME},
};
use tombolo_runtime::{lease::Leading, listen};
use tonic::transport::{Server, server::TcpIncoming};
use tonic_health::{ServingStatus, server::health_reporter};

use super::{AddressService, certificates::Tls, incoming::Incoming, service::Service};

/// Bytes of a request. The largest batch is smaller.
const MAX_MESSAGE: usize = 2 << 20;
/// Keepalive interval, to detect dead clients.
const PING: Duration = Duration::from_secs(30);
/// How long open requests may take after shutdown, and then the writes that are under way.
const DRAIN: Duration = Duration::from_secs(2);

/// The gRPC server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be bound.
    #[error("listen on {address} for the address service")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The descriptors for server reflection are invalid.
    #[error("read the descriptors of the address service")]
    Describe(#[from] tonic_reflection::server::Error),
    /// The server stopped before the shutdown.
    #[error("serve the address service")]
    Serve(#[source] tonic::transport::Error),
}

impl AddressService {
    /// Serves over gRPC while this replica leads: all clients or, with `tls`, only clients with a
    /// certificate.
    pub async fn serve(
        self,
        address: SocketAddr,
        leading: Leading,
        tls: Option<Tls>,
    ) -> Result<(), ServeError> {
        let listener = listen::on(address)
            .and_then(TcpListener::from_std)
            .map_err(|source| ServeError::Listen { address, source })?;
        self.serve_on(listener, leading, tls).await
    }

    /// The same, on an existing listener.
    pub async fn serve_on(
        self,
        listener: TcpListener,
        leading: Leading,
        tls: Option<Tls>,
    ) -> Result<(), ServeError> {
        let shutdown = leading.shutdown.clone();
        let (health, health_service) = health_reporter();
        health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
        let until = shutdown.clone();
        let end = async move {
            until.triggered().await;
            for service in ["", SERVICE_NAME] {
                health.set_service_status(service, ServingStatus::NotServing).await;
            }
        };
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let service = IpamServer::new(Service::new(self.clone(), leading))
            .max_decoding_message_size(MAX_MESSAGE);
        let router = Server::builder()
            .http2_keepalive_interval(Some(PING))
            .add_service(service)
            .add_service(health_service)
            .add_service(reflection);
        let server = async {
            match tls {
                Some(tls) => {
                    let incoming = Incoming::new(listener, tls);
                    router.serve_with_incoming_shutdown(incoming, end).await
                }
                None => {
                    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                    router.serve_with_incoming_shutdown(incoming, end).await
                }
            }
        };
        // Health watches never end by themselves.
        let patience = async {
            shutdown.triggered().await;
            sleep(DRAIN).await;
        };
        let served = tokio::select! {
            served = server => served.map_err(ServeError::Serve),
            () = patience => Ok(()),
        };
        let _ = timeout(DRAIN, self.closed()).await;
        served
    }
}
