//! Network namespaces: named ones, kept by a bind mount as `ip netns` does, and work inside them.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::{Error, Result};

/// Where named network namespaces are.
pub const DIRECTORY: &str = "/run/netns";

/// A network namespace. It lives at least as long as this.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
}

impl Netns {
    /// The one that this thread is in.
    pub fn current() -> Result<Self> {
        Self::open_file(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one with this path, if there is one.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        if !is_namespace(path) {
            return Ok(None);
        }
        Self::open_file(path).map(Some)
    }

    /// The one with this path; if there is none, a new one.
    pub fn open_or_create(path: &Path) -> Result<Self> {
        if let Some(netns) = Self::open(path)? {
            return Ok(netns);
        }
        create(path).map_err(|source| error("make", path, source))?;
        Self::open_file(path)
    }

    /// Takes the name away; the namespace goes with its last user.
    pub fn remove(path: &Path) -> Result<()> {
        unmount(path);
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(error("remove", path, source))
            }
            _ => Ok(()),
        }
    }

    /// Does something inside, on a thread of its own. Sockets that are opened there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let runtime = tokio::runtime::Handle::try_current().ok();
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let _context = runtime.as_ref().map(tokio::runtime::Handle::enter);
                rustix::thread::move_into_link_name_space(
                    self.file.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )
                .map(|()| work())
            });
            match inside.join() {
                Ok(result) => result.map_err(|source| error("enter", &self.name, source.into())),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn open_file(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| error("open", path, source))?;
        Ok(Self { name: path.display().to_string(), file: Arc::new(file) })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn error(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Error {
    Error::Netns { action, name: path.as_ref().display().to_string(), source }
}

fn is_namespace(path: &Path) -> bool {
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|it| u64::try_from(it.f_type) == Ok(NSFS_MAGIC))
}

fn create(path: &Path) -> io::Result<()> {
    let directory = path.parent().map_or_else(|| PathBuf::from(DIRECTORY), Path::to_owned);
    fs::create_dir_all(&directory)?;
    File::create(path)?;
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: only this short-lived thread gets another network namespace; it shares no
            // file descriptor table or filesystem state that others rely on being unshared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            mount(Path::new("/proc/thread-self/ns/net"), path)
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn mount(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    // SAFETY: both are valid C strings; a bind mount takes neither type nor data.
    let result = unsafe {
        libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fails where nothing is mounted, which is as good.
fn unmount(path: &Path) {
    if let Ok(path) = c_path(path) {
        // SAFETY: a valid C string.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
