//! Which process this is, of those that fork makes of one another.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process was forked, from parent to child.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// In a child, after fork: what the parent had open is not the child's.
pub extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Of processes, by fork: another one in a child.
pub fn generation() -> usize {
    FORKS.load(Ordering::Relaxed) as usize
}
