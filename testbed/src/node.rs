//! A node: a set of namespaces with an init process, and the Kubernetes components in it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::active;
use crate::bed::Bed;
use crate::cgroup::Cgroup;
use crate::command::Cmd;
use crate::component::{Component, Place};
use crate::error::{Error, Result};
use crate::files;
use crate::layout::Layout;
use crate::process::{self, Identity};
use crate::spec::ClusterSpec;
use crate::wait::until;
use crate::wan;

const INIT: &str = include_str!("node-init.sh");

#[derive(Debug, Clone)]
pub struct Node {
    bed: Arc<Bed>,
    cluster: Arc<ClusterSpec>,
    cluster_number: usize,
    number: u8,
    name: String,
}

impl Node {
    pub(crate) fn new(
        bed: Arc<Bed>,
        cluster: Arc<ClusterSpec>,
        cluster_number: usize,
        number: u8,
    ) -> Self {
        let name = cluster.node_name(number);
        Self { bed, cluster, cluster_number, number, name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Ipv4Addr {
        self.bed.layout.address(self.cluster_number, self.number)
    }

    /// Name of its network namespace, for `ip netns exec`.
    pub fn network_namespace(&self) -> String {
        self.bed.layout.node(&self.name)
    }

    pub fn log(&self, component: Component) -> PathBuf {
        self.log_dir().join(format!("{}.log", component.name()))
    }

    /// The components of this node.
    pub fn components(&self) -> Vec<Component> {
        let belongs = |component: &Component| {
            if component.is_control_plane() {
                self.number == 1
            } else {
                !self.cluster.control_plane_only
            }
        };
        Component::ALL.into_iter().filter(belongs).collect()
    }

    /// The running components, with their process ids on the machine.
    pub fn running(&self) -> BTreeMap<Component, i32> {
        let Some(init) = self.init() else {
            return BTreeMap::new();
        };
        process::of_init(init)
            .into_iter()
            .filter(|&pid| Identity::of(pid).is_some())
            .filter_map(|pid| {
                Some((component_of(&process::arguments(pid), &process::short_name(pid))?, pid))
            })
            .collect()
    }

    pub fn is_up(&self) -> bool {
        self.init().is_some()
    }

    /// Memory of the Kubernetes components in bytes, without pods.
    pub fn memory(&self) -> u64 {
        let own = self.init().into_iter().flat_map(process::of_init);
        own.map(process::memory).sum()
    }

    /// Runs a command in all namespaces of the node and returns its output.
    pub async fn run(&self, command: &[&str]) -> Result<String> {
        self.inside()?.args(command).run_async().await
    }

    pub(crate) fn port(&self) -> String {
        Layout::port(self.cluster_number, self.number)
    }

    /// Creates network namespace, cgroups, disk and configuration, without starting anything.
    pub(crate) fn create(&self) -> Result<()> {
        let namespace = self.network_namespace();
        wan::connect(self.bed.layout, &namespace, &self.port(), self.address())?;
        let configuration = self.disk().join("etc/kubernetes");
        files::make_dir(&configuration)?;
        files::make_dir(&self.log_dir())?;
        let plugins = self.bed.provisions.packages.network_plugins().display().to_string();
        let place = self.place(&plugins);
        for component in self.components() {
            if let Some((name, text)) = component.configuration(&place) {
                files::write(&configuration.join(name), text)?;
            }
        }
        let resolver = format!("nameserver {}\n", self.cluster.dns_service());
        files::write(&configuration.join("resolv.conf"), resolver)
    }

    /// Starts the init process, which sets up the file system.
    pub(crate) fn boot(&self) -> Result<()> {
        active::make(|| self.start_init())
    }

    fn start_init(&self) -> Result<()> {
        let cgroup = self.bed.hierarchies.make(&self.bed.layout.node(&self.name))?;
        let script = self.disk().join("init.sh");
        files::write(&script, INIT)?;
        let log_path = self.log_dir().join("init.log");
        let log = std::fs::File::create(&log_path).map_err(Error::file("create", &log_path))?;

        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.network_namespace()))
            .args(["unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup"])
            .args(["--fork", "--kill-child", "--propagation", "private", "bash"])
            .arg(&script)
            .env("NAME", &self.name)
            .env("DISK", self.disk())
            .env("PKI", self.cluster_dir().join("pki"))
            .env("PAUSE", &self.bed.provisions.pause)
            .env("CGROUPS", self.bed.hierarchies.to_mount())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        cgroup.enter_root(&mut command)?;
        apart(&mut command);
        let mut child = command.spawn().map_err(Error::file("run", "nsenter"))?;

        let mut said = String::new();
        if let Some(pipe) = child.stdout.take() {
            let _ = BufReader::new(pipe).read_line(&mut said);
        }
        let outer = i32::try_from(child.id()).unwrap_or_default();
        let init = process::children(outer).into_iter().find_map(Identity::of);
        // Without a wait, it would stay a zombie until this process ends.
        std::thread::spawn(move || child.wait());
        let Some(init) = init.filter(|_| said.trim() == "ready") else {
            return Err(Error::Ended {
                component: "the init process",
                node: self.name.clone(),
                tail: tail(&log_path),
                log: log_path,
            });
        };
        cgroup.settle()?;
        let record = serde_json::to_string(&init).expect("an identity is plain data");
        files::write(&self.init_file(), record)
    }

