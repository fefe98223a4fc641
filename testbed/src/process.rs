//! Processes of the machine, from `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process id with its start time, because process ids are reused.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Identity {
    pub pid: i32,
    started: String,
}

impl Identity {
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain any character; the state follows it.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.to_owned();
        (state != "Z").then_some(Self { pid, started })
    }

    pub fn of_this_process() -> Option<Self> {
        Self::of(i32::try_from(std::process::id()).ok()?)
    }

    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// The direct children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The command line of a process.
pub(crate) fn arguments(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The short name (`comm`) of a process. It is available before the command line, which requires
/// the program to be read from disk.
pub(crate) fn short_name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// The name of a process's program.
pub(crate) fn program(pid: i32) -> Option<String> {
    let arguments = arguments(pid);
    Some(Path::new(arguments.first()?).file_name()?.to_string_lossy().into_owned())
}

/// All processes in the network namespace at `path`.
pub(crate) fn in_netns(path: &Path) -> Vec<i32> {
    with_namespace("net", path)
}

/// All processes in the PID namespace of `init`.
pub(crate) fn of_init(init: i32) -> Vec<i32> {
    with_namespace("pid", Path::new(&format!("/proc/{init}/ns/pid")))
}

fn with_namespace(kind: &str, path: &Path) -> Vec<i32> {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let Some(wanted) = identity(path) else {
        return Vec::new();
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| identity(Path::new(&format!("/proc/{pid}/ns/{kind}"))) == Some(wanted))
        .collect()
}

/// Waits until none of them is alive; false on timeout.
pub(crate) fn wait_gone(processes: &[Identity], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while processes.iter().any(Identity::is_alive) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Proportional set size (PSS) in bytes.
pub(crate) fn memory(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find(|line| line.starts_with("Pss:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .map_or(0, |kilobytes: u64| kilobytes * 1024)
}
