//! What all parts of one testbed share.

use std::path::PathBuf;

use crate::binaries::Binaries;
use crate::cache::Cache;
use crate::cgroup::Hierarchies;
use crate::error::Result;
use crate::images;
use crate::layout::Layout;
use crate::packages::Packages;
use crate::progress::Progress;
use crate::state::State;

#[derive(Debug)]
pub(crate) struct Bed {
    pub layout: Layout,
    pub data: PathBuf,
    pub cache: Cache,
    pub binaries: Binaries,
    pub packages: Packages,
    pub pause: PathBuf,
    pub hierarchies: Hierarchies,
    pub progress: Progress,
}

/// Everything that is built or fetched before the first cluster can start.
#[derive(Debug, Clone)]
pub(crate) struct Provisions {
    pub cache: Cache,
    pub binaries: Binaries,
    pub packages: Packages,
    pub pause: PathBuf,
}

impl Provisions {
    pub fn prepare(progress: &Progress) -> Result<Self> {
        let cache = Cache::of_this_user()?;
        let packages = Packages::prepare(&cache, progress)?;
        let binaries = Binaries::prepare(&cache, progress)?;
        let pause = images::pause_program(&cache)?;
        cache.give_to_caller()?;
        Ok(Self { cache, binaries, packages, pause })
    }
}

impl Bed {
    pub fn new(state: &State, provisions: Provisions, progress: Progress) -> Result<Self> {
        Ok(Self {
            layout: state.layout(),
            data: state.data.clone(),
            cache: provisions.cache,
            binaries: provisions.binaries,
            packages: provisions.packages,
            pause: provisions.pause,
            hierarchies: Hierarchies::of_this_machine()?,
            progress,
        })
    }

    pub fn cluster_dir(&self, cluster: &str) -> PathBuf {
        self.data.join(cluster)
    }

    /// Where programs are looked for on nodes.
    pub fn path(&self) -> std::ffi::OsString {
        let own = self.binaries.dirs().iter().cloned();
        let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let dirs = own.chain(self.packages.dirs()).chain(usual.map(PathBuf::from));
        std::env::join_paths(dirs).expect("the cache's path has no colon")
    }
}
