//! Kernel parameters under `/proc/sys`; those of the network belong to the network namespace of
//! whoever opens the file.

use std::{fs, io, path::Path};

use super::{Error, Result, netns::Netns};

/// Sets a parameter; says whether it was another before.
pub fn set(netns: &Netns, key: &str, value: &str) -> Result<bool> {
    netns.run(|| write(key, value))?.map_err(|source| Error::Sysctl {
        key: key.into(),
        value: value.into(),
        source,
    })
}

fn write(key: &str, value: &str) -> io::Result<bool> {
    let path = Path::new("/proc/sys").join(key);
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(false);
    }
    fs::write(path, value).map(|()| true)
}
