//! nginx, from Debian, in a network namespace of the testbed.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tombolo_testbed::{eventually, unpack_packages};

/// A proxy. It stops on drop.
#[derive(Debug)]
pub struct Nginx {
    programs: PathBuf,
    namespace: String,
    dir: PathBuf,
    process: Option<Child>,
}

impl Nginx {
    /// A stopped proxy.
    pub fn new(namespace: String) -> Self {
        let packages = ["nginx", "libnginx-mod-stream"];
        let programs = unpack_packages("nginx", "1", &packages).expect("Debian has it");
        let name = format!("tombolo-nginx-{namespace}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        Self { programs, namespace, dir, process: None }
    }

    /// Writes a file for the configuration.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.dir.join(name), text).expect("a file");
    }

    /// Starts it with this configuration. Requests are logged to the file `access`.
    pub fn run(&mut self, configuration: &str) {
        self.stop();
        // One process, so that a kill leaves none behind.
        let modules = self.programs.join("usr/lib/nginx/modules");
        let all = format!(
            "daemon off;\nmaster_process off;\npid pid;\n\
             load_module {}/ngx_stream_module.so;\nevents {{}}\n{configuration}",
            modules.display()
        );
        self.file("nginx.conf", all);
        let process = Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .arg(self.programs.join("usr/sbin/nginx"))
            .arg("-p")
            .arg(&self.dir)
            .args(["-c", "nginx.conf", "-e", "errors"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.process = Some(process.expect("it starts"));
    }

    /// Waits until all parts are in the log since the last call, and returns the log.
    pub async fn logs(&self, parts: &[&str]) -> String {
        let path = self.dir.join("access");
        let log = async || fs::read_to_string(&path).unwrap_or_default();
        let has_all = |log: &String| parts.iter().all(|part| log.contains(part));
        let said = eventually("nginx has logged it", log, has_all).await;
        // nginx appends, so truncated lines do not come back.
        if let Ok(file) = fs::OpenOptions::new().write(true).open(&path) {
            file.set_len(0).expect("it can be emptied");
        }
        eprint!("{said}");
        said
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            for name in ["nginx.conf", "access", "errors"] {
                let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                eprintln!("nginx in {}, {name}:\n{text}", self.namespace);
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
