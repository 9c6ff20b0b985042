//! Ctrl-C: the first asks for an orderly end, the second ends at once.
//!
//! The signals are blocked in all threads and taken by one thread that waits for them, so that
//! no code runs in a signal handler and no system call is cut short.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::{progress, sys};

/// Interrupted by a signal.
pub const INTERRUPTED: u8 = 130;
/// How long a command may take to remove what it left half made.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// How long calls may take to come back after they were cancelled.
const CANCELLED: Duration = Duration::from_secs(2);

static REQUESTED: AtomicBool = AtomicBool::new(false);
static SERVES: AtomicBool = AtomicBool::new(false);
static CANCEL: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static WAITING: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// What a command does when it is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Nothing is left to do: calls under way are cancelled.
    AtOnce,
    /// It removes temporary files first.
    CleanUp,
    /// It flushes, however long that takes.
    Serve,
}

/// Takes over the signals. To be called before any thread is started.
pub fn install(style: Style) {
    sys::ignore_file_size_signal();
    SERVES.store(style == Style::Serve, Ordering::Relaxed);
    if sys::block_ending_signals().is_err() {
        return; // They end the program at once then.
    }
    let started = std::thread::Builder::new().name("signals".into()).spawn(move || watch(style));
    if let Err(error) = started {
        progress::message(&format!("dafs: cannot watch for signals: {error}"));
    }
}

fn watch(style: Style) {
    sys::wait_for_ending_signal();
    REQUESTED.store(true, Ordering::Release);
    drop(WAITING.0.lock().unwrap_or_else(PoisonError::into_inner));
    WAITING.1.notify_all();
    if style != Style::Serve {
        std::thread::spawn(move || {
            if style == Style::CleanUp {
                std::thread::sleep(CLEAN_UP);
            }
            CANCEL.store(true, Ordering::Release);
            std::thread::sleep(CANCELLED);
            sys::exit_now(INTERRUPTED);
        });
    }
    sys::wait_for_ending_signal();
    sys::exit_now(INTERRUPTED);
}

/// True after the first signal.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

/// True for a command that runs until it is told to end: that is no failure.
pub fn is_the_way_to_end() -> bool {
    SERVES.load(Ordering::Relaxed)
}

/// As [`requested`], to be looked at by others.
pub fn flag() -> &'static AtomicBool {
    &REQUESTED
}

/// Becomes true when calls are to end.
pub fn cancel() -> Arc<AtomicBool> {
    CANCEL.clone()
}

/// Waits for the first signal.
pub fn wait() {
    let mut guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !requested() {
        guard = WAITING.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits for `time`; false when a signal came.
pub fn sleep(time: Duration) -> bool {
    let guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = WAITING.1.wait_timeout_while(guard, time, |()| !requested());
    drop(waited);
    !requested()
}
