//! Removal of a testbed in any state, by the prefix of its names. Nothing here is async, so it also
//! runs from a drop, a signal handler or at the end of the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::cgroup;
use crate::command::Cmd;
use crate::error::{Error, Result};
use crate::files;
use crate::process::{self, Identity};
use crate::state::State;

/// Removes a testbed; the caller holds the lock. If the removal is incomplete, the state file
/// stays, so that it can be repeated.
pub(crate) fn remove_locked(state: &State) -> Result<()> {
    let layout = state.layout();
    let namespaces = namespaces(&layout.prefix());
    kill_all(&namespaces);
    cgroup::remove(&state.hierarchies.starting_with(&layout.prefix()));
    let _ = Cmd::words(&format!("ip link del {}", layout.host_link())).ok();
    for namespace in &namespaces {
        let name = namespace.file_name().unwrap_or_default();
        let _ = Cmd::words("ip netns del").arg(name).ok();
    }
    let _ = files::remove_tree(&state.data);
    let left = leftovers(state);
    if left.is_empty() {
        return files::remove_tree(&layout.state_dir());
    }
    Err(Error::Refused(format!(
        "testbed {} could not be removed completely, try again; remaining: {}",
        state.number,
        left.join(", ")
    )))
}

/// Killing the init process of a node ends all its processes and mounts.
fn kill_all(namespaces: &[PathBuf]) {
    let mut rounds = 0;
    loop {
        let found: Vec<Identity> = namespaces
            .iter()
            .flat_map(|namespace| process::in_netns(namespace))
            .filter_map(Identity::of)
            .collect();
        if found.is_empty() || rounds == 20 {
            return;
        }
        for process in &found {
            process::signal(process.pid, Signal::KILL);
        }
        process::wait_gone(&found, Duration::from_secs(5));
        rounds += 1;
    }
}

fn leftovers(state: &State) -> Vec<String> {
    let layout = state.layout();
    let link = Path::new("/sys/class/net").join(layout.host_link());
    let places = namespaces(&layout.prefix())
        .into_iter()
        .chain(state.hierarchies.starting_with(&layout.prefix()))
        .chain([link, state.data.clone()]);
    places.filter(|path| path.exists()).map(|path| path.display().to_string()).collect()
}

fn namespaces(prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect()
}
