//! A snapshot of everything that a testbed could leave behind on the machine, for comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The state of the machine at one moment, one line per fact.
#[derive(Debug, Clone)]
pub struct Machine {
    facts: BTreeSet<String>,
}

/// Counters and similar settings that change by themselves.
const VOLATILE: [&str; 20] = [
    "/proc/sys/fs/aio-nr",
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/inode-state",
    "/proc/sys/fs/quota",
    "/proc/sys/kernel/cad_pid",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/perf_cpu_time_max_percent",
    "/proc/sys/kernel/perf_event_max_sample_rate",
    "/proc/sys/kernel/printk_ratelimit",
    "/proc/sys/kernel/pty/nr",
    "/proc/sys/kernel/random",
    "/proc/sys/kernel/sched_domain",
    "/proc/sys/kernel/seccomp",
    "/proc/sys/net/ipv4/route/flush",
    "/proc/sys/net/ipv6/route/flush",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/vm/compact_memory",
    "/proc/sys/vm/stat_refresh",
];

impl Machine {
    pub fn look() -> Self {
        let mut facts = BTreeSet::new();
        list(&mut facts, "network namespace", "/run/netns");
        list(&mut facts, "link", "/sys/class/net");
        list(&mut facts, "testbed state", crate::layout::STATE);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // Field 5 is the mount point, which may have several mounts.
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        points.for_each(|point| *count.entry(point).or_default() += 1);
        facts.extend(count.into_iter().map(|(point, times)| format!("mount {point} × {times}")));
        cgroups(&mut facts, Path::new("/sys/fs/cgroup"));
        sysctls(&mut facts, Path::new("/proc/sys"));
        facts.extend(programs().into_iter().map(|name| format!("process {name}")));
        Self { facts }
    }

    /// The differences in `later`, one line each.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let more = later.facts.difference(&self.facts).map(|fact| format!("new: {fact}"));
        let less = self.facts.difference(&later.facts).map(|fact| format!("gone: {fact}"));
        more.chain(less).collect()
    }
}

fn list(facts: &mut BTreeSet<String>, what: &str, dir: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        facts.insert(format!("{what} {}", entry.file_name().display()));
    }
}

fn cgroups(facts: &mut BTreeSet<String>, dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if is_of_a_testbed(&entry.file_name().to_string_lossy()) {
                facts.insert(format!("cgroup {}", path.display()));
            }
            cgroups(facts, &path);
        }
    }
}

/// Other cgroups belong to services of the machine.
fn is_of_a_testbed(name: &str) -> bool {
    let number = name.strip_prefix("tb").and_then(|rest| rest.split_once('-'));
    name == "kubepods" || number.is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

fn sysctls(facts: &mut BTreeSet<String>, dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if VOLATILE.iter().any(|prefix| path.starts_with(prefix)) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sysctls(facts, &path);
        } else if let Ok(value) = fs::read_to_string(&path) {
            let name = path.display();
            facts.insert(format!("sysctl {name} = {}", value.trim()));
        }
    }
}

/// The running Kubernetes components of all nodes.
fn programs() -> Vec<String> {
    let ours =
        |name: &String| name.starts_with("containerd") || name == "pause" || is_component(name);
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, crate::process::program(pid)?)))
        .filter(|(_, name)| ours(name))
        .map(|(pid, name)| format!("{name} {pid}"))
        .collect()
}

fn is_component(name: &str) -> bool {
    crate::Component::ALL.iter().any(|component| component.name() == name)
}
