//! Errors, with advice.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("clusters need root (network namespaces, mounts, cgroups): use sudo")]
    NotRoot,

    #[error("{what} is missing: {hint}")]
    Missing { what: String, hint: String },

    #[error("`{command}` {outcome}{}", tail_of(output))]
    Command { command: String, outcome: String, output: String },

    #[error("{action} {}: {reason}", path.display())]
    File { action: &'static str, path: PathBuf, reason: std::io::Error },

    #[error("timeout waiting for {what}, after {} s{}", limit.as_secs(), hint)]
    Late { what: String, limit: Duration, hint: String },

    #[error("{component} on {node} exited while starting; end of {}:\n{tail}", log.display())]
    Ended { component: &'static str, node: String, log: PathBuf, tail: String },

    #[error("create a certificate for {name}: {reason}")]
    Certificate { name: String, reason: rcgen::Error },

    #[error("{action} in cluster {cluster}: {reason}")]
    Api { action: String, cluster: String, reason: String },

    #[error("{0}")]
    Refused(String),
}

impl Error {
    pub(crate) fn file(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |reason| Self::File { action, path, reason }
    }

    pub(crate) fn api<E: std::error::Error>(
        action: impl Into<String>,
        cluster: &str,
    ) -> impl FnOnce(E) -> Self {
        let (action, cluster) = (action.into(), cluster.to_owned());
        move |source| Self::Api { action, cluster, reason: with_causes(&source) }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn tail_of(output: &str) -> String {
    let output = output.trim();
    if output.is_empty() {
        return String::new();
    }
    let lines: Vec<_> = output.lines().collect();
    let from = lines.len().saturating_sub(20);
    format!(":\n{}", lines[from..].join("\n"))
}
