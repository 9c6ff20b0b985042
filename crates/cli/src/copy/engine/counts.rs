//! What was found and what is done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::progress::Progress;

/// What was found and what is done.
#[derive(Debug, Default)]
pub struct Counts {
    /// Everything but directories that was copied.
    pub files: AtomicU64,
    /// Found so far.
    pub files_found: AtomicU64,
    /// Directories that were looked into.
    pub directories: AtomicU64,
    /// Directories that were made.
    pub made: AtomicU64,
    /// Of files.
    pub bytes: AtomicU64,
    /// Found so far.
    pub bytes_found: AtomicU64,
    /// Left as it is: it is the same, or not to be replaced.
    pub skipped: AtomicU64,
    /// Got other attributes only.
    pub updated: AtomicU64,
    /// Names that were removed.
    pub removed: AtomicU64,
    /// Bytes that an earlier copy had left.
    pub resumed: AtomicU64,
    /// Not copied.
    pub failed: AtomicU64,
}

impl Counts {
    /// More of something.
    pub fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    /// How much it is now.
    pub fn get(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }

    /// How far it is, for people.
    pub fn show(&self, progress: &Progress) {
        let done = Counts::get(&self.files) + Counts::get(&self.skipped);
        let found = Counts::get(&self.files_found);
        let bytes = Counts::get(&self.bytes) + Counts::get(&self.resumed);
        progress.show(done, found, bytes, Counts::get(&self.bytes_found));
    }
}
