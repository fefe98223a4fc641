//! The cgroups of nodes: each node sees its own as the root. Version 1 has one hierarchy per
//! controller, version 2 one for all; a host with both (hybrid) counts as version 1.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files;

/// The hierarchies of this machine, and the cgroups of this process in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hierarchies {
    V1(Vec<V1>),
    V2 { root: PathBuf },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct V1 {
    /// Name in the kernel: `memory`, `cpu,cpuacct`, `name=systemd`.
    pub controllers: String,
    /// The cgroup of this process.
    pub own: PathBuf,
}

/// The root directory of one node in each hierarchy.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    roots: Vec<PathBuf>,
    /// Version 2 allows no processes in a group that delegates controllers.
    leaf: Option<PathBuf>,
}

impl Hierarchies {
    pub fn of_this_machine() -> Result<Self> {
        let read = |path: &str| files::read(Path::new(path));
        Self::parse(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
    }

    fn parse(own: &str, mounts: &str) -> Result<Self> {
        let mut v1 = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            if let Some(mount) = v1_mount(mounts, controllers) {
                v1.push(V1 {
                    controllers: controllers.to_owned(),
                    own: mount.join(path.trim_start_matches('/')),
                });
            }
        }
        if v1.iter().any(|group| group.controllers == "memory") {
            return Ok(Self::V1(v1));
        }
        let root = mounts.lines().find_map(|line| {
            let (at, kind, _) = mount_fields(line)?;
            (kind == "cgroup2").then(|| PathBuf::from(at))
        });
        root.map(|root| Self::V2 { root }).ok_or_else(|| Error::Missing {
            what: "a cgroup file system".into(),
            hint: "mount cgroup2 on /sys/fs/cgroup".into(),
        })
    }

    /// The hierarchies that the init process of a node mounts: `v2`, or a list of version 1
    /// hierarchies.
    pub fn to_mount(&self) -> String {
        match self {
            Self::V2 { .. } => "v2".into(),
            Self::V1(groups) => {
                let names: Vec<&str> = groups.iter().map(|g| g.controllers.as_str()).collect();
                names.join(" ")
            }
        }
    }

    /// The directories of node `name`, whether they exist or not.
    pub fn roots(&self, name: &str) -> Vec<PathBuf> {
        match self {
            Self::V1(groups) => groups.iter().map(|group| group.own.join(name)).collect(),
            Self::V2 { root } => vec![root.join(name)],
        }
    }

    /// All cgroups of nodes with this name prefix.
    pub fn starting_with(&self, prefix: &str) -> Vec<PathBuf> {
        let parents = match self {
            Self::V1(groups) => groups.iter().map(|group| group.own.as_path()).collect(),
            Self::V2 { root } => vec![root.as_path()],
        };
        let children = parents.into_iter().flat_map(children);
        children
            .filter(|dir| dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
            .collect()
    }

    /// The cgroups of node `name`.
    pub fn cgroup(&self, name: &str) -> Cgroup {
        let roots = self.roots(name);
        let leaf = match self {
            Self::V1(_) => None,
            Self::V2 { .. } => Some(roots[0].join("init")),
        };
        Cgroup { roots, leaf }
    }

    /// Creates them, without leftovers of an earlier boot.
    pub fn make(&self, name: &str) -> Result<Cgroup> {
        let cgroup = self.cgroup(name);
        remove(&cgroup.roots);
        for dir in cgroup.roots.iter().chain(&cgroup.leaf) {
            files::make_dir(dir)?;
        }
        match self {
            Self::V1(groups) => {
                let cpuset = groups.iter().position(|g| g.controllers.contains("cpuset"));
                if let Some(at) = cpuset {
                    inherit_cpuset(&groups[at].own, &cgroup.roots[at])?;
                }
            }
            Self::V2 { root } => delegate_controllers(root)?,
        }
        Ok(cgroup)
    }
}

impl Cgroup {
    /// Starts the command in the root cgroup of the node, so that a new cgroup namespace starts
    /// there.
    pub fn enter_root(&self, command: &mut Command) -> Result<()> {
        enter(command, &self.roots)
    }

