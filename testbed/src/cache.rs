//! The cache of built and downloaded files: outside of the checkout, keyed by version.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::command::is_root;
use crate::error::{Error, Result};
use crate::files;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$TOMBOLO_CACHE`, else `tombolo` in the user's cache directory. Under sudo, that of the
    /// calling user.
    pub fn of_this_user() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || match Caller::of_sudo() {
            Some(caller) => Some(caller.home),
            None => variable("HOME").map(PathBuf::from),
        };
        let root = variable("TOMBOLO_CACHE")
            .map(PathBuf::from)
            .or_else(|| home().map(|home| home.join(".cache/tombolo")))
            .ok_or_else(|| Error::Missing {
                what: "the environment variable HOME".into(),
                hint: "set it, or set TOMBOLO_CACHE to the cache directory".into(),
            })?;
        files::make_dir(&root)?;
        let root = root.canonicalize().map_err(Error::file("find", &root))?;
        Ok(Self { root })
    }

    /// Under sudo, gives files of root to the calling user, who could not update them otherwise.
    /// Data of running testbeds stays with root.
    pub(crate) fn give_to_caller(&self) {
        let Some(caller) = Caller::of_sudo() else {
            return;
        };
        let give = |path: &Path| {
            let _ = std::os::unix::fs::lchown(path, Some(caller.user), Some(caller.group));
        };
        give(&self.root);
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name() != "run" {
                for_each_below(&entry.path(), &give);
            }
        }
    }

    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    /// Lock of a build, so that two processes do not build the same.
    pub(crate) fn lock(&self, name: &str) -> Result<CacheLock> {
        let path = self.path(format!("{name}.lock"));
        // Read access suffices for a lock, also on a file of another user.
        let file = File::open(&path)
            .or_else(|_| File::create(&path))
            .map_err(Error::file("create", &path))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|errno| Error::file("lock", &path)(errno.into()))?;
        Ok(CacheLock { _file: file })
    }
}

fn for_each_below(path: &Path, act: &impl Fn(&Path)) {
    act(path);
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            for_each_below(&entry.path(), act);
        }
    }
}

/// The user that called sudo.
#[derive(Debug)]
pub(crate) struct Caller {
    pub user: u32,
    pub group: u32,
    home: PathBuf,
}

impl Caller {
    pub fn of_sudo() -> Option<Self> {
        let user = std::env::var("SUDO_UID").ok().filter(|_| is_root())?;
        Self::from_passwd(&std::fs::read_to_string("/etc/passwd").ok()?, &user)
    }

    fn from_passwd(passwd: &str, user: &str) -> Option<Self> {
        let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = lines.find(|fields| fields.get(2) == Some(&user) && user != "0")?;
        let group = fields.get(3)?.parse().ok()?;
        let home = PathBuf::from(fields.get(5)?);
        Some(Self { user: user.parse().ok()?, group, home })
    }
}

/// Released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

/// A cache directory for certain inputs. Its name contains their digest, so that changed inputs are
/// another entry. A marker with the sizes of all files distinguishes complete entries from
/// interrupted ones.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    kind: String,
    name: String,
    dir: PathBuf,
}

const MARKER: &str = "complete";

impl Entry {
    pub fn new(cache: &Cache, kind: &str, name: &str, version: &str, inputs: &[&str]) -> Self {
        let mut digest = Sha256::new();
        for input in inputs {
            digest.update(input.len().to_le_bytes());
            digest.update(input);
        }
        let key = hex(&digest.finalize()[..6]);
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            dir: cache.path(kind).join(format!("{name}-{version}-{key}")),
        }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn is_complete(&self) -> bool {
        std::fs::read_to_string(self.dir.join(MARKER)).is_ok_and(|marker| marker == self.listing())
    }

    /// Marks it complete and removes entries of the same name with other inputs.
    pub fn complete(&self, cache: &Cache) -> Result<()> {
        files::write(&self.dir.join(MARKER), self.listing())?;
        if std::fs::read_dir(cache.path("run")).is_ok_and(|mut beds| beds.next().is_some()) {
            // Running clusters may still use the old entry; the next change removes both.
            return Ok(());
        }
        let kept = cache.path(&self.kind);
        let stale = |name: &str| {
            name.strip_prefix(&format!("{}-", self.name))
                .is_some_and(|rest| rest.starts_with(|c: char| c == 'v' || c.is_ascii_digit()))
        };
        for entry in std::fs::read_dir(&kept).map_err(Error::file("list", &kept))? {
            let path = entry.map_err(Error::file("list", &kept))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path != self.dir && stale(&name) {
                files::remove_tree(&path)?;
            }
        }
        Ok(())
    }

    /// Every file with its size.
    fn listing(&self) -> String {
        let lines = RefCell::new(BTreeSet::new());
        for_each_below(&self.dir, &|path| {
            let below = path.strip_prefix(&self.dir).unwrap_or(path);
            if let Ok(found) = path.symlink_metadata()
                && found.is_file()
                && below != Path::new(MARKER)
            {
                lines.borrow_mut().insert(format!("{} {}\n", below.display(), found.len()));
            }
        });
        lines.into_inner().into_iter().collect()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Cache {
        let root =
            std::env::temp_dir().join(format!("tombolo-cache-{name}-{}", std::process::id()));
        files::remove_tree(&root).unwrap();
        files::make_dir(&root).unwrap();
        Cache { root }
    }

    #[test]
    fn under_sudo_the_cache_belongs_to_the_calling_user() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1001:Ada:/home/ada:/bin/bash\n";
        let caller = Caller::from_passwd(passwd, "1000").unwrap();
        assert_eq!((caller.user, caller.group), (1000, 1001));
        assert_eq!(caller.home, Path::new("/home/ada"));
        assert!(Caller::from_passwd(passwd, "0").is_none(), "root calling sudo is root");
        assert!(Caller::from_passwd(passwd, "7").is_none());
    }

    #[test]
    fn an_interrupted_entry_is_not_complete() {
        let cache = scratch("interrupted");
        let entry = Entry::new(&cache, "bin", "etcd", "v1", &["sum"]);
        files::make_dir(entry.dir()).unwrap();
        files::write(&entry.dir().join("etcd"), "half").unwrap();
        assert!(!entry.is_complete());
        entry.complete(&cache).unwrap();
        assert!(entry.is_complete());
        files::remove_tree(&cache.root).unwrap();
    }

    #[test]
    fn a_truncated_file_makes_an_entry_stale() {
        let cache = scratch("truncated");
        let entry = Entry::new(&cache, "bin", "etcd", "v1", &["sum"]);
        files::make_dir(entry.dir()).unwrap();
        files::write(&entry.dir().join("etcd"), "whole").unwrap();
        entry.complete(&cache).unwrap();
        files::write(&entry.dir().join("etcd"), "who").unwrap();
        assert!(!entry.is_complete());
        files::remove_tree(&cache.root).unwrap();
    }

    #[test]
    fn an_entry_with_other_inputs_replaces_the_old_one() {
        let cache = scratch("replaced");
        let old = Entry::new(&cache, "bin", "etcd", "v1", &["a"]);
        let new = Entry::new(&cache, "bin", "etcd", "v1", &["b"]);
        let other = Entry::new(&cache, "bin", "etcd-tools", "v1", &["a"]);
        assert_ne!(old.dir(), new.dir());
        for entry in [&old, &other, &new] {
            files::make_dir(entry.dir()).unwrap();
            entry.complete(&cache).unwrap();
        }
        assert!(!old.dir().exists() && other.is_complete() && new.is_complete());
        files::remove_tree(&cache.root).unwrap();
    }
}
