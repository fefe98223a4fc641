//! Container images from files, without Docker: an OCI layout with one layer, in one tar that
//! `ctr images import` takes. The same inputs give the same bytes.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cache::{Cache, hex};
use crate::command::Cmd;
use crate::error::{Error, Result};
use crate::files;

#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    entrypoint: Vec<String>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
enum Entry {
    Dir { mode: u32 },
    File(PathBuf),
    Text(String),
    Link(String),
}

impl Image {
    /// An empty image. `name` includes a tag.
    pub fn empty(name: &str, entrypoint: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
            entries: BTreeMap::new(),
        }
    }

    /// An image with the directories and files that most programs expect.
    pub fn new(name: &str, entrypoint: &[&str]) -> Self {
        let mut image = Self::empty(name, entrypoint);
        for dir in ["dev", "etc", "proc", "sys"] {
            image.add(dir, Entry::Dir { mode: 0o755 });
        }
        image.add("tmp", Entry::Dir { mode: 0o1777 });
        image
            .text("/etc/passwd", "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
            .text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
            .text("/etc/nsswitch.conf", "hosts: files dns\n")
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn file(mut self, at: &str, source: impl Into<PathBuf>) -> Self {
        self.add(at, Entry::File(source.into()));
        self
    }

    pub fn text(mut self, at: &str, text: &str) -> Self {
        self.add(at, Entry::Text(text.to_owned()));
        self
    }

    pub fn link(mut self, at: &str, target: &str) -> Self {
        self.add(at, Entry::Link(target.to_owned()));
        self
    }

    pub fn dir(mut self, at: &str) -> Self {
        self.add(at, Entry::Dir { mode: 0o755 });
        self
    }

    /// Adds a dynamically linked program of this machine in `/usr/bin`, with its libraries.
    pub fn program(mut self, path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.add(&format!("/usr/bin/{name}"), Entry::File(path.to_owned()));
        let needs = Cmd::new("ldd").arg(path).run().unwrap_or_default();
        for line in needs.lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.add(library, Entry::File(library.into()));
            }
        }
        Ok(self)
    }

    /// Writes the tar.
    pub fn write(&self, to: &Path) -> Result<()> {
        let layer = self.layer()?;
        let layer_digest = sha256(&layer);
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
            "history": [{"created_by": "tombolo"}],
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("config.v1+json", config.as_bytes()),
            "layers": [descriptor("layer.v1.tar", &layer)],
        })
        .to_string();
        let mut listed = descriptor("manifest.v1+json", manifest.as_bytes());
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        listed["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag,
        });
        listed["platform"] = json!({"architecture": architecture(), "os": "linux"});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [listed],
        })
        .to_string();

        let mut tar = tar::Builder::new(Vec::new());
        let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha256(bytes));
        append(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        append(&mut tar, "index.json", 0o644, index.as_bytes());
        for bytes in [manifest.as_bytes(), config.as_bytes(), &layer] {
            append(&mut tar, &blob(bytes), 0o644, bytes);
        }
        files::write(to, finish(tar))
    }

    /// The tar in the cache, written again if the sources have changed.
    pub(crate) fn cached(&self, cache: &Cache) -> Result<PathBuf> {
        let name: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let dir = cache.path("images");
        files::make_dir(&dir)?;
        let path = dir.join(format!("{name}@{}.tar", self.fingerprint()?));
        if path.exists() {
            return Ok(path);
        }
        let _writing = cache.lock("images")?;
        if !path.exists() {
            for old in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                if old.file_name().to_string_lossy().starts_with(&format!("{name}@")) {
                    let _ = std::fs::remove_file(old.path());
                }
            }
            self.write(&path)?;
        }
        Ok(path)
    }

    fn add(&mut self, at: &str, entry: Entry) {
        let at = at.trim_matches('/');
        if let Some((parent, _)) = at.rsplit_once('/')
            && !self.entries.contains_key(parent)
        {
            self.add(parent, Entry::Dir { mode: 0o755 });
        }
        self.entries.insert(at.to_owned(), entry);
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (at, entry) in &self.entries {
            match entry {
                Entry::Dir { mode } => {
                    append_special(&mut tar, at, tar::EntryType::Directory, *mode, None);
                }
                Entry::Link(target) => {
                    append_special(&mut tar, at, tar::EntryType::Symlink, 0o777, Some(target));
                }
                Entry::Text(text) => append(&mut tar, at, 0o644, text.as_bytes()),
                Entry::File(source) => {
                    let bytes = std::fs::read(source).map_err(Error::file("read", source))?;
                    append(&mut tar, at, mode_of(source)?, &bytes);
                }
            }
        }
        Ok(finish(tar))
    }

    /// A digest that changes with the image, from the metadata of its files.
    fn fingerprint(&self) -> Result<String> {
        let mut digest = Sha256::new();
        digest.update(format!("{} {:?}", self.name, self.entrypoint));
        for (at, entry) in &self.entries {
            digest.update(format!("{at} {entry:?}"));
            if let Entry::File(source) = entry {
                let found = std::fs::metadata(source).map_err(Error::file("find", source))?;
                let (size, time, nano) = (found.len(), found.mtime(), found.mtime_nsec());
                digest.update(format!("{size} {time} {nano}"));
            }
        }
        Ok(hex(&digest.finalize()[..6]))
    }
}

