//! The end of the interpreter: no thread of a session may enter it any more, since a thread that waits
//! for its lock then is unwound by the system, through code that does not know of that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

use crate::fork;

/// Callbacks that run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

/// Between looks at callbacks that still run.
const PAUSE: Duration = Duration::from_millis(1);

/// The interpreter is about to end.
pub fn ends() -> bool {
    ENDS.load(Ordering::SeqCst)
}

/// In a child, where no callback of its parent runs.
pub fn in_child() {
    RUNNING.store(0, Ordering::SeqCst);
}

/// Runs a callback, unless the interpreter ends.
pub fn callback(body: impl FnOnce(Python<'_>)) {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let _guard = Running(fork::generation());
    if !ends() {
        let _ = Python::try_attach(body);
    }
}

/// One that runs, in which process.
struct Running(u32);

impl Drop for Running {
    fn drop(&mut self) {
        // A child that the callback forked does not count it.
        if self.0 == fork::generation() {
            RUNNING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Called at the end, while the interpreter is whole: returns when no callback runs, and none will.
#[pyfunction]
pub fn end_callbacks(py: Python<'_>) {
    ENDS.store(true, Ordering::SeqCst);
    py.detach(|| {
        while RUNNING.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(PAUSE);
        }
    });
}
