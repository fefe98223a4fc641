//! Runs other programs to completion. Errors contain the command and its output.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Cmd {
    command: Command,
    stdin: Option<String>,
}

impl Cmd {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        // Tools such as nft and tc are in directories that only root has in PATH by default.
        command.env("PATH", search_path());
        Self { command, stdin: None }
    }

    /// A program that needs root: run through sudo by other users.
    pub fn as_root(program: &str) -> Self {
        if is_root() { Self::new(program) } else { Self::new("sudo").arg(program) }
    }

    /// A command line without quoting, split at white space.
    pub fn words(line: &str) -> Self {
        let mut words = line.split_whitespace();
        Self::new(words.next().unwrap_or_default()).args(words)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    pub fn inner(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Runs it to completion and returns its output.
    pub fn run(mut self) -> Result<String> {
        let output = self.output()?;
        self.judge(&output)
    }

    /// Like `run`, without blocking other tasks of this thread.
    pub async fn run_async(self) -> Result<String> {
        match tokio::task::spawn_blocking(move || self.run()).await {
            Ok(result) => result,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// For cleanup: whether it succeeded, without the error.
    pub fn ok(mut self) -> bool {
        self.output().is_ok_and(|output| output.status.success())
    }

    fn output(&mut self) -> Result<Output> {
        self.command
            .stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(|error| self.failed(&error))?;
        if let (Some(text), Some(mut pipe)) = (&self.stdin, child.stdin.take()) {
            // A program that exits before reading all input reports the reason on stderr.
            let _ = pipe.write_all(text.as_bytes());
        }
        child.wait_with_output().map_err(|error| self.failed(&error))
    }

    fn judge(&self, output: &Output) -> Result<String> {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(Error::Command {
            command: self.shown(),
            outcome: format!("failed with {}", output.status),
            output: format!("{stdout}{stderr}"),
        })
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::Command {
            command: self.shown(),
            outcome: format!("could not be run: {error}"),
            output: String::new(),
        }
    }

    fn shown(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Path of a program, from PATH and the directories of root's tools.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|candidate| candidate.is_file())
}

fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path);
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    std::env::join_paths(dirs.chain(more)).unwrap_or(path)
}
