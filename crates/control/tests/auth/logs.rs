//! What all components have logged.

use std::{
    io::{self, Write},
    sync::{Arc, LazyLock, Mutex},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

/// From here on everything is kept, and nothing of what was before, down to traces of our own crates and
/// of those that read what callers send.
pub fn capture() -> Logs {
    static LOGS: LazyLock<Logs> = LazyLock::new(|| {
        let logs = Logs::default();
        let filter = "debug,tombolo_control=trace,tombolo_runtime=trace,axum=trace,hyper=trace,\
                      tower=info";
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_ansi(false)
            .with_writer(logs.clone())
            .init();
        logs
    });
    *LOGS.0.lock().unwrap() = Vec::new();
    LOGS.clone()
}

impl Logs {
    pub fn have(&self, text: &str) -> bool {
        self.read(|log| log.contains(text))
    }

    /// How many warnings name this ForeignCluster.
    pub fn warnings(&self, cluster: &str) -> usize {
        let names_it = |line: &&str| line.contains(" WARN ") && line.contains(cluster);
        self.read(|log| log.lines().filter(names_it).count())
    }

    pub fn have_no(&self, secret: &str) {
        assert!(secret.len() >= 8 && !self.have(secret), "a secret is in the logs");
    }

    /// Tokens of service accounts all start in the same way.
    pub fn have_no_token(&self) {
        assert!(self.have("delivered an identity"), "this is not the log");
        assert!(!self.have("eyJhbGciOi"), "a token is in the logs");
    }

    /// What they take of the memory.
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Without a copy: there may be much of it.
    fn read<T>(&self, look: impl FnOnce(&str) -> T) -> T {
        look(&String::from_utf8_lossy(&self.0.lock().unwrap()))
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::env::var_os("SHOW_LOGS").is_some() {
            io::stderr().write_all(bytes)?;
        }
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
