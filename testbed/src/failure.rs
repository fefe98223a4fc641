//! Keeps all logs and the state of all objects of a failed testbed in one directory, without
//! Secrets and keys.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::command::Cmd;
use crate::error::{Error, Result};
use crate::files;
use crate::state::State;

const KEPT: usize = 20;

/// The kinds to keep; `liqo` is the category of the kinds of Tombolo.
const OBJECTS: [&str; 10] = [
    "nodes",
    "namespaces",
    "pods",
    "deployments,daemonsets,statefulsets,jobs",
    "services,endpointslices",
    "configmaps",
    "leases",
    "events",
    "liqo",
    "customresourcedefinitions",
];

pub(crate) fn keep_and_say(state: &State) {
    match keep(state) {
        Ok(dir) => eprintln!("logs and objects of testbed {} are in {}", state.name, dir.display()),
        Err(error) => eprintln!("can't keep the logs of testbed {}: {error}", state.name),
    }
}

fn keep(state: &State) -> Result<PathBuf> {
    let kept = state.provisions.cache.path("failures");
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let dir = kept.join(format!("{}-{}", now.as_millis(), state.name));
    files::make_dir(&dir)?;
    remove_oldest(&kept)?;
    let kubectl = state.provisions.binaries.program("kubectl");
    for cluster in &state.clusters {
        let source = state.data.join(&cluster.name);
        for number in 1..=cluster.nodes {
            let node = cluster.node_name(number);
            copy_files(&source.join(&node).join("log"), &dir.join(&node))?;
            copy_pod_logs(&source.join(&node).join("var/log/pods"), &dir.join(&node))?;
        }
        let kubeconfig = source.join("pki/admin.conf");
        let objects = dir.join(&cluster.name);
        files::make_dir(&objects)?;
        for kinds in OBJECTS {
            let listed = Cmd::new(&kubectl)
                .arg("--kubeconfig")
                .arg(&kubeconfig)
                .args(["--request-timeout=3s", "get", kinds, "--all-namespaces", "-o", "yaml"])
                .env("KUBECACHEDIR", source.join("kubectl-cache"))
                .run();
            let text = listed.unwrap_or_else(|error| format!("# {error}\n"));
            files::write(&objects.join(format!("{}.yaml", kinds.replace(',', "-"))), text)?;
        }
    }
    Ok(dir)
}

/// Each container's log, as `pod-NAMESPACE_POD_UID-CONTAINER-N.log`.
fn copy_pod_logs(pods: &Path, to: &Path) -> Result<()> {
    for pod in entries(pods) {
        for container in entries(&pod) {
            for log in entries(&container) {
                let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
                let name = format!("pod-{}-{}-{}", name(&pod), name(&container), name(&log));
                std::fs::copy(&log, to.join(name)).map_err(Error::file("copy", &log))?;
            }
        }
    }
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    files::make_dir(to)?;
    for file in entries(from) {
        let target = to.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, target).map_err(Error::file("copy", &file))?;
    }
    Ok(())
}

fn remove_oldest(kept: &Path) -> Result<()> {
    let mut dirs = entries(kept);
    dirs.sort();
    let surplus = dirs.len().saturating_sub(KEPT);
    dirs.iter().take(surplus).try_for_each(|dir| files::remove_tree(dir))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
