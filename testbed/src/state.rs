//! What is written down about a testbed, so that another process can find it, use it and remove it.

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
    /// Whose it is: when that process is gone, so should the testbed be. None: it stays until told.
    pub owner: Option<Identity>,
    /// It has been up as a whole.
    pub ready: bool,
    /// On disk: certificates, kubeconfigs, the nodes' files and logs.
    pub data: PathBuf,
    /// Those of the process that made it: another one may be elsewhere in them.
    pub hierarchies: Hierarchies,
    pub provisions: Provisions,
    pub clusters: Vec<ClusterSpec>,
}

const FILE: &str = "state.json";

impl State {
    /// Takes the lowest free number for a new testbed, after removing those nobody owns any more.
    /// One that stays must be the only one of its name.
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
        // Whatever an earlier one of this number lost hold of goes first.
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

    /// All testbeds of the machine that this version of the program understands, by their numbers.
    pub fn all() -> Vec<Self> {
        numbers().into_iter().filter_map(|number| Self::read(number).ok()).collect()
    }

    /// What can't be read: made by another version, or the making was interrupted at once.
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

/// Held while testbeds are claimed or removed, by whichever process.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub fn take() -> Result<Self> {
        let path = Path::new(STATE).join("lock");
        loop {
            files::make_dir(Path::new(STATE))?;
            let file = match File::create(&path) {
                // Removed with the directory by the last testbed that went.
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

/// A claim that was interrupted before it wrote anything down has made nothing else either.
fn forget_unfinished() {
    for dir in numbers().into_iter().map(|number| Layout::new(number).state_dir()) {
        if !dir.join(FILE).exists() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Lock {
    /// With the last testbed gone, the machine is left as it was.
    fn drop(&mut self) {
        if numbers().is_empty() {
            host::put_back();
            let _ = std::fs::remove_dir_all(STATE);
        }
    }
}
