//! The testbeds that this process owns. They are removed when it ends: normally, by a panic, by
//! Ctrl-C or another signal. After `kill -9`, the next claim or `playground down` removes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::at_end::at_end;
use crate::error::{Error, Result};
use crate::failure;
use crate::removal;
use crate::state::{Lock, State};

static ACTIVE: Mutex<Vec<State>> = Mutex::new(Vec::new());

/// Whether this process is ending. Held for reading while resources are created.
static ENDING: RwLock<bool> = RwLock::new(false);

static PANICKED: AtomicBool = AtomicBool::new(false);

/// If set, testbeds are kept at the end of a test, for debugging.
const KEEP: &str = "TOMBOLO_KEEP";

/// Claims a testbed, which this process owns from then on.
pub(crate) fn claim(claim: impl FnOnce() -> Result<State>) -> Result<State> {
    static HOOKS: Once = Once::new();
    HOOKS.call_once(install_hooks);
    make(|| {
        let state = claim()?;
        active().push(state.clone());
        Ok(state)
    })
}

/// Creates a resource, unless the process is ending and could not remove it.
pub(crate) fn make<T>(create: impl FnOnce() -> Result<T>) -> Result<T> {
    let ending = ENDING.read().unwrap_or_else(PoisonError::into_inner);
    if *ending {
        return Err(Error::Refused("interrupted".into()));
    }
    create()
}

/// Ends the ownership: another process removes it.
pub(crate) fn forget(number: u8) {
    active().retain(|state| state.number != number);
}

/// Removes an owned testbed, if it is not removed yet.
pub(crate) fn remove(number: u8) -> Result<()> {
    let _alone = removing();
    let found = active().iter().find(|state| state.number == number).cloned();
    let removed = found.as_ref().map_or(Ok(()), take_away);
    forget(number);
    removed
}

fn remove_all() {
    *ENDING.write().unwrap_or_else(PoisonError::into_inner) = true;
    let _alone = removing();
    let all = active().clone();
    for state in &all {
        if let Err(error) = take_away(state) {
            eprintln!("{error}");
        }
        forget(state.number);
    }
}

fn take_away(state: &State) -> Result<()> {
    let _lock = Lock::take()?;
    if std::env::var_os(KEEP).is_none() {
        return removal::remove_locked(state);
    }
    State { owner: None, ..state.clone() }.save()?;
    eprintln!(
        "testbed {} ({}) is kept: kubeconfigs are {}/*/pki/admin.conf, nodes are the namespaces \
         {}*; `tombolo playground down --all` removes it",
        state.number,
        state.name,
        state.data.display(),
        state.layout().prefix(),
    );
    Ok(())
}

/// Held during a removal, so that the end of the process waits for it.
fn removing() -> MutexGuard<'static, ()> {
    static REMOVING: Mutex<()> = Mutex::new(());
    REMOVING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn active() -> MutexGuard<'static, Vec<State>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn install_hooks() {
    at_end(|failed| {
        if failed && !PANICKED.load(Ordering::Relaxed) {
            // A test that returned an error.
            keep_all();
        }
        remove_all();
    });

    if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        std::thread::spawn(move || {
            let mut came = signals.forever();
            if let Some(signal) = came.next() {
                std::thread::spawn(move || {
                    remove_all();
                    let _ = emulate_default_handler(signal);
                });
            }
            // A second signal ends the process immediately.
            if let Some(signal) = came.next() {
                let _ = emulate_default_handler(signal);
            }
        });
    }

    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        PANICKED.store(true, Ordering::Relaxed);
        keep_all();
    }));
}

fn keep_all() {
    let all = active().clone();
    for state in &all {
        failure::keep_and_say(state);
    }
}
