//! The testbeds that this process answers for. However it ends (normally, by a panic, by Ctrl-C or
//! another signal), they are removed; after `kill -9` the next claim or `playground down` does it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::at_end::at_end;
use crate::error::{Error, Result};
use crate::failure;
use crate::removal;
use crate::state::State;

static ACTIVE: Mutex<Vec<State>> = Mutex::new(Vec::new());

/// Whether this process is ending; whoever makes something holds it for reading.
static ENDING: RwLock<bool> = RwLock::new(false);

static PANICKED: AtomicBool = AtomicBool::new(false);

/// Set: testbeds stay as they are when a test ends, to look into them.
const KEEP: &str = "TOMBOLO_KEEP";

pub(crate) fn add(state: &State) {
    static HOOKS: Once = Once::new();
    HOOKS.call_once(install_hooks);
    active().push(state.clone());
}

/// Makes something, unless the process is ending: then nothing would remove it.
pub(crate) fn make<T>(something: impl FnOnce() -> Result<T>) -> Result<T> {
    let ending = ENDING.read().unwrap_or_else(PoisonError::into_inner);
    if *ending {
        return Err(Error::Refused("interrupted".into()));
    }
    something()
}

/// From now on somebody else removes it.
pub(crate) fn forget(number: u8) {
    active().retain(|state| state.number != number);
}

/// Removes one of ours; nothing to do when it is gone already.
pub(crate) fn remove(number: u8) {
    let found = {
        let mut active = active();
        let at = active.iter().position(|state| state.number == number);
        at.map(|at| active.swap_remove(at))
    };
    if let Some(state) = found {
        take_away(&state);
    }
}

fn remove_all() {
    *ENDING.write().unwrap_or_else(PoisonError::into_inner) = true;
    let all = std::mem::take(&mut *active());
    for state in &all {
        take_away(state);
    }
}

fn take_away(state: &State) {
    if std::env::var_os(KEEP).is_some() {
        let data = state.data.display();
        eprintln!(
            "testbed {} ({}) is kept: kubeconfigs are {data}/*/pki/admin.conf, nodes are the \
             namespaces {}*; `tombolo playground down --all` removes it",
            state.number,
            state.name,
            state.layout().prefix(),
        );
        return;
    }
    if let Err(error) = removal::remove(state) {
        eprintln!("{error}");
    }
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
            if let Some(signal) = signals.forever().next() {
                remove_all();
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
