//! The playground as a user runs it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tombolo_testbed::{Component, Machine, Progress, Testbed};

/// Not the default name, because the user of this machine may run a playground.
const NAME: &str = "test-playground";

/// One playground at a time, and none from an earlier failure.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    tombolo(&["down"]);
    turn
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.args(["playground", "--name", NAME]).args(arguments);
    command
}

fn tombolo(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program can be run")
}

/// The output of a successful run.
fn works(arguments: &[&str]) -> String {
    let output = tombolo(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The error of a refused run.
fn refuses(arguments: &[&str]) -> String {
    let output = tombolo(arguments);
    assert!(!output.status.success(), "{arguments:?} should be refused");
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// The output of a successful shell command.
fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kubectl(cluster: &str, arguments: &[&str]) -> String {
    works(&[&["shell", cluster, "--", "kubectl"], arguments].concat())
}

fn assert_unchanged(before: &Machine) {
    let differences = before.differences(&Machine::look());
    assert!(differences.is_empty(), "{differences:#?}");
}

fn testbed() -> Testbed {
    Testbed::find(NAME, Progress::silent()).unwrap().expect("it runs")
}

/// The process id of a Kubernetes component on this machine.
fn pid_of(cluster: &str, component: Component) -> i32 {
    testbed().cluster(cluster).node(1).running()[&component]
}

fn kill(pid: i32, signal: &str) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn up_status_logs_repair_and_down_work() {
    let _turn = alone();
    let before = Machine::look();

    let summary = works(&["up", "--bare", "--nodes", "1"]);
    for line in ["rome-1", "milan-1", "Ready", "7 of 7", "playground shell rome"] {
        assert!(summary.contains(line), "{line:?} is not in {summary}");
    }

    for cluster in ["rome", "milan"] {
        let nodes = kubectl(cluster, &["get", "nodes", "--no-headers"]);
        assert_eq!(nodes.lines().count(), 1, "{nodes}");
        assert!(
            nodes.starts_with(&format!("{cluster}-1 ")) && nodes.contains(" Ready "),
            "{nodes}"
        );
        let pods = kubectl(cluster, &["get", "pods", "-A", "--no-headers"]);
        assert!(pods.contains("coredns") && pods.contains("1/1"), "{pods}");
    }

    let path = works(&["kubeconfig", "milan"]);
    assert!(std::path::Path::new(path.trim()).is_file(), "{path}");
    assert!(works(&["status"]).contains("milan-1"));
    assert!(works(&["logs"]).contains("kube-scheduler"));
    assert!(works(&["logs", "rome-1", "kubelet"]).contains("Starting kubelet"));

    let uid = ["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"];
    let (uid_before, api_server) = (kubectl("rome", &uid), pid_of("rome", Component::ApiServer));
    works(&["up", "--bare", "--nodes", "1"]);
    assert_eq!(kubectl("rome", &uid), uid_before, "a second `up` recreates nothing");
    assert_eq!(pid_of("rome", Component::ApiServer), api_server, "and restarts nothing");

    kill(pid_of("rome", Component::Scheduler), "-KILL");
    // Forget the guard, which would boot the node again.
    std::mem::forget(testbed().cluster("milan").kill_node(1).unwrap());
    let status = works(&["status"]);
    assert!(status.contains("without kube-scheduler"), "{status}");
    assert!(status.contains("down"), "{status}");
    let repaired = works(&["up", "--bare", "--nodes", "1"]);
    assert_eq!(repaired.matches(" Ready ").count(), 2, "{repaired}");
    assert_eq!(kubectl("rome", &uid), uid_before);

    assert_eq!(
        refuses(&["kubeconfig", "turin"]),
        "tombolo: there is no cluster \"turin\"; there are: rome, milan"
    );
    assert!(refuses(&["logs", "rome-2", "kubelet"]).contains("there are: rome-1, milan-1"));
    assert!(refuses(&["logs", "rome-1", "kubectl"]).contains("it has: etcd, "));
    assert!(
        refuses(&["up", "--bare", "--clusters", "3"]).contains("`tombolo playground down` first")
    );

    assert!(works(&["down"]).contains(NAME));
    assert_unchanged(&before);
    assert_eq!(works(&["down"]), "No clusters to remove.\n");
    assert!(refuses(&["status"]).contains("no playground is running"));
}

/// With the static program: only that can be installed in clusters.
#[test]
fn the_commands_printed_by_up_work() {
    let _turn = alone();
    let before = Machine::look();
    let program = std::env::var("TOMBOLO_STATIC")
        .expect("TOMBOLO_STATIC names the static program: `make test-clusters`");
    let printed = shell(&format!("{program} playground --name {NAME} up --nodes 1"));
    let commands: Vec<&str> =
        printed.lines().map(str::trim).filter(|line| line.contains(" -- ")).collect();
    let [status, clusters, pods, curl] = commands[..] else {
        panic!("four commands to try: {printed}");
    };

    let said = shell(curl);
    assert!(said.contains(", request from "), "{said}");
    let said = shell(pods);
    for node in [" rome-1 ", " liqo-milan "] {
        assert_eq!(said.matches(node).count(), 2, "{said}");
    }
    let said = shell(clusters);
    assert!(said.contains("foreigncluster.discovery.liqo.io/milan"), "{said}");
    assert!(said.contains("node/liqo-milan"), "{said}");
    let said = shell(status);
    for part in ["Cluster rome", "BORROWED FROM", "liqo-milan", "2 pods", "shop in milan"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }

    let rome: Value = serde_json::from_str(&shell(&format!("{status} -o json"))).unwrap();
    let milan = &rome["peers"][0];
    for part in ["outgoing", "network", "apiServer"] {
        assert_eq!(milan[part]["status"], "True", "{part}: {milan:#}");
    }
    assert_eq!(milan["borrowed"]["node"], "liqo-milan");
    assert_eq!(milan["borrowed"]["ready"], true);
    assert_eq!(milan["borrowed"]["pods"], 2);
    let status = status.replace("shell rome", "shell milan");
    let milan: Value = serde_json::from_str(&shell(&format!("{status} -o json"))).unwrap();
    let rome = &milan["peers"][0];
    assert_eq!(rome["incoming"]["status"], "True", "{rome:#}");
    assert_eq!(rome["lent"]["pods"], 2, "{rome:#}");

    // The Deployment is in rome; milan has some of its pods.
    let (_, address) = curl.split_once(" -- curl -s ").expect("curl is asked to be quiet");
    for cluster in ["rome", "milan"] {
        let pods = kubectl(cluster, &["-n", "shop", "get", "pods", "-o", "name"]);
        let pod = pods.lines().next().expect("there are pods");
        let often = format!("for i in $(seq 40); do curl -sS -f -m 5 {address} || exit 1; done");
        let said = kubectl(cluster, &["-n", "shop", "exec", pod, "--", "sh", "-c", &often]);
        for node in ["on rome-1,", "on milan-1,"] {
            assert!(said.contains(node), "nobody {node} answers in {cluster}: {said}");
        }
    }

    assert!(works(&["down"]).contains(NAME));
    assert_unchanged(&before);
}

/// Starts `up` and interrupts it when its nodes exist and its API servers are about to answer.
fn interrupted_by(signal: &str) {
    let mut up = command(&["up", "--bare"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let booted = || {
        let found = Testbed::find(NAME, Progress::silent()).unwrap();
        found.is_some_and(|testbed| testbed.clusters().iter().all(|c| c.node(1).is_up()))
    };
    while !booted() {
        assert!(Instant::now() < deadline, "no node after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(i32::try_from(up.id()).unwrap(), signal);
    assert!(!up.wait().unwrap().success());
}

#[test]
fn up_interrupted_at_the_terminal_leaves_nothing() {
    let _turn = alone();
    let before = Machine::look();
    interrupted_by("-INT");
    assert_unchanged(&before);
}

#[test]
fn down_after_kill_9_leaves_nothing() {
    let _turn = alone();
    let before = Machine::look();
    interrupted_by("-KILL");
    assert!(!before.differences(&Machine::look()).is_empty(), "nothing was interrupted");
    assert!(works(&["down"]).contains(NAME));
    assert_unchanged(&before);
}

#[test]
fn a_user_other_than_root_is_advised_to_use_sudo() {
    let _turn = alone();
    let nobody = 65534;
    // A directory where any user may run it.
    let program = std::env::temp_dir().join(format!("tombolo-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_tombolo"), &program).unwrap();
    let output =
        Command::new(&program).args(["playground", "up"]).uid(nobody).gid(nobody).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert!(!output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stderr).trim(),
        "tombolo: clusters need root (network namespaces, mounts, cgroups): use sudo"
    );
}
