//! The state file of a testbed, with which other processes find, use and remove it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::bed::Provisions;
use crate::cgroup::Hierarchies;
use crate::error::{Error, Result};
use crate::files;
use crate::host;
use crate::layout::{Layout, STATE, TESTBEDS};
use crate::process::Identity;
use crate::removal;
use crate::spec::ClusterSpec;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub number: u8,
    pub name: String,
    /// The owning process: without it, the testbed is removed. None: it stays until it is removed
    /// explicitly.
    pub owner: Option<Identity>,
    /// Whether its start has completed.
    pub ready: bool,
    /// Directory of certificates, kubeconfigs, disks and logs.
    pub data: PathBuf,
    /// Hierarchies of the creating process: another process may be in other cgroups.
    pub hierarchies: Hierarchies,
    pub provisions: Provisions,
    pub clusters: Vec<ClusterSpec>,
}

const FILE: &str = "state.json";

impl State {
    /// Claims the lowest free number for a new testbed, after the removal of abandoned testbeds.
    /// The name of a persistent testbed must be unique.
    pub fn claim(
        provisions: &Provisions,
        name: &str,
        stays: bool,
        clusters: &[ClusterSpec],
    ) -> Result<Self> {
        let _lock = Lock::take()?;
        if stays && Self::all().iter().any(|state| !state.is_abandoned() && state.name == name) {
            return Err(Error::Refused(format!("{name} is running, or being started, already")));
        }
        for abandoned in Self::all().iter().filter(|state| state.is_abandoned()) {
            let _ = removal::remove_locked(abandoned);
        }
        let free = (0..TESTBEDS).find(|&number| !Layout::new(number).state_dir().exists());
        let number = free.ok_or_else(|| {
            Error::Refused(format!(
                "{TESTBEDS} testbeds run on this machine already; \
                 `tombolo playground down --all` removes them"
            ))
        })?;
        let state = Self {
            number,
            name: name.to_owned(),
            owner: Identity::of_this_process(),
            ready: false,
            data: provisions.cache.path("run").join(number.to_string()),
            hierarchies: Hierarchies::of_this_machine()?,
            provisions: provisions.clone(),
            clusters: clusters.to_vec(),
        };
        // Remove leftovers of an earlier testbed with this number.
        removal::remove_locked(&state)?;
        host::make_ready()?;
        files::make_dir(&state.data)?;
        files::make_dir(&state.layout().state_dir())?;
        state.save()?;
        Ok(state)
    }

    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self).expect("the state is plain data");
        files::write(&self.layout().state_dir().join(FILE), text)
    }

    /// All testbeds of the machine that this version can read, by number.
    pub fn all() -> Vec<Self> {
        numbers().into_iter().filter_map(|number| Self::read(number).ok()).collect()
    }

    /// State directories that can't be read: of another version, or of an interrupted claim.
    pub fn unreadable() -> Vec<PathBuf> {
        let unread = numbers().into_iter().filter(|&number| Self::read(number).is_err());
        unread.map(|number| Layout::new(number).state_dir()).collect()
    }

    pub fn layout(&self) -> Layout {
        Layout::new(self.number)
    }

    pub fn is_abandoned(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| !owner.is_alive())
    }

    fn read(number: u8) -> std::io::Result<Self> {
        let file = Layout::new(number).state_dir().join(FILE);
        Ok(serde_json::from_str(&std::fs::read_to_string(file)?)?)
    }
}

fn numbers() -> Vec<u8> {
    let dirs = std::fs::read_dir(STATE).into_iter().flatten().flatten();
    let mut numbers: Vec<u8> = dirs
        .filter_map(|dir| dir.file_name().to_str()?.parse().ok())
        .filter(|number| *number < TESTBEDS)
        .collect();
    numbers.sort_unstable();
    numbers
}

/// A lock across processes, held while testbeds are claimed or removed.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        let path = Path::new(STATE).join("lock");
        loop {
            files::make_dir(Path::new(STATE))?;
            let file = match File::create(&path) {
                // The removal of the last testbed has removed the directory.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(Error::file("create", &path))?,
            };
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| Error::file("lock", &path)(errno.into()))?;
            let ours = file.metadata().map_err(Error::file("find", &path))?.ino();
            if std::fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                forget_unfinished();
                return Ok(Self { _file: file });
            }
        }
    }
}

/// A claim that was interrupted before it wrote its state has created nothing else.
fn forget_unfinished() {
    for dir in numbers().into_iter().map(|number| Layout::new(number).state_dir()) {
        if !dir.join(FILE).exists() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Lock {
    /// Restores the settings of the machine after the last testbed.
    fn drop(&mut self) {
        if numbers().is_empty() {
            host::restore();
            let _ = std::fs::remove_dir_all(STATE);
        }
    }
}
