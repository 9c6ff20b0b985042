//! What free slots hold: what was there, zeros where that is not to be read any more, or a pattern by which a use of it shows.

use std::sync::atomic::Ordering;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::poison;

use super::{Page, Pool};

impl Pool {
    /// A slot becomes free.
    pub(super) fn leave_free(&self, index: usize) {
        match self.erases {
            true => self.erase(index),
            false => self.poison(index),
        }
    }

    /// What was in a slot is of no use any more: while [`poison`] is on, it is made so.
    pub(super) fn poison(&self, index: usize) {
        if let Some(poisoned) = self.poisoned.get(index) {
            poisoned.store(true, Ordering::Relaxed);
            poison::fill(&self.span(index * PAGE_BYTES, PAGE_BYTES));
        }
    }

    /// A slot that becomes free says nothing of what was there.
    fn erase(&self, index: usize) {
        if let Some(poisoned) = self.poisoned.get(index) {
            poisoned.store(false, Ordering::Relaxed);
        }
        self.span(index * PAGE_BYTES, PAGE_BYTES).zero();
    }

    /// A slot that was free is as it was left.
    pub(super) fn check_free(&self, page: Page) {
        let Some(poisoned) = self.poisoned.get(page.index()) else { return };
        let span = self.part(page, 0, PAGE_BYTES);
        match poisoned.load(Ordering::Relaxed) {
            true => poison::check(&span, "a page of the cache"),
            false => poison::check_unused(&span, "a page of the cache that was never used"),
        }
    }
}
