//! The log of a test.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing_subscriber::EnvFilter;

use crate::telemetry::FILTER;

/// Lines at the default log level.
#[derive(Clone, Default)]
pub(crate) struct LogRecord(Arc<Mutex<Vec<u8>>>);

impl LogRecord {
    /// Records the log of this thread until the guard is dropped.
    pub(crate) fn start(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(FILTER))
            .with_ansi(false)
            .with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = self.0.lock().unwrap();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }
}

impl io::Write for LogRecord {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