    /// Starts a component, with its output in its log.
    pub(crate) fn start(&self, component: Component) -> Result<()> {
        let plugins = self.bed.provisions.packages.network_plugins().display().to_string();
        let arguments = component.arguments(&self.place(&plugins));
        let log = format!("/run/disk/log/{}.log", component.name());
        let command = self.inside()?.args(LAUNCH).arg(log).arg(component.name()).args(arguments);
        active::make(|| command.run()).map(drop)
    }

    /// Starts containerd and waits until it answers.
    pub(crate) async fn start_runtime(&self) -> Result<()> {
        self.start(Component::Containerd)?;
        let init = self.require_init()?;
        let socket = format!("/proc/{init}/root/run/containerd/containerd.sock");
        until("containerd", Duration::from_secs(30), async || {
            self.must_run(Component::Containerd)?;
            Ok(UnixStream::connect(&socket).ok())
        })
        .await
        .map(drop)
    }

    /// Imports an image from its tar.
    pub(crate) async fn import(&self, tar: &Path) -> Result<()> {
        let import = ["ctr", "--namespace", "k8s.io", "images", "import"];
        self.inside()?.args(import).arg(tar).run_async().await.map(drop)
    }

    /// Fails if the component has exited, with the tail of its log.
    pub(crate) fn must_run(&self, component: Component) -> Result<()> {
        // The list of processes is not atomic, and a process that is being started may have no name
        // for a moment: check several times.
        for _ in 0..50 {
            if self.running().contains_key(&component) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = self.log(component);
        Err(Error::Ended {
            component: component.name(),
            node: self.name.clone(),
            tail: tail(&log),
            log,
        })
    }

    /// A power cut: kills all processes of the node at once, and keeps its disk.
    pub(crate) fn cut_power(&self) -> Result<()> {
        let namespace = Path::new("/run/netns").join(self.network_namespace());
        let found: Vec<Identity> =
            process::in_netns(&namespace).into_iter().filter_map(Identity::of).collect();
        let init = self.init();
        if let Some(init) = init {
            process::signal(init, Signal::KILL);
        }
        if process::wait_gone(&found, Duration::from_secs(10)) {
            return Ok(());
        }
        Err(Error::Late {
            what: format!("the end of all processes of {}", self.name),
            limit: Duration::from_secs(10),
            hint: String::new(),
        })
    }

    /// Removes the network state from before a power cut.
    pub(crate) fn forget_network(&self) -> Result<()> {
        let namespace = self.network_namespace();
        let _ = Cmd::words(&format!("ip -n {namespace} link del cni0")).ok();
        Cmd::words(&format!("ip netns exec {namespace} nft flush ruleset")).run().map(drop)
    }

    /// Configures the pod network, as the daemon of a network plugin does with the PodCIDR of the
    /// node.
    pub(crate) fn set_up_pod_network(&self, part: &str) -> Result<()> {
        let list = format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "ipMasq": false,
    "hairpinMode": true, "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{part}"}}]]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#
        );
        files::write(&self.disk().join("etc/cni/net.d/10-pods.conflist"), list)?;
        let pods = self.cluster.pod_cidr;
        let rules = format!(
            "table ip testbed-masquerade
delete table ip testbed-masquerade
table ip testbed-masquerade {{
  chain postrouting {{
    type nat hook postrouting priority srcnat + 10;
    ip saddr {pods} ip daddr != {pods} masquerade;
  }}
}}
"
        );
        Cmd::words(&format!("ip netns exec {} nft -f -", self.network_namespace()))
            .stdin(rules)
            .run()
            .map(drop)
    }

    pub(crate) fn add_route(&self, part: &str, via: Ipv4Addr) -> Result<()> {
        let namespace = self.network_namespace();
        Cmd::words(&format!("ip -n {namespace} route replace {part} via {via}")).run().map(drop)
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.disk().join("log")
    }

    /// A command in the namespaces and cgroups of the node.
    fn inside(&self) -> Result<Cmd> {
        let init = self.require_init()?;
        let mut command = Cmd::new("nsenter")
            .arg(format!("--target={init}"))
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"])
            .env("PATH", self.bed.path());
        self.cgroup().enter(command.inner())?;
        apart(command.inner());
        Ok(command)
    }

    fn require_init(&self) -> Result<i32> {
        self.init().ok_or_else(|| Error::Refused(format!("node {} is not running", self.name)))
    }

    fn init(&self) -> Option<i32> {
        let record = std::fs::read_to_string(self.init_file()).ok()?;
        let init: Identity = serde_json::from_str(&record).ok()?;
        init.is_alive().then_some(init.pid)
    }

    fn init_file(&self) -> PathBuf {
        let dir = self.bed.layout.state_dir();
        dir.join(format!("{}.init", self.name))
    }

    fn cgroup(&self) -> Cgroup {
        self.bed.hierarchies.cgroup(&self.bed.layout.node(&self.name))
    }

    fn cluster_dir(&self) -> PathBuf {
        self.bed.cluster_dir(&self.cluster.name)
    }

    fn disk(&self) -> PathBuf {
        self.cluster_dir().join(&self.name)
    }

    fn place<'a>(&'a self, network_plugins: &'a str) -> Place<'a> {
        Place { cluster: &self.cluster, node: &self.name, address: self.address(), network_plugins }
    }
}

