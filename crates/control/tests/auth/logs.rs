//! Captured logs of all components.

use std::{
    io::{self, Write},
    sync::{Arc, LazyLock, Mutex},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

/// Discards earlier logs and captures all later ones. The level is trace for Tombolo's crates and
/// for the crates that parse requests.
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

    /// Number of warnings about this ForeignCluster.
    pub fn warnings(&self, cluster: &str) -> usize {
        let names_it = |line: &&str| line.contains(" WARN ") && line.contains(cluster);
        self.read(|log| log.lines().filter(names_it).count())
    }

    pub fn assert_absent(&self, secret: &str) {
        assert!(secret.len() >= 8 && !self.have(secret), "a secret is in the logs");
    }

    /// All JWTs of service accounts start with the same base64 header.
    pub fn assert_no_token(&self) {
        assert!(self.have("delivered an identity"), "the logs were not captured");
        assert!(!self.have("eyJhbGciOi"), "a token is in the logs");
    }

    /// Memory in use by the captured logs.
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Reads the logs without copying them: they can be large.
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