    /// Starts the command in the cgroups of the node.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        match &self.leaf {
            Some(leaf) => enter(command, std::slice::from_ref(leaf)),
            None => enter(command, &self.roots),
        }
    }

    /// After the init process has started: moves it out of the root, and delegates the controllers
    /// to the node.
    pub fn settle(&self) -> Result<()> {
        let Some(leaf) = &self.leaf else {
            return Ok(());
        };
        let root = &self.roots[0];
        for pid in files::read(&root.join("cgroup.procs"))?.lines() {
            files::write_kernel(&leaf.join("cgroup.procs"), pid)?;
        }
        delegate_controllers(root)
    }
}

/// Removes cgroups of killed processes, which may take a moment to exit.
pub(crate) fn remove(roots: &[PathBuf]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for root in roots {
        while root.exists() && Instant::now() < deadline {
            remove_below(root);
            if root.exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn remove_below(dir: &Path) {
    for child in children(dir) {
        remove_below(&child);
    }
    let _ = fs::remove_dir(dir);
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn enter(command: &mut Command, dirs: &[PathBuf]) -> Result<()> {
    let mut procs: Vec<OwnedFd> = Vec::new();
    for dir in dirs {
        let path = dir.join("cgroup.procs");
        let file =
            fs::OpenOptions::new().write(true).open(&path).map_err(Error::file("open", &path))?;
        procs.push(file.into());
    }
    let join = move || {
        for file in &procs {
            // SAFETY: write(2) of a constant to a descriptor we own.
            let written = unsafe { libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) };
            if written != 1 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only write(2) is called.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// A new cpuset is empty and accepts no process until it is set.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let value = files::read(&parent.join(name))?;
        files::write_kernel(&child.join(name), value.trim())?;
    }
    files::write_kernel(&child.join("cgroup.clone_children"), "1")
}

/// The controllers that a kubelet needs.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

fn delegate_controllers(dir: &Path) -> Result<()> {
    let control = dir.join("cgroup.subtree_control");
    let enabled = files::read(&control)?;
    let has = |list: &str, wanted: &str| list.split_whitespace().any(|name| name == wanted);
    let available = files::read(&dir.join("cgroup.controllers"))?;
    for controller in CONTROLLERS {
        if has(&available, controller) && !has(&enabled, controller) {
            files::write_kernel(&control, &format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn v1_mount(mounts: &str, controllers: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (at, kind, options) = mount_fields(line)?;
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let matches = kind == "cgroup" && controllers.split(',').all(has);
        (matches && !controllers.is_empty()).then(|| PathBuf::from(at))
    })
}

/// Mount point, type and the file system's own options of a line of mountinfo.
fn mount_fields(line: &str) -> Option<(&str, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let at = left.split(' ').nth(4)?;
    let mut right = right.split(' ');
    Some((at, right.next()?, right.nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_host_with_only_the_unified_hierarchy_is_version_2() {
        let found = Hierarchies::parse("0::/user.slice/session-3.scope\n", UNIFIED).unwrap();
        assert_eq!(found.to_mount(), "v2");
        assert_eq!(found.roots("tb0-rome-1"), [Path::new("/sys/fs/cgroup/tb0-rome-1")]);
    }

    #[test]
    fn a_hybrid_host_is_version_1_below_the_callers_own_groups() {
        let own = "9:name=systemd:/\n4:memory:/process/7\n2:cpu,cpuacct:/\n1:net_cls:/\n0::/\n";
        let mounts = "\
            31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
            34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = Hierarchies::parse(own, mounts).unwrap();
        assert_eq!(found.to_mount(), "name=systemd memory cpu,cpuacct");
        let roots = found.roots("x");
        assert_eq!(roots[1], Path::new("/sys/fs/cgroup/memory/process/7/x"));
    }

    #[test]
    fn without_a_cgroup_mount_the_error_has_advice() {
        let error = Hierarchies::parse("0::/\n", "").unwrap_err().to_string();
        assert!(error.contains("mount cgroup2"), "{error}");
    }
}
