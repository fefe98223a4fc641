//! Kubernetes, etcd and CoreDNS, built from the Go module proxy on first use.
//!
//! Each is built from a small module whose `go.mod` and `go.sum` pin all dependencies. Go's build
//! cache lets an interrupted build resume.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Entry};
use crate::command::{Cmd, find_program};
use crate::error::{Error, Result};
use crate::files;
use crate::progress::Progress;

pub const KUBERNETES: &str = "v1.34.4";
pub(crate) const COREDNS: &str = "v1.14.7";
const ETCD: &str = "v3.6.16";

struct Module {
    name: &'static str,
    version: &'static str,
    files: &'static [(&'static str, &'static str)],
    packages: &'static [&'static str],
    ldflags: &'static str,
}

const MODULES: [Module; 3] = [
    Module {
        name: "etcd",
        version: ETCD,
        files: &[
            ("go.mod", include_str!("../go/etcd/go.mod")),
            ("go.sum", include_str!("../go/etcd/go.sum")),
            ("main.go", include_str!("../go/etcd/main.go")),
        ],
        packages: &["tombolo/testbed/etcd"],
        ldflags: "-s -w",
    },
    Module {
        name: "kubernetes",
        version: KUBERNETES,
        files: &[
            ("go.mod", include_str!("../go/kubernetes/go.mod")),
            ("go.sum", include_str!("../go/kubernetes/go.sum")),
            ("tools.go", include_str!("../go/kubernetes/tools.go")),
        ],
        packages: &[
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-scheduler",
            "k8s.io/kubernetes/cmd/kubectl",
            "k8s.io/kubernetes/cmd/kubelet",
            "k8s.io/kubernetes/cmd/kube-proxy",
        ],
        ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 \
                  -X k8s.io/component-base/version.gitMajor=1 \
                  -X k8s.io/component-base/version.gitMinor=34",
    },
    Module {
        name: "coredns",
        version: COREDNS,
        files: &[
            ("go.mod", include_str!("../go/coredns/go.mod")),
            ("go.sum", include_str!("../go/coredns/go.sum")),
            ("main.go", include_str!("../go/coredns/main.go")),
        ],
        packages: &["tombolo/testbed/coredns"],
        ldflags: "-s -w",
    },
];

/// The directories with all built programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Binaries {
    dirs: Vec<PathBuf>,
}

impl Binaries {
    /// Builds missing programs.
    pub fn prepare(cache: &Cache, progress: &Progress) -> Result<Self> {
        let _building = cache.lock("bin")?;
        let mut dirs = Vec::new();
        for module in &MODULES {
            let entry = module.entry(cache);
            if !entry.is_complete() {
                module.build(cache, &entry, progress)?;
            }
            dirs.push(entry.dir().to_owned());
        }
        Ok(Self { dirs })
    }

    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    pub fn program(&self, name: &str) -> PathBuf {
        let found = self.dirs.iter().map(|dir| dir.join(name));
        found
            .into_iter()
            .find(|path| path.is_file())
            .unwrap_or_else(|| panic!("{name} is not among the programs of the testbed"))
    }
}

impl Module {
    fn entry(&self, cache: &Cache) -> Entry {
        let mut inputs: Vec<&str> = self.files.iter().map(|(_, text)| *text).collect();
        inputs.extend(self.packages);
        inputs.push(self.ldflags);
        Entry::new(cache, "bin", self.name, self.version, &inputs)
    }

    fn build(&self, cache: &Cache, entry: &Entry, progress: &Progress) -> Result<()> {
        let go = find_program("go").ok_or_else(|| Error::Missing {
            what: "Go".into(),
            hint: format!(
                "{} {} is built from source on first use; install Go 1.26 or newer \
                 (https://go.dev/doc/install) and put it in the PATH",
                self.name, self.version
            ),
        })?;
        let title = format!("{} {}", self.name, self.version);
        let source = cache.path("src").join(self.name);
        files::make_dir(&source)?;
        for (name, text) in self.files {
            files::write(&source.join(name), text)?;
        }
        progress.step(&title, "downloading the sources");
        let packages = go_command(&go, &source, "list")
            .args(["-deps", "-f", "{{.ImportPath}}"])
            .args(self.packages)
            .run()?;
        let of = packages.lines().count() as u64;

        files::remove_tree(entry.dir())?;
        files::make_dir(entry.dir())?;
        progress.step(&title, "building from source: only once, takes minutes");
        let mut build = go_command(&go, &source, "build")
            .args(["-v", "-trimpath", "-ldflags", self.ldflags, "-o"])
            .arg(format!("{}/", entry.dir().display()))
            .args(self.packages);
        let mut child = build
            .inner()
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::file("run", &go))?;
        let mut said = String::new();
        let lines = child.stderr.take().map(BufReader::new).into_iter();
        for (count, line) in lines.flat_map(BufRead::lines).map_while(Result::ok).enumerate() {
            progress.share(&title, "compile", count as u64 + 1, of);
            said.push_str(&line);
            said.push('\n');
        }
        let status = child.wait().map_err(Error::file("run", &go))?;
        if !status.success() {
            return Err(Error::Command {
                command: format!("go build {title}"),
                outcome: format!("failed with {status}; run it again to resume"),
                output: said,
            });
        }
        entry.complete(cache)?;
        progress.step(&title, "built");
        Ok(())
    }
}

fn go_command(go: &Path, source: &Path, verb: &str) -> Cmd {
    let mut command = Cmd::new(go).arg(verb).env("CGO_ENABLED", "0");
    command
        .inner()
        .current_dir(source)
        .env("GOFLAGS", "-buildvcs=false -mod=readonly")
        .env("GOWORK", "off");
    command
}
