//! A hook for the normal end of the process, with its exit status.

use std::sync::OnceLock;

type Last = fn(failed: bool);

static LAST: OnceLock<Last> = OnceLock::new();

/// Calls `last` at the end of the process. Later calls have no effect.
pub(crate) fn at_end(last: Last) {
    if LAST.set(last).is_ok() {
        register();
    }
}

fn run(failed: bool) {
    if let Some(last) = LAST.get() {
        let _ = std::panic::catch_unwind(|| last(failed));
    }
}

#[cfg(target_env = "gnu")]
fn register() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn ended(status: c_int, _: *mut c_void) {
        run(status != 0);
    }
    // SAFETY: the function does not unwind, and ignores its argument.
    unsafe { on_exit(ended, std::ptr::null_mut()) };
}

/// Other C libraries do not pass the exit status.
#[cfg(not(target_env = "gnu"))]
fn register() {
    extern "C" fn ended() {
        run(false);
    }
    // SAFETY: the function does not unwind.
    unsafe { libc::atexit(ended) };
}
