//! An mDNS responder by python-zeroconf, from Debian.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};
use tombolo_testbed::unpack_packages;

/// python-zeroconf with its Python, and the dependencies that not every Debian has.
const PACKAGES: [&str; 8] = [
    "libexpat1",
    "libffi8",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "python3-async-timeout",
    "python3-ifaddr",
    "python3-zeroconf",
    "python3.11-minimal",
];

const SERVICE: &str = "_liqo_auth._tcp.local.";

/// Stopped on drop.
pub struct Other {
    process: Child,
    heard: Arc<Mutex<BTreeMap<String, Value>>>,
}

impl Other {
    /// Listens at this address, in this network namespace.
    pub fn start(namespace: &str, address: &str) -> Self {
        let programs = unpack_packages("zeroconf", "1", &PACKAGES).expect("Debian has it");
        let (home, usr) = (programs.join("usr"), programs.display());
        let libraries = ["usr/lib", "lib"].map(|dir| format!("{usr}/{dir}/x86_64-linux-gnu"));
        // The namespace is entered first: the environment is for Python, not for `ip`.
        let mut process = Command::new("ip")
            .args(["netns", "exec", namespace, "env"])
            .arg(format!("LD_LIBRARY_PATH={}", libraries.join(":")))
            .arg(format!("PYTHONHOME={}", home.display()))
            .arg(format!("PYTHONPATH={}/lib/python3/dist-packages", home.display()))
            .arg("PYTHONDONTWRITEBYTECODE=1")
            .arg(home.join("bin/python3.11"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/other_mdns/other.py"))
            .args([SERVICE, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let heard = Arc::<Mutex<BTreeMap<String, Value>>>::default();
        let (lines, notes) = (process.stdout.take().expect("its output"), heard.clone());
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let (name, what) = serde_json::from_str(&line).expect("a line of it");
                notes.lock().expect("notes").insert(name, what);
            }
        });
        Self { process, heard }
    }

    /// The last announcement of an instance: null after a goodbye.
    pub fn heard(&self, instance: &str) -> Option<Value> {
        self.heard.lock().expect("notes").get(&format!("{instance}.{SERVICE}")).cloned()
    }

    /// Publishes an instance.
    pub fn publish(&mut self, name: &str, addresses: &[&str], properties: &Value) {
        let what = json!({
            "name": name, "port": 31443, "addresses": addresses, "properties": properties,
        });
        self.command(&json!({ "publish": what }));
    }

    /// Says goodbye for an instance.
    pub fn withdraw(&mut self, name: &str) {
        self.command(&json!({ "withdraw": name }));
    }

    fn command(&mut self, command: &Value) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{command}").expect("it reads");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
