//! Knot DNS, from Debian, in the network of a node.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tombolo_testbed::unpack_packages;

const PORT: u16 = 5300;

/// Knot, and those of its dependencies that are not in every Debian.
const PACKAGES: [&str; 14] = [
    "knot",
    "libbpf1",
    "libbsd0",
    "libcap-ng0",
    "libdnssec9",
    "libedit2",
    "libfstrm0",
    "libknot13",
    "liblmdb0",
    "libmaxminddb0",
    "libprotobuf-c1",
    "liburcu8",
    "libxdp1",
    "libzscanner4",
];

/// A server for the zone example.com. It stops on drop.
#[derive(Debug)]
pub struct DnsServer {
    programs: PathBuf,
    namespace: String,
    address: Ipv4Addr,
    dir: PathBuf,
    process: Option<Child>,
}

impl DnsServer {
    /// A stopped server in this network namespace, at an existing address.
    pub fn new(namespace: String, address: Ipv4Addr) -> Self {
        let programs = unpack_packages("knot", "1", &PACKAGES).expect("Debian has it");
        let dir = std::env::temp_dir().join(format!("tombolo-knot-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self { programs, namespace, address, dir, process: None }
    }

    /// Its address and port.
    pub fn address(&self) -> SocketAddr {
        (self.address, PORT).into()
    }

    /// Serves these records from now on.
    pub fn serve(&mut self, ttl: u32, records: &str) {
        self.stop();
        let zone = format!(
            "$ORIGIN example.com.\n$TTL {ttl}\n@ SOA ns hostmaster 1 60 60 60 1\n@ NS ns\n\
             ns A {}\n{records}\n",
            self.address
        );
        fs::write(self.dir.join("zone"), zone).expect("a zone");
        self.start();
    }

    /// Removes its zone, so that it answers SERVFAIL.
    pub fn lose_the_zone(&mut self) {
        self.stop();
        fs::remove_file(self.dir.join("zone")).expect("it was there");
        self.start();
    }

    /// Stops it.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn start(&mut self) {
        let dir = self.dir.display();
        let config = format!(
            "server:\n    rundir: \"{dir}\"\n    listen: {}@{PORT}\n\
             database:\n    storage: \"{dir}\"\n\
             log:\n  - target: stderr\n    any: info\n\
             zone:\n  - domain: example.com\n    storage: \"{dir}\"\n    file: zone\n    \
             zonefile-load: whole\n    journal-content: none\n",
            self.address
        );
        let path = self.dir.join("knot.conf");
        fs::write(&path, config).expect("a configuration");
        let libraries = ["usr/lib", "lib"].map(|dir| {
            let dir = self.programs.join(dir).join("x86_64-linux-gnu");
            dir.display().to_string()
        });
        let log = fs::File::create(self.dir.join("log")).expect("a log");
        // `ip` enters the namespace first: the environment of Knot is not for `ip`.
        let process = Command::new("ip")
            .args(["netns", "exec", &self.namespace, "env"])
            .arg(format!("LD_LIBRARY_PATH={}", libraries.join(":")))
            .arg(self.programs.join("usr/sbin/knotd"))
            .arg("--config")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("it starts"));
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.join("log")).unwrap_or_default());
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
