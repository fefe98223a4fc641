//! Runs a controller: kube's, with our way to retry, to log and to end.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, TryFuture};
use kube::{
    Resource, ResourceExt,
    runtime::{
        Controller,
        controller::{Action, Config},
        reflector::ObjectRef,
    },
};
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use crate::shutdown::Shutdown;

/// Short: what fails first is most often what another cluster is about to allow.
const FIRST_RETRY: Duration = Duration::from_millis(25);
const LAST_RETRY: Duration = Duration::from_secs(30);
const AT_A_TIME: u16 = 16;

/// Runs a controller until the end is asked for. A reconciliation that fails is tried again, later
/// and later.
pub async fn run<K, Reconciled, Context>(
    name: &'static str,
    controller: Controller<K>,
    reconcile: impl FnMut(Arc<K>, Arc<Context>) -> Reconciled,
    context: Arc<Context>,
    shutdown: &Shutdown,
) where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug + Default + Unpin,
    Reconciled: TryFuture<Ok = Action> + Send + 'static,
    Reconciled::Error: Error + Send + 'static,
    Context: Send + Sync + 'static,
{
    let failures = Failures::default();
    let counted = failures.clone();
    let on_error = move |object: Arc<K>, error: &Reconciled::Error, _| {
        let retry = counted.another(&key(&*object));
        let object = ObjectRef::from_obj(&*object);
        warn!(controller = name, %object, retry_in = ?retry, "{}", Chain(error));
        Action::requeue(retry)
    };
    controller
        .with_config(Config::default().concurrency(AT_A_TIME))
        .graceful_shutdown_on(shutdown.asked_owned())
        .run(reconcile, on_error, context)
        .for_each(|done| {
            match done {
                Ok((object, _)) => {
                    failures.none(&format!(
                        "{}/{}",
                        object.namespace.as_deref().unwrap_or_default(),
                        object.name
                    ));
                }
                Err(error) => debug!(controller = name, "{}", Chain(&error)),
            }
            std::future::ready(())
        })
        .await;
}

fn key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// How often each object failed in a row.
#[derive(Clone, Default)]
struct Failures(Arc<Mutex<BTreeMap<String, u32>>>);

impl Failures {
    fn another(&self, object: &str) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(object.to_owned()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1 << (*count).min(16)).min(LAST_RETRY);
        *count += 1;
        delay
    }

    fn none(&self, object: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

/// An error with its causes, on one line.
#[derive(Debug)]
pub struct Chain<'a, E: ?Sized>(pub &'a E);

impl<E: Error + ?Sized> std::fmt::Display for Chain<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        let mut said = self.0.to_string();
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
            }
            said = text;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_come_later_and_later_until_one_succeeds() {
        let failures = Failures::default();
        assert_eq!(failures.another("a"), FIRST_RETRY);
        assert_eq!(failures.another("a"), FIRST_RETRY * 2);
        assert_eq!(failures.another("b"), FIRST_RETRY);
        for _ in 0..100 {
            failures.another("a");
        }
        assert_eq!(failures.another("a"), LAST_RETRY);
        failures.none("a");
        assert_eq!(failures.another("a"), FIRST_RETRY);
    }
}
