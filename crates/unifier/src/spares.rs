//! What is used again: each use would take memory and give it back.

use std::sync::{Arc, Mutex};

use crate::wait::locked;

/// That are kept.
const SPARES_MAX: usize = 256;

/// Those that nobody uses.
pub(crate) struct Spares<T>(Mutex<Vec<Arc<T>>>);

impl<T> Default for Spares<T> {
    fn default() -> Spares<T> {
        Spares(Mutex::default())
    }
}

impl<T> Spares<T> {
    pub(crate) fn take(&self) -> Option<Arc<T>> {
        locked(&self.0).pop()
    }

    /// Nobody else has it.
    pub(crate) fn put(&self, spare: Arc<T>) {
        let mut spares = locked(&self.0);
        if spares.len() < SPARES_MAX {
            spares.push(spare);
        }
    }
}
