//! File operations with errors that name the path.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

pub(crate) fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create directory", path))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// Writes atomically: to a temporary file that is then renamed.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    write_with_mode(path, text.as_ref(), 0o644)
}

pub(crate) fn write_secret(path: &Path, text: &str) -> Result<()> {
    write_with_mode(path, text.as_bytes(), 0o600)
}

/// Writes to a file of the kernel, which can't be replaced by renaming.
pub(crate) fn write_kernel(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}

pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    options
        .open(&beside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&beside, path))
        .map_err(Error::file("write", path))
}
