//! Forwards a request to the remote API server and returns its response. After an upgrade to SPDY
//! or WebSocket, bytes are copied in both directions.

use http::{
    HeaderName, Request, Response, StatusCode,
    header::{
        ACCEPT, CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use http_body_util::BodyExt;
use hyper::{body::Incoming, upgrade};
use hyper_util::rt::TokioIo;
use kube::Client;
use tokio::io::copy_bidirectional;
use tombolo_runtime::{task::Background, time_limit::Unlimited};
use tracing::debug;

use super::{Body, text};

const STREAM_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// Headers that are forwarded in both directions.
const FORWARDED: [HeaderName; 10] = [
    ACCEPT,
    CONNECTION,
    CONTENT_TYPE,
    UPGRADE,
    STREAM_VERSION,
    SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION,
];

/// Forwards a request to the remote API server and returns its response. Upgraded connections are
/// copied by tasks of `streams`.
pub(super) async fn forward(
    remote: &Client,
    mut request: Request<Incoming>,
    path: &str,
    streams: &Background,
) -> Response<Body> {
    let mut forwarded = Request::new(kube::client::Body::empty());
    *forwarded.method_mut() = request.method().clone();
    match path.parse() {
        Ok(uri) => *forwarded.uri_mut() = uri,
        Err(error) => return text(StatusCode::BAD_REQUEST, &format!("{path}: {error}")),
    }
    copy_headers(request.headers(), forwarded.headers_mut());
    forwarded.extensions_mut().insert(Unlimited);
    let mut answer = match remote.send(forwarded).await {
        Ok(answer) => answer,
        Err(error) => {
            let why = format!("forward {path} to the remote API server: {error}");
            return text(StatusCode::BAD_GATEWAY, &why);
        }
    };
    let mut response = Response::new(());
    *response.status_mut() = answer.status();
    copy_headers(answer.headers(), response.headers_mut());
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().remove(CONNECTION);
        return response.map(|()| answer.into_body().map_err(Into::into).boxed_unsync());
    }
    let (here, there) = (upgrade::on(&mut request), upgrade::on(&mut answer));
    streams.spawn("stream to a pod", async move {
        match futures::future::try_join(here, there).await {
            Ok((here, there)) => {
                let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
                if let Err(error) = copy_bidirectional(&mut here, &mut there).await {
                    debug!("stream to the remote cluster ended: {error}");
                }
            }
            Err(error) => debug!("upgrade the connection to a stream: {error}"),
        }
    });
    response.map(|()| kube::client::Body::empty().map_err(Into::into).boxed_unsync())
}

fn copy_headers(from: &http::HeaderMap, to: &mut http::HeaderMap) {
    for name in FORWARDED {
        for value in from.get_all(&name) {
            to.append(name.clone(), value.clone());
        }
    }
}
