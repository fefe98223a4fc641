//! Shared data of all parts of one testbed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::cache::Cache;
use crate::cgroup::Hierarchies;
use crate::error::{Error, Result};
use crate::images;
use crate::layout::Layout;
use crate::packages::Packages;
use crate::progress::Progress;
use crate::state::State;

#[derive(Debug)]
pub(crate) struct Bed {
    pub layout: Layout,
    pub data: PathBuf,
    pub hierarchies: Hierarchies,
    pub provisions: Provisions,
    pub progress: Progress,
}

/// The built and downloaded files that clusters need.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Provisions {
    pub cache: Cache,
    pub binaries: Binaries,
    pub packages: Packages,
    pub pause: PathBuf,
}

impl Provisions {
    pub fn prepare(progress: &Progress) -> Result<Self> {
        let cache = Cache::of_this_user()?;
        if cache.path("").to_string_lossy().contains(':') {
            let path = cache.path("");
            return Err(Error::Refused(format!(
                "the cache {} has a colon in its path, which breaks PATH: \
                 set TOMBOLO_CACHE to another directory",
                path.display()
            )));
        }
        let packages = Packages::prepare(&cache, progress)?;
        let binaries = Binaries::prepare(&cache, progress)?;
        let pause = images::pause_program(&cache)?;
        cache.give_to_caller();
        Ok(Self { cache, binaries, packages, pause })
    }
}

impl Bed {
    pub fn new(state: &State, progress: Progress) -> Self {
        Self {
            layout: state.layout(),
            data: state.data.clone(),
            hierarchies: state.hierarchies.clone(),
            provisions: state.provisions.clone(),
            progress,
        }
    }

    pub fn cluster_dir(&self, cluster: &str) -> PathBuf {
        self.data.join(cluster)
    }

    /// PATH of the nodes.
    pub fn path(&self) -> std::ffi::OsString {
        let own = self.provisions.binaries.dirs().iter().cloned();
        let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let dirs = own.chain(self.provisions.packages.dirs()).chain(usual.map(PathBuf::from));
        std::env::join_paths(dirs).expect("the cache's path has no colon")
    }
}
