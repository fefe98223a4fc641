//! Kubernetes Events about objects.

use kube::{
    Client, Resource, ResourceExt,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tracing::debug;

/// Records Events. One that can't be written is only logged.
#[derive(Clone)]
pub struct Events(Recorder);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// The API server rejects a longer note (1 KiB and more).
const MAX_NOTE_BYTES: usize = 1023;

impl Events {
    /// Events reported by `component`, such as `liqo-control`.
    pub fn new(client: Client, component: &str) -> Self {
        Self(Recorder::new(client, Reporter::from(component.to_owned())))
    }

    /// Records information.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, note: &str) {
        self.publish(EventType::Normal, about, reason, note).await;
    }

    /// Records a problem that needs action.
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
            note: Some(note[..note.floor_char_boundary(MAX_NOTE_BYTES)].to_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &about.object_ref(&())).await {
            debug!(object = about.name_any(), reason, "write the Event: {error}");
        }
    }
}
