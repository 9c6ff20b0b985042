//! When a store may block the thread that calls it.
//!
//! A hand-over to another thread and back costs two wake-ups, which is more than most calls
//! take. A caller with nothing else to do says so, and the store does the work in its thread, as
//! long as that has been quick of late.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For how much of a store's work the calling thread may be blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocking {
    /// None: others wait for this thread.
    None,
    /// Names and attributes, which local file systems change in memory.
    Names,
    /// All: moving much data and waiting for a device, too.
    All,
}

thread_local! {
    static ALLOWED: Cell<Blocking> = const { Cell::new(Blocking::None) };
}

/// What store calls of this thread may do from now on.
pub fn allow_blocking(allowed: Blocking) {
    ALLOWED.set(allowed);
}

/// What store calls of this thread may do, as last allowed.
pub fn allowed_blocking() -> Blocking {
    ALLOWED.get()
}

/// Work that stores have handed to threads of theirs, in this process.
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

/// For stores: work that another thread does for the caller, until this is dropped.
#[derive(Debug)]
pub struct Elsewhere(());

impl Elsewhere {
    /// It is handed over.
    #[expect(clippy::new_without_default, reason = "it counts")]
    pub fn new() -> Elsewhere {
        ELSEWHERE.fetch_add(1, Ordering::Relaxed);
        Elsewhere(())
    }

    /// Threads of stores have work. Who waits for them, and spins, may have the processor that they need.
    pub fn is_some() -> bool {
        ELSEWHERE.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        ELSEWHERE.fetch_sub(1, Ordering::Relaxed);
    }
}
