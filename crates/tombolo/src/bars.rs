//! Progress output: one bar per cluster and per build, or plain lines without a terminal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tombolo_testbed::{Progress, Share, Step};

#[derive(Debug, Clone)]
pub struct Bars {
    all: MultiProgress,
    by_scope: Arc<Mutex<BTreeMap<String, ProgressBar>>>,
    last: Arc<Mutex<BTreeMap<String, String>>>,
    start: Instant,
}

impl Bars {
    pub fn new() -> Self {
        Self {
            all: MultiProgress::new(),
            by_scope: Arc::default(),
            last: Arc::default(),
            start: Instant::now(),
        }
    }

    pub fn progress(&self) -> Progress {
        if self.all.is_hidden() {
            return Progress::plain();
        }
        let bars = self.clone();
        Progress::new(move |step| bars.show(&step))
    }

    /// Reports the current step of a cluster. Repeated texts are printed once.
    pub fn say(&self, cluster: &str, what: impl Into<String>) {
        self.report(cluster, what.into(), None);
    }

    /// Reports a step and its completed share.
    pub fn share(&self, cluster: &str, what: impl Into<String>, done: usize, of: usize) {
        self.report(cluster, what.into(), Some(Share { done: done as u64, of: of as u64 }));
    }

    fn report(&self, scope: &str, what: String, share: Option<Share>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if share.is_none() && last.get(scope) == Some(&what) {
            return;
        }
        last.insert(scope.to_owned(), what.clone());
        let step = Step { scope: scope.to_owned(), what, at: Instant::now(), share };
        if !self.all.is_hidden() {
            return self.show(&step);
        }
        match step.share {
            Some(Share { done, of }) if done < of => {}
            _ => {
                let seconds = (step.at - self.start).as_secs_f32();
                eprintln!("[{seconds:6.1} s] {scope}: {}", step.what);
            }
        }
    }

    fn show(&self, step: &Step) {
        let mut bars = self.by_scope.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = bars.entry(step.scope.clone()).or_insert_with(|| self.add(&step.scope));
        bar.set_message(step.what.clone());
        if let Some(share) = step.share {
            bar.set_style(style("{bar:30.cyan/dim} {pos} of {len}"));
            bar.set_length(share.of);
            bar.set_position(share.done.min(share.of));
        } else {
            bar.set_style(style(""));
        }
    }

    fn add(&self, scope: &str) -> ProgressBar {
        let bar = self.all.add(ProgressBar::new_spinner());
        bar.set_prefix(scope.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    /// Stops the animation and leaves the lines as they are.
    pub fn finish(&self) {
        let bars = self.by_scope.lock().unwrap_or_else(PoisonError::into_inner);
        for bar in bars.values() {
            bar.finish();
        }
    }
}

fn style(rest: &str) -> ProgressStyle {
    let template = format!("{{spinner:.cyan}} {{prefix:16}} {{elapsed:>4}}  {{msg}} {rest}");
    ProgressStyle::with_template(&template).expect("the template is valid")
}
