//! Passes a request on to the remote API server: an answer as it comes, or, once both sides have
//! agreed on another protocol (SPDY or WebSocket), whatever bytes either side sends.

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

/// What either side has to know of the other.
const PASSED: [HeaderName; 10] = [
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

/// Asks the remote API server, and answers what it answers. Bytes after a change of protocol are
/// copied in `streams`.
pub(super) async fn pass_on(
    remote: &Client,
    mut request: Request<Incoming>,
    path: &str,
    streams: &Background,
) -> Response<Body> {
    let mut asked = Request::new(kube::client::Body::empty());
    *asked.method_mut() = request.method().clone();
    match path.parse() {
        Ok(uri) => *asked.uri_mut() = uri,
        Err(error) => return text(StatusCode::BAD_REQUEST, &format!("{path}: {error}")),
    }
    copy_headers(request.headers(), asked.headers_mut());
    asked.extensions_mut().insert(Unlimited);
    let mut answer = match remote.send(asked).await {
        Ok(answer) => answer,
        Err(error) => {
            let why = format!("ask the remote cluster's API server for {path}: {error}");
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
                    debug!("a stream to the remote cluster ended: {error}");
                }
            }
            Err(error) => debug!("switch protocols: {error}"),
        }
    });
    response.map(|()| kube::client::Body::empty().map_err(Into::into).boxed_unsync())
}

fn copy_headers(from: &http::HeaderMap, to: &mut http::HeaderMap) {
    for name in PASSED {
        for value in from.get_all(&name) {
            to.append(name.clone(), value.clone());
        }
    }
}
