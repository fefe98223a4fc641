//! A way to the API server on which a test counts what is written, and which it can cut: then nobody
//! gets an answer any more, as if the process that asks were dead.

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

/// Clones are the same.
#[derive(Clone)]
pub struct Wire(Arc<Line>);

/// At which write it is cut, and whether that one still arrives.
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

    /// One that is cut by itself.
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

    /// How much was written, or would have been.
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
