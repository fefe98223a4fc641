//! I/O that all components share: clients of this and of other clusters, watches, queues, the
//! writer, the lease, shutdown, logs, metrics.

pub mod chain;
pub mod client;
pub mod events;
pub mod finalizer;
pub mod health;
pub mod lease;
pub mod listen;
#[cfg(test)]
mod log_record;
pub mod metrics;
pub mod mutual_tls;
pub mod observe;
pub mod queue;
pub mod remote;
pub mod settings;
pub mod shutdown;
pub mod task;
pub mod telemetry;
pub mod time_limit;
pub mod writer;
