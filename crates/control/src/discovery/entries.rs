//! The ForeignClusters, as discovery sees and changes them.

use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use tombolo_api::{ClusterId, config::DiscoveryConfig, discovery::ForeignCluster};
use tombolo_core::discovery::{Announcement, Sighting, expires_at, seen};
use tombolo_runtime::{observe::Watched, writer};
use tracing::{info, warn};

const MANAGER: &str = "liqo-discovery";

pub(super) struct Entries {
    api: Api<ForeignCluster>,
    known: Watched<ForeignCluster>,
    us: ClusterId,
}

impl Entries {
    /// Watches from now on.
    pub fn start(client: Client, us: ClusterId) -> Self {
        let api = Api::<ForeignCluster>::all(client);
        let known = Watched::new(api.clone(), watcher::Config::default());
        Self { api, known, us }
    }

    /// Waits until they are known.
    pub async fn known(&self) {
        self.known.filled().await;
    }

    /// A cluster was seen.
    pub async fn seen(&self, announcement: &Announcement, config: &DiscoveryConfig) {
        let known = self.all();
        let done = match seen(announcement, &known, &self.us, config, Timestamp::now()) {
            Sighting::LeftAlone => return,
            Sighting::New(entry) => self.make(&entry).await,
            Sighting::Again(entry) => self.refresh(&entry).await,
        };
        if let Err(error) = done {
            warn!(cluster = %announcement.cluster.cluster_name, "write the ForeignCluster: {error}");
        }
    }

    /// Deletes what has expired, and says when the next one will have.
    pub async fn collect(&self, watching: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let mut next = None;
        for entry in self.all() {
            let Some(expiry) = expires_at(&entry, watching) else { continue };
            if entry.metadata.deletion_timestamp.is_some() {
                continue;
            }
            if expiry > now {
                next = Some(next.map_or(expiry, |next: Timestamp| next.min(expiry)));
                continue;
            }
            let name = entry.name_any();
            info!(cluster = name, "not seen for longer than its announcement holds: deleting");
            let gone = writer::delete_if_same(&self.api, &name, entry.uid().as_deref()).await;
            if let Err(error) = gone {
                warn!(cluster = name, "delete the ForeignCluster: {error}");
            }
        }
        next
    }

    fn all(&self) -> Vec<ForeignCluster> {
        self.known.all().iter().map(|entry| (**entry).clone()).collect()
    }

    async fn make(&self, entry: &ForeignCluster) -> kube::Result<()> {
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        match self.api.create(&params, entry).await {
            // It is there, only not seen here yet.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            made => made.map(|made| info!(cluster = made.name_any(), "made a ForeignCluster")),
        }
    }

    /// Applies what was seen. Whether to peer is not among it: that is somebody else's to say.
    async fn refresh(&self, entry: &ForeignCluster) -> kube::Result<()> {
        let mut value = serde_json::to_value(entry).map_err(kube::Error::SerdeError)?;
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("join");
        }
        let params = PatchParams::apply(MANAGER).force();
        let applied = self.api.patch(&entry.name_any(), &params, &Patch::Apply(value)).await;
        // Deleted meanwhile: it is not made again of what was seen before.
        writer::absent_is_fine(applied.map(drop))
    }
}
