//! A client of the API server that counts writes and can be cut off: then no request is answered,
//! as if the process were dead.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower::service_fn;

use crate::side::Side;

/// Clones share the connection.
#[derive(Clone)]
pub struct Wire(Arc<Line>);

/// The write at which it is cut off: before it is sent, or after it is performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Before(usize),
    After(usize),
}

struct Line {
    direct: Client,
    writes: AtomicUsize,
    cut: Option<Cut>,
    is_cut: watch::Sender<bool>,
}

impl Wire {
    pub fn new(side: &Side) -> Self {
        Self::with(side, None)
    }

    /// A wire that is cut at this write.
    pub fn cut_at(side: &Side, cut: Cut) -> Self {
        Self::with(side, Some(cut))
    }

    fn with(side: &Side, cut: Option<Cut>) -> Self {
        let (direct, writes) = (side.client.clone(), AtomicUsize::new(0));
        Self(Arc::new(Line { direct, writes, cut, is_cut: watch::Sender::new(false) }))
    }

    pub fn client(&self) -> Client {
        let line = self.0.clone();
        Client::new(service_fn(move |request| pass(line.clone(), request)), "default")
    }

    /// The number of writes, including those after the cut.
    pub fn writes(&self) -> usize {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// Cuts it now.
    pub fn cut(&self) {
        self.0.is_cut.send_replace(true);
    }

    /// Waits until it is cut.
    pub async fn is_cut(&self) {
        self.0.is_cut.subscribe().wait_for(|is_cut| *is_cut).await.expect("it is there");
    }
}

async fn pass(line: Arc<Line>, request: Request<Body>) -> kube::Result<Response<Body>> {
    let is_write = request.method() != Method::GET;
    let number = is_write.then(|| line.writes.fetch_add(1, Ordering::Relaxed) + 1);
    let cut_if = |cut: fn(usize) -> Cut| {
        if line.cut.is_some() && line.cut == number.map(cut) {
            line.is_cut.send_replace(true);
        }
    };
    cut_if(Cut::Before);
    or_never(&line).await;
    let answer = line.direct.send(request).await;
    cut_if(Cut::After);
    or_never(&line).await;
    answer
}

async fn or_never(line: &Line) {
    let is_cut = *line.is_cut.borrow();
    if is_cut {
        pending::<()>().await;
    }
}
