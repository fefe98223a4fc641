//! What is written down about a testbed, so that another process can find it, use it and remove it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::cgroup::Hierarchies;
use crate::error::{Error, Result};
use crate::files;
use crate::layout::{Layout, STATE, TESTBEDS};
use crate::process::Identity;
use crate::removal;
use crate::spec::ClusterSpec;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub number: u8,
    pub name: String,
    /// Whose it is: when that process is gone, so should the testbed be. None: it stays until told.
    pub owner: Option<Identity>,
    /// It has been up as a whole.
    pub ready: bool,
    /// On disk: certificates, kubeconfigs, the nodes' files and logs.
    pub data: PathBuf,
    /// The parents of the nodes' cgroups.
    pub cgroups: Vec<PathBuf>,
    pub clusters: Vec<ClusterSpec>,
}

const FILE: &str = "state.json";

impl State {
    /// Takes the lowest free number for a new testbed, after removing those nobody owns any more.
    pub fn claim(
        cache: &Cache,
        name: &str,
        owner: Option<Identity>,
        clusters: &[ClusterSpec],
    ) -> Result<Self> {
        let _lock = Lock::take()?;
        for stale in Self::all().iter().filter(|state| state.is_abandoned()) {
            removal::remove_locked(stale);
        }
        let taken: Vec<u8> = Self::all().iter().map(|state| state.number).collect();
        let free = (0..TESTBEDS).find(|number| !taken.contains(number));
        let number = free.ok_or_else(|| {
            Error::Refused(format!(
                "{TESTBEDS} testbeds run on this machine already; \
                 `tombolo playground down --all` removes them"
            ))
        })?;
        let layout = Layout::new(number);
        let data = cache.path("run").join(number.to_string());
        let state = Self {
            number,
            name: name.to_owned(),
            owner,
            ready: false,
            data,
            cgroups: cgroup_parents()?,
            clusters: clusters.to_vec(),
        };
        // Whatever an earlier one of this number lost hold of goes first.
        removal::remove_locked(&state);
        files::make_dir(&state.data)?;
        files::make_dir(&layout.state_dir())?;
        state.save()?;
        raise_inotify_limit()?;
        Ok(state)
    }

    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("the state is plain data");
        files::write(&self.layout().state_dir().join(FILE), text)
    }

    /// All testbeds of the machine, by their numbers.
    pub fn all() -> Vec<Self> {
        let dirs = std::fs::read_dir(STATE).into_iter().flatten().flatten();
        let mut numbers: Vec<u8> = dirs
            .filter_map(|dir| dir.file_name().to_str()?.parse().ok())
            .filter(|number| *number < TESTBEDS)
            .collect();
        numbers.sort_unstable();
        numbers
            .into_iter()
            .map(|number| Self::read(number).unwrap_or(Self::unknown(number)))
            .collect()
    }

    fn read(number: u8) -> Option<Self> {
        let file = Layout::new(number).state_dir().join(FILE);
        serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
    }

    /// One that another version of this program made, or whose making was interrupted at once:
    /// enough is known to remove it.
    fn unknown(number: u8) -> Self {
        let cache = Cache::of_this_user().ok();
        Self {
            number,
            name: format!("unknown-{number}"),
            owner: Some(Identity::nobody()),
            ready: false,
            data: cache.map(|cache| cache.path("run").join(number.to_string())).unwrap_or_default(),
            cgroups: cgroup_parents().unwrap_or_default(),
            clusters: Vec::new(),
        }
    }

    pub fn layout(&self) -> Layout {
        Layout::new(self.number)
    }

    pub fn is_abandoned(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| !owner.is_alive())
    }
}

fn cgroup_parents() -> Result<Vec<PathBuf>> {
    let roots = Hierarchies::of_this_machine()?.roots("node").into_iter();
    Ok(roots.filter_map(|root| root.parent().map(Path::to_owned)).collect())
}

/// Held while testbeds are claimed or removed, by whichever process.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        files::make_dir(Path::new(STATE))?;
        let path = Path::new(STATE).join("lock");
        loop {
            let file = match File::create(&path) {
                // Removed with the directory by the last testbed that went.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    files::make_dir(Path::new(STATE))?;
                    continue;
                }
                other => other.map_err(Error::file("create", &path))?,
            };
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| Error::file("lock", &path)(errno.into()))?;
            let ours = file.metadata().map_err(Error::file("find", &path))?.ino();
            if std::fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                return Ok(Self { _file: file });
            }
        }
    }
}

const INOTIFY: &str = "/proc/sys/fs/inotify/max_user_instances";
const INOTIFY_BEFORE: &str = "inotify-before";

/// The usual 128 are too few for several kubelets. What it was comes back with the last removal.
fn raise_inotify_limit() -> Result<()> {
    let enough = 1024;
    let current = files::read(Path::new(INOTIFY))?;
    if current.trim().parse().unwrap_or(0) < enough {
        files::write(&Path::new(STATE).join(INOTIFY_BEFORE), &current)?;
        files::write_kernel(Path::new(INOTIFY), &enough.to_string())?;
    }
    Ok(())
}

/// With the lock held: when no testbed is left, leaves the machine as it was.
pub(crate) fn forget_if_last() {
    let state = Path::new(STATE);
    if !State::all().is_empty() {
        return;
    }
    if let Ok(before) = std::fs::read_to_string(state.join(INOTIFY_BEFORE)) {
        let _ = std::fs::write(INOTIFY, before.trim());
    }
    let _ = std::fs::remove_dir_all(state);
}
