//! Programs from the distribution.
//!
//! Plain tools are installed when they are missing. The container runtime is only unpacked into the
//! cache: installing it would start a service, and conflicts with Docker's packages.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Entry};
use crate::command::{Cmd, find_program};
use crate::error::{Error, Result};
use crate::files;
use crate::progress::Progress;

/// A program and its Debian package.
const TOOLS: [(&str, &str); 14] = [
    ("bash", "bash"),
    ("busybox", "busybox-static"),
    ("cc", "gcc"),
    ("conntrack", "conntrack"),
    ("curl", "curl"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("ping", "iputils-ping"),
    ("socat", "socat"),
    ("sysctl", "procps"),
    ("tcpdump", "tcpdump"),
];

const RUNTIME: [&str; 3] = ["containerd", "runc", "containernetworking-plugins"];

/// The directories of the container runtime and the network plugins.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Packages {
    root: PathBuf,
}

impl Packages {
    pub fn prepare(cache: &Cache, progress: &Progress) -> Result<Self> {
        let installing = cache.lock("debian")?;
        let missing: Vec<_> =
            TOOLS.iter().filter(|(program, _)| find_program(program).is_none()).collect();
        if !missing.is_empty() {
            let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
            progress.step("packages", format!("install {}", packages.join(", ")));
            need_apt(&missing.iter().map(|(program, _)| *program).collect::<Vec<_>>())?;
            refresh_lists()?;
            Cmd::as_root("env")
                .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qy"])
                .arg("--no-install-recommends")
                .args(packages)
                .run()?;
        }

        drop(installing);
        Ok(Self { root: unpacked(cache, progress, ("runtime", "1"), &RUNTIME)? })
    }

    pub fn dirs(&self) -> [PathBuf; 2] {
        [self.root.join("usr/bin"), self.root.join("usr/sbin")]
    }

    pub fn network_plugins(&self) -> PathBuf {
        self.root.join("usr/lib/cni")
    }
}

/// Downloads Debian packages into the cache, unpacks them there without their dependencies, and
/// returns the directory. Nothing is installed. Another list of packages needs another name or
/// version.
pub fn unpack_packages(name: &str, version: &str, packages: &[&str]) -> Result<PathBuf> {
    unpacked(&Cache::of_this_user()?, &Progress::silent(), (name, version), packages)
}

fn unpacked(
    cache: &Cache,
    progress: &Progress,
    (name, version): (&str, &str),
    packages: &[&str],
) -> Result<PathBuf> {
    let _unpacking = cache.lock("debian")?;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let entry = Entry::new(cache, "debian", name, version, &[release.as_str()]);
    if !entry.is_complete() {
        progress.step("packages", format!("unpack {}", packages.join(", ")));
        need_apt(packages)?;
        refresh_lists()?;
        files::remove_tree(entry.dir())?;
        unpack(packages, entry.dir())?;
        entry.complete(cache)?;
    }
    Ok(entry.dir().to_owned())
}

fn unpack(packages: &[&str], into: &Path) -> Result<()> {
    let fetched = into.join("fetched");
    files::make_dir(&fetched)?;
    let mut download = Cmd::new("apt-get").args(["-q", "download"]).args(packages);
    download.inner().current_dir(&fetched);
    download.run()?;
    let packages = std::fs::read_dir(&fetched).map_err(Error::file("list", &fetched))?;
    for package in packages.flatten() {
        Cmd::new("dpkg-deb").arg("-x").arg(package.path()).arg(into).run()?;
    }
    files::remove_tree(&fetched)
}

fn need_apt(wanted: &[&str]) -> Result<()> {
    if find_program("apt-get").is_some() {
        return Ok(());
    }
    Err(Error::Missing {
        what: wanted.join(", "),
        hint: "this is downloaded automatically on Debian and Ubuntu only; other distributions \
               are not supported by the testbed yet"
            .into(),
    })
}

fn refresh_lists() -> Result<()> {
    Cmd::as_root("apt-get").args(["-q", "update"]).run().map(drop)
}
