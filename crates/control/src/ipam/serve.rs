//! The gRPC server: the address service, whether it serves, and what it looks like.

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

/// More than the largest batch takes.
const MAX_MESSAGE: usize = 2 << 20;
/// A client that is gone without a word is noticed.
const PING: Duration = Duration::from_secs(30);
/// How long those that are still asking are waited for in the end, and then what is still written.
const DRAIN: Duration = Duration::from_secs(2);

/// The gRPC service ended too early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody else is there.
    #[error("listen on {address} for the address service")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// Nobody could ask what it serves.
    #[error("read the description of the address service")]
    Describe(#[from] tonic_reflection::server::Error),
    /// It broke.
    #[error("serve the address service")]
    Serve(#[source] tonic::transport::Error),
}

impl AddressService {
    /// Answers over gRPC as long as this replica leads: whoever asks or, with `tls`, only those who
    /// show a certificate.
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

    /// The same, where somebody else listens already.
    pub async fn serve_on(
        self,
        listener: TcpListener,
        leading: Leading,
        tls: Option<Tls>,
    ) -> Result<(), ServeError> {
        let shutdown = leading.shutdown.clone();
        let (health, health_service) = health_reporter();
        health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
        let asked = shutdown.clone();
        let end = async move {
            asked.asked().await;
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
        // Whoever watches the health would be served for ever.
        let patience = async {
            shutdown.asked().await;
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
