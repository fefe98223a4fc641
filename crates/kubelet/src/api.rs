//! The kubelet API: logs, exec, attach, port-forward, and the list of pods. Requests for one pod
//! are forwarded to the remote API server.

mod auth;
mod kubelet_request;
mod proxy;
mod tls;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tombolo_runtime::{settings::Settings, task::Background};
use tracing::debug;

use crate::{peer::Peer, pods::Pods};
use auth::{Authorizer, Caller};
use kubelet_request::KubeletRequest;

const HANDSHAKE: Duration = Duration::from_secs(10);

type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Authentication, authorization and streams, shared by all virtual nodes.
pub(crate) struct Gate {
    tls: tls::Tls,
    authorizer: Authorizer,
    /// Streams to pods. They outlive their HTTP connection, and a change of the client of their
    /// remote cluster.
    streams: Background,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    /// Starts to watch the client CA of this cluster.
    pub(crate) fn open(client: Client, settings: &Settings) -> Result<Arc<Self>, tls::TlsError> {
        let tls = tls::Tls::new(client.clone(), settings.pod_ip)?;
        let (authorizer, streams) = (Authorizer::new(client), Background::default());
        Ok(Arc::new(Self { tls, authorizer, streams }))
    }
}

/// Serves the kubelet API of one virtual node until its shutdown.
pub(crate) async fn serve(
    listener: TcpListener,
    gate: Arc<Gate>,
    peer: Arc<Peer>,
    pods: Arc<Pods>,
) {
    let shutdown = peer.shutdown.clone();
    let node = Arc::new(NodeApi { gate, peer, pods });
    let connections = Background::default();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn("kubelet API connection", node.clone().handle(stream));
                }
                Err(error) => {
                    debug!(node = node.peer.node, "accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    shutdown.or(accepting).await;
}

struct NodeApi {
    gate: Arc<Gate>,
    peer: Arc<Peer>,
    pods: Arc<Pods>,
}

impl NodeApi {
    async fn handle(self: Arc<Self>, stream: TcpStream) {
        let handshake = timeout(HANDSHAKE, self.gate.tls.accept(stream)).await;
        let (stream, caller) = match handshake {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return debug!(node = self.peer.node, "TLS handshake: {error}"),
            Err(_) => return debug!(node = self.peer.node, "TLS handshake: not completed in time"),
        };
        let service = service_fn(move |request| {
            let (node, caller) = (self.clone(), caller.clone());
            async move { Ok::<_, Infallible>(node.answer(request, caller.as_ref()).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            debug!("connection to the kubelet API ended: {error}");
        }
    }

    async fn answer(&self, request: Request<Incoming>, caller: Option<&Caller>) -> Response<Body> {
        let Some(caller) = caller else {
            return text(
                StatusCode::UNAUTHORIZED,
                "present a client certificate of this cluster's client CA",
            );
        };
        match self.gate.authorizer.allows(caller, request.method(), &self.peer.node).await {
            Ok(true) => {}
            Ok(false) => {
                let why = format!("{} may not use nodes/proxy of {}", caller.user, self.peer.node);
                return text(StatusCode::FORBIDDEN, &why);
            }
            Err(error) => {
                let why = format!("authorize {} for nodes/proxy: {error}", caller.user);
                return text(StatusCode::INTERNAL_SERVER_ERROR, &why);
            }
        }
        match KubeletRequest::parse(request.uri().path(), request.uri().query().unwrap_or_default())
        {
            None => text(StatusCode::NOT_FOUND, "virtual nodes do not support this path"),
            Some(KubeletRequest::Health) => text(StatusCode::OK, "ok"),
            Some(KubeletRequest::Pods) => self.list(),
            Some(KubeletRequest::Pod(call)) => match self.pods.find(&call.namespace, &call.pod) {
                Some((_, twin)) => {
                    let path = call.remote_path(&twin);
                    let (remote, streams) = (&self.peer.remote.client, &self.gate.streams);
                    proxy::forward(remote, request, &path, streams).await
                }
                None => {
                    let why = format!(
                        "pod {}/{} does not run on node {}",
                        call.namespace, call.pod, self.peer.node
                    );
                    text(StatusCode::NOT_FOUND, &why)
                }
            },
        }
    }

    fn list(&self) -> Response<Body> {
        let pods = self.pods.at_home();
        let items: Vec<_> = pods.iter().map(|pod| &**pod).collect();
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
        let mut response = text(StatusCode::OK, &list.to_string());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        response
    }
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}
