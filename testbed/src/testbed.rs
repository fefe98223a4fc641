//! A testbed: clusters and the network between them, from start to removal.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::try_join_all;

use crate::active;
use crate::bed::{Bed, Provisions};
use crate::cluster::Cluster;
use crate::command::is_root;
use crate::error::{Error, Result};
use crate::failure;
use crate::progress::Progress;
use crate::removal;
use crate::spec::{ClusterSpec, MAX_CLUSTERS};
use crate::state::{Lock, State};
use crate::wan;

/// Running clusters. They are removed on drop, unless the testbed is persistent.
#[derive(Debug)]
pub struct Testbed {
    pub(crate) bed: Arc<Bed>,
    state: State,
    clusters: Vec<Cluster>,
    ours: bool,
}

/// The specification of a testbed.
#[derive(Debug)]
pub struct TestbedBuilder {
    name: String,
    clusters: Vec<ClusterSpec>,
    progress: Progress,
    stays: bool,
}

/// Builds and downloads everything that clusters need. Runs without root, but may call sudo.
pub fn prepare(progress: &Progress) -> Result<()> {
    Provisions::prepare(progress).map(drop)
}

impl Testbed {
    /// `name` appears in messages and in the directory of a failure.
    pub fn builder(name: impl Into<String>) -> TestbedBuilder {
        TestbedBuilder {
            name: name.into(),
            clusters: Vec::new(),
            progress: Progress::plain(),
            stays: false,
        }
    }

    /// A testbed of another process: persistent, or being started.
    pub fn find(name: &str, progress: Progress) -> Result<Option<Self>> {
        let all = State::all().into_iter();
        let mut in_use = all.filter(|state| !state.is_abandoned());
        let Some(state) = in_use.find(|state| state.name == name) else {
            return Ok(None);
        };
        Ok(Some(Self::attach(state, progress)))
    }

    /// Removes all testbeds whose process has ended, and those for whose name `also` returns true.
    /// Returns the names of the removed testbeds.
    pub fn sweep(also: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        require_root()?;
        let _lock = Lock::take()?;
        let wanted = |state: &State| state.is_abandoned() || also(&state.name);
        let found: Vec<State> = State::all().into_iter().filter(wanted).collect();
        let failed: Vec<String> = found
            .iter()
            .filter_map(|state| removal::remove_locked(state).err())
            .map(|error| error.to_string())
            .collect();
        if failed.is_empty() {
            return Ok(found.into_iter().map(|state| state.name).collect());
        }
        Err(Error::Refused(failed.join("\n")))
    }

    /// Directories of testbeds of another version of this program, which only that version can
    /// remove.
    pub fn unreadable() -> Vec<PathBuf> {
        State::unreadable()
    }

    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    pub fn cluster(&self, name: &str) -> &Cluster {
        let found = self.clusters.iter().find(|cluster| cluster.name() == name);
        found.unwrap_or_else(|| panic!("the testbed has no cluster {name:?}"))
    }

    /// Network namespace and address of a host outside of all clusters that all nodes reach, for
    /// example for a load balancer.
    pub fn outside(&self) -> (String, Ipv4Addr) {
        (self.bed.layout.wan(), self.bed.layout.gateway())
    }

    /// PATH with the directory of kubectl first.
    pub fn path_with_kubectl(&self) -> std::ffi::OsString {
        self.bed.path()
    }

    /// False while another process is still starting it.
    pub fn is_ready(&self) -> bool {
        self.state.ready
    }

    /// Boots stopped nodes, starts stopped components, and waits until they work.
    pub async fn repair(&self) -> Result<()> {
        require_root()?;
        try_join_all(self.clusters.iter().map(async |cluster| {
            for node in cluster.nodes() {
                if !node.is_up() {
                    node.forget_network()?;
                    node.boot()?;
                }
            }
            cluster.restart().await
        }))
        .await
        .map(drop)
    }

    /// Removes it now; the error lists the remains.
    pub fn remove(mut self) -> Result<()> {
        if std::mem::take(&mut self.ours) {
            return active::remove(self.state.number);
        }
        let _lock = Lock::take()?;
        removal::remove_locked(&self.state)
    }

    fn attach(state: State, progress: Progress) -> Self {
        let bed = Arc::new(Bed::new(&state, progress));
        let specs = state.clusters.iter().enumerate();
        let clusters = specs.map(|(n, spec)| Cluster::new(&bed, spec, n)).collect();
        Self { bed, state, clusters, ours: false }
    }

    async fn start(&self) -> Result<()> {
        let sides: Vec<wan::Side> = self.clusters.iter().map(Cluster::side).collect();
        active::make(|| wan::up(self.bed.layout, &sides))?;
        try_join_all(self.clusters.iter().map(Cluster::start)).await.map(drop)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = active::remove(self.state.number)
        {
            eprintln!("{error}");
        }
    }
}

impl TestbedBuilder {
    pub fn cluster(mut self, spec: ClusterSpec) -> Self {
        self.clusters.push(spec);
        self
    }

    /// Receiver of progress reports, by default lines on stderr.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Keeps the testbed after the end of this process, until it is removed explicitly.
    pub fn persistent(mut self) -> Self {
        self.stays = true;
        self
    }

    pub async fn start(self) -> Result<Testbed> {
        self.check()?;
        require_root()?;
        let progress = self.progress.clone();
        let prepared = tokio::task::spawn_blocking(move || Provisions::prepare(&progress)).await;
        let provisions = match prepared {
            Ok(provisions) => provisions?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        let claim = || State::claim(&provisions, &self.name, self.stays, &self.clusters);
        let mut testbed = Testbed::attach(active::claim(claim)?, self.progress);
        testbed.ours = true;
        // The state file does not contain the images.
        for (cluster, spec) in testbed.clusters.iter_mut().zip(&self.clusters) {
            cluster.set_images(&spec.images);
        }
        if let Err(error) = testbed.start().await {
            failure::keep_and_say(&testbed.state);
            return Err(error);
        }
        testbed.state.ready = true;
        if self.stays {
            testbed.state.owner = None;
            testbed.ours = false;
        }
        testbed.state.save()?;
        if self.stays {
            active::forget(testbed.state.number);
        }
        Ok(testbed)
    }

    fn check(&self) -> Result<()> {
        if self.clusters.is_empty() || self.clusters.len() > MAX_CLUSTERS {
            let count = self.clusters.len();
            return Err(Error::Refused(format!(
                "{count} clusters, but a testbed has 1 to {MAX_CLUSTERS}"
            )));
        }
        for (n, spec) in self.clusters.iter().enumerate() {
            spec.check()?;
            if self.clusters[..n].iter().any(|other| other.name == spec.name) {
                return Err(Error::Refused(format!("two clusters have the name {:?}", spec.name)));
            }
        }
        Ok(())
    }
}

/// Fails unless this process runs as root.
pub fn require_root() -> Result<()> {
    if is_root() { Ok(()) } else { Err(Error::NotRoot) }
}