/// Starts a program in the background, with a log. The shell exits immediately, so that the init
/// process of the node adopts the program.
const LAUNCH: [&str; 4] =
    ["sh", "-c", r#"log=$1; shift; exec "$@" >>"$log" 2>&1 </dev/null &"#, "sh"];

/// The component of a process, from its command line, from that of the shell that launches it or,
/// while there is none, from the truncated short name.
fn component_of(arguments: &[String], short_name: &str) -> Option<Component> {
    let find = |name: &str| Component::ALL.into_iter().find(|component| component.name() == name);
    match arguments.first().map(String::as_str) {
        None | Some("") => {
            let cut = |component: &Component| &component.name()[..component.name().len().min(15)];
            Component::ALL.into_iter().find(|component| cut(component) == short_name)
        }
        Some(_) if arguments.starts_with(&LAUNCH.map(str::to_owned)) => {
            find(arguments.get(LAUNCH.len() + 1)?)
        }
        Some(program) => find(Path::new(program).file_name()?.to_str()?),
    }
}

/// Starts it in its own session, so that Ctrl-C reaches only this process.
fn apart(command: &mut Command) {
    let leave = || rustix::process::setsid().map(drop).map_err(Into::into);
    // SAFETY: between fork and exec only setsid(2) is called.
    unsafe { command.pre_exec(leave) };
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(15);
    lines[from..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_recognized_during_launch() {
        let line = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let launching = [&LAUNCH[..], &["/run/disk/log/etcd.log", "etcd", "--name=x"]].concat();
        assert_eq!(component_of(&line(&launching), "sh"), Some(Component::Etcd));
        assert_eq!(component_of(&line(&["etcd", "--name=x"]), "etcd"), Some(Component::Etcd));
        assert_eq!(component_of(&line(&["/x/kubelet"]), "kubelet"), Some(Component::Kubelet));
        assert_eq!(component_of(&line(&["sh", "-c", "etcd"]), "sh"), None);
        assert_eq!(component_of(&line(&["containerd-shim-runc-v2"]), "containerd-shim"), None);
    }

    #[test]
    fn a_component_is_recognized_before_it_has_a_command_line() {
        for nothing in [vec![], vec![String::new()]] {
            let manager = component_of(&nothing, "kube-controller");
            assert_eq!(manager, Some(Component::ControllerManager));
            assert_eq!(component_of(&nothing, "containerd"), Some(Component::Containerd));
            assert_eq!(component_of(&nothing, "containerd-shim"), None);
        }
    }
}
