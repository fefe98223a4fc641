//! Settings of the whole machine that clusters depend on. Old values are recorded, and restored
//! after the last testbed.

use std::fs;
use std::path::Path;

use crate::command::Cmd;
use crate::error::Result;
use crate::files;
use crate::layout::STATE;

/// A setting, its minimum, and the file for its old value.
const SETTINGS: [(&str, u64, &str); 1] = [
    // The default of 128 is too low for several kubelets.
    ("/proc/sys/fs/inotify/max_user_instances", 1024, "max_user_instances-before"),
];

const NETNS: &str = "/run/netns";
const NETNS_NOTE: &str = "netns-is-ours";

const BRIDGE_FILTER: &str = "/proc/sys/net/bridge";
const BRIDGE_FILTER_CALLS: [&str; 3] =
    ["bridge-nf-call-arptables", "bridge-nf-call-ip6tables", "bridge-nf-call-iptables"];

/// Called with the lock held, before a testbed is created.
pub(crate) fn make_ready() -> Result<()> {
    let note = |name: &str| Path::new(STATE).join(name);
    for (path, enough, before) in SETTINGS {
        let current = files::read(Path::new(path))?;
        if current.trim().parse().unwrap_or(0) < enough {
            files::write(&note(before), &current)?;
            files::write_kernel(Path::new(path), &enough.to_string())?;
        }
    }
    if !Path::new(NETNS).exists() {
        files::write(&note(NETNS_NOTE), "")?;
    }
    load_modules();
    Ok(())
}

/// Called with the lock held, after the removal of the last testbed.
pub(crate) fn restore() {
    let note = |name: &str| Path::new(STATE).join(name);
    for (path, _, before) in SETTINGS {
        if let Ok(before) = fs::read_to_string(note(before)) {
            let _ = fs::write(path, before.trim());
        }
    }
    // `ip netns add` mounts it on first use.
    if note(NETNS_NOTE).exists() && fs::read_dir(NETNS).is_ok_and(|mut dir| dir.next().is_none()) {
        let _ = Cmd::words("umount").arg(NETNS).ok();
        let _ = fs::remove_dir(NETNS);
    }
}

/// Modules in kernels of distributions. Without the bridge filter, replies between pods of one node
/// bypass the address translation of Services.
fn load_modules() {
    let had_bridge_filter = Path::new(BRIDGE_FILTER).exists();
    for module in ["overlay", "br_netfilter", "nf_conntrack", "vxlan"] {
        // Fails harmlessly if it is built in or modprobe is missing.
        let _ = Cmd::words("modprobe -q").arg(module).ok();
    }
    if !had_bridge_filter {
        // Only for the nodes: bridges of the machine are not affected.
        for call in BRIDGE_FILTER_CALLS {
            let _ = fs::write(Path::new(BRIDGE_FILTER).join(call), "0");
        }
    }
}