fn mode_of(source: &Path) -> Result<u32> {
    let found = std::fs::metadata(source).map_err(Error::file("find", source))?;
    let executable = found.permissions().mode() & 0o111 != 0;
    Ok(if executable { 0o755 } else { 0o644 })
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

fn descriptor(media: &str, bytes: &[u8]) -> serde_json::Value {
    json!({
        "mediaType": format!("application/vnd.oci.image.{media}"),
        "digest": format!("sha256:{}", sha256(bytes)),
        "size": bytes.len(),
    })
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

type Tar = tar::Builder<Vec<u8>>;

fn append(tar: &mut Tar, at: &str, mode: u32, bytes: &[u8]) {
    let mut header = header(tar::EntryType::Regular, mode);
    header.set_size(bytes.len() as u64);
    in_memory(tar.append_data(&mut header, at, bytes));
}

fn append_special(tar: &mut Tar, at: &str, kind: tar::EntryType, mode: u32, link: Option<&str>) {
    let mut header = header(kind, mode);
    match link {
        Some(target) => in_memory(tar.append_link(&mut header, at, target)),
        None => in_memory(tar.append_data(&mut header, at, std::io::empty())),
    }
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

fn finish(tar: Tar) -> Vec<u8> {
    let mut bytes = in_memory(tar.into_inner());
    in_memory(bytes.flush());
    bytes
}

/// Writing to memory fails only for paths that are invalid in a tar.
fn in_memory<T>(result: std::io::Result<T>) -> T {
    result.expect("a tar in memory can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tombolo-image-{name}-{}", std::process::id()))
    }

    #[test]
    fn the_same_inputs_give_the_same_bytes() {
        let image = || {
            Image::new("localhost/x:1", &["/x"])
                .text("/a/b/c", "text")
                .link("/bin/sh", "/a/b/c")
                .dir("/www")
        };
        let (one, two) = (scratch("one"), scratch("two"));
        image().write(&one).unwrap();
        image().write(&two).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        for path in [one, two] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn parent_directories_precede_a_file() {
        let image = Image::new("localhost/x:1", &["/x"]).text("/usr/share/x/y", "text");
        let layer = image.layer().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let paths: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        let place = |wanted: &str| {
            let found = paths.iter().position(|path| path.trim_end_matches('/') == wanted);
            found.unwrap_or_else(|| panic!("{wanted} is not in {paths:?}"))
        };
        assert!(place("usr") < place("usr/share"));
        assert!(place("usr/share/x") < place("usr/share/x/y"));
    }

    #[test]
    fn a_changed_source_changes_the_fingerprint() {
        let source = scratch("source");
        std::fs::write(&source, "one").unwrap();
        let image = Image::new("localhost/x:1", &["/x"]).file("/x", &source);
        let before = image.fingerprint().unwrap();
        std::fs::write(&source, "other").unwrap();
        assert_ne!(before, image.fingerprint().unwrap());
        std::fs::remove_file(source).unwrap();
    }
}
