//! Events: what a component has to say to people about an object.

use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::debug;

/// Says things about objects. Events that can't be written are no reason to stop.
#[derive(Clone)]
pub struct Events(Recorder);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// Kubernetes takes no longer note.
const MOST_BYTES: usize = 1023;

impl Events {
    /// As this component, such as `liqo-control`.
    pub fn new(client: Client, component: &str) -> Self {
        Self(Recorder::new(client, Reporter::from(component.to_owned())))
    }

    /// Something to know.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, note: &str) {
        self.publish(EventType::Normal, about, reason, note).await;
    }

    /// Something to act on.
    pub async fn warning<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        reason: &str,
        note: &str,
    ) {
        self.publish(EventType::Warning, about, reason, note).await;
    }

    async fn publish<K: Resource<DynamicType = ()>>(
        &self,
        type_: EventType,
        about: &K,
        reason: &str,
        note: &str,
    ) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note[..note.floor_char_boundary(MOST_BYTES)].to_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &about.object_ref(&())).await {
            debug!(reason, "the event was not written: {error}");
        }
    }
}
