//! What a forked child must leave alone.
//!
//! A child has the memory of its parent's sessions, without the threads that serve them, and perhaps
//! with locks that nobody will give back. So it never touches them: calls fail, and what is dropped
//! there is forgotten.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::Python;

use crate::finish;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one that loaded the module.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// In a child, before anything else runs there.
pub fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    finish::in_child();
}

/// Something that only the process that made it may use, or drop.
pub struct Owned<T: Send> {
    value: Option<T>,
    generation: u32,
}

impl<T: Send> Owned<T> {
    /// This process's.
    pub fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), generation: generation() }
    }

    /// `None` in a child.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.generation == generation())
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if self.generation != generation() {
            std::mem::forget(value);
            return;
        }
        if finish::ends() {
            // Perhaps in a thread of a session; those that run Python have ended, or soon do.
            return drop(value);
        }
        // The end of a session may take a while, in which other threads run.
        let mut value = Some(value);
        let here = &mut value;
        let dropped = Python::try_attach(|py| py.detach(|| drop(here.take())));
        if dropped.is_none() {
            drop(value);
        }
    }
}
