//! The images of every cluster, and additional ones of tests and the playground.

use std::path::{Path, PathBuf};

use crate::binaries::{Binaries, COREDNS};
use crate::cache::{Cache, Entry};
use crate::command::{Cmd, find_program};
use crate::error::{Error, Result};
use crate::files;
use crate::image::Image;

pub(crate) const PAUSE_NAME: &str = "registry.k8s.io/pause:3.10";
const PAUSE_SOURCE: &str = include_str!("pause.c");

/// The image `localhost/toolbox:1`.
pub const TOOLBOX: &str = "localhost/toolbox:1";

const TOOLBOX_PROGRAMS: [&str; 9] =
    ["bash", "conntrack", "curl", "ip", "iperf3", "nft", "ping", "socat", "tcpdump"];

/// Applets that would hide a real program, or crash in a static build (wget, on DNS lookups).
const EXCLUDED_APPLETS: [&str; 10] =
    ["arping", "ash", "bash", "busybox", "ip", "nc", "ping", "ping6", "sh", "wget"];

/// A shell with curl, iperf3, ip, nft, ping, tcpdump, socat, conntrack and busybox's applets.
/// Its `busybox httpd -f -p 8080 -h /www` is a web server.
pub fn toolbox() -> Result<Image> {
    let busybox = program("busybox")?;
    let mut image =
        Image::new(TOOLBOX, &["/usr/bin/bash"]).file("/bin/busybox", &busybox).dir("/www");
    let applets = Cmd::new(&busybox).arg("--list").run()?;
    let wanted =
        |applet: &&str| !EXCLUDED_APPLETS.contains(applet) && !TOOLBOX_PROGRAMS.contains(applet);
    for applet in applets.lines().filter(wanted) {
        image = image.link(&format!("/bin/{applet}"), "/bin/busybox");
    }
    for name in TOOLBOX_PROGRAMS {
        image = image.program(&program(name)?)?;
    }
    Ok(image.link("/bin/sh", "/usr/bin/bash"))
}

/// The image of Tombolo: one static program, like the image of the Dockerfile.
pub fn tombolo(program: &Path) -> Image {
    Image::empty("localhost/tombolo:dev", &["/tombolo"]).file("/tombolo", program)
}

/// The pause program of pods, and the init process of nodes.
pub(crate) fn pause_program(cache: &Cache) -> Result<PathBuf> {
    let entry = Entry::new(cache, "bin", "pause", "1", &[PAUSE_SOURCE]);
    let program = entry.dir().join("pause");
    if !entry.is_complete() {
        let _building = cache.lock("pause")?;
        files::make_dir(entry.dir())?;
        Cmd::words("cc -static -Os -Wall -Werror -x c - -o")
            .arg(&program)
            .stdin(PAUSE_SOURCE)
            .run()?;
        entry.complete(cache)?;
    }
    Ok(program)
}

pub(crate) fn pause(cache: &Cache) -> Result<Image> {
    Ok(Image::new(PAUSE_NAME, &["/pause"]).file("/pause", pause_program(cache)?))
}

pub(crate) fn coredns(binaries: &Binaries) -> Image {
    Image::new(&coredns_name(), &["/coredns"]).file("/coredns", binaries.program("coredns"))
}

pub(crate) fn coredns_name() -> String {
    format!("registry.k8s.io/coredns/coredns:{COREDNS}")
}

fn program(name: &str) -> Result<PathBuf> {
    find_program(name).ok_or_else(|| Error::Missing {
        what: name.into(),
        hint: "install it with your package manager".into(),
    })
}
