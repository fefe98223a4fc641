//! Progress reports of the testbed, to print or to measure.

use std::sync::Arc;
use std::time::Instant;

/// A step that has started or finished. `scope` is a cluster or a package.
#[derive(Debug, Clone)]
pub struct Step {
    pub scope: String,
    pub what: String,
    pub at: Instant,
    pub share: Option<Share>,
}

/// The completed share of a long step.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    pub done: u64,
    pub of: u64,
}

/// Receives every step; cheap to clone.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(Step) + Send + Sync>);

impl Progress {
    pub fn new(show: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }

    pub fn silent() -> Self {
        Self::new(|_| {})
    }

    /// Prints one line per step to stderr, and the share of long steps occasionally.
    pub fn plain() -> Self {
        let start = Instant::now();
        Self::new(move |step| {
            let shown = match step.share {
                Some(Share { done, .. }) if !done.is_multiple_of(200) => return,
                Some(Share { done, of }) => format!("{} ({done} of {of})", step.what),
                None => step.what,
            };
            let seconds = (step.at - start).as_secs_f32();
            eprintln!("[{seconds:6.1} s] {}: {shown}", step.scope);
        })
    }

    pub(crate) fn step(&self, scope: &str, what: impl Into<String>) {
        self.emit(scope, what.into(), None);
    }

    pub(crate) fn share(&self, scope: &str, what: impl Into<String>, done: u64, of: u64) {
        self.emit(scope, what.into(), Some(Share { done, of }));
    }

    fn emit(&self, scope: &str, what: String, share: Option<Share>) {
        (self.0)(Step { scope: scope.to_owned(), what, at: Instant::now(), share });
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}
