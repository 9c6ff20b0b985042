//! An open regular file.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_client::File;
use dafs_protocol::OwnerKey;

use super::Node;
use crate::fs::error::Errno;
use crate::fs::flushes::Flushes;

/// An open regular file.
pub(in crate::fs) struct OpenFile {
    pub(in crate::fs) file: File,
    pub(in crate::fs) node: Arc<Node>,
    /// The kernel does not cache what goes through it.
    pub(in crate::fs) direct: bool,
    /// The file was made by this open, and not written yet.
    new: AtomicBool,
    /// Written since the last flush.
    dirty: AtomicBool,
    pub(in crate::fs) flushes: Flushes,
    /// What a flush for somebody else failed with, until it is told here; 0: nothing.
    failed: AtomicI32,
    /// Somebody else than who opened it wrote through it.
    by_others: AtomicBool,
    /// Owners that took a lock through it.
    lockers: Mutex<Vec<OwnerKey>>,
}

impl OpenFile {
    pub(in crate::fs) fn new(
        file: File,
        node: Arc<Node>,
        direct: bool,
        new: bool,
    ) -> Arc<OpenFile> {
        let new = AtomicBool::new(new);
        let (dirty, flushes) = (AtomicBool::new(false), Flushes::default());
        let (failed, lockers) = (AtomicI32::new(0), Mutex::default());
        let by_others = AtomicBool::new(false);
        Arc::new(OpenFile { file, node, direct, new, dirty, flushes, failed, by_others, lockers })
    }

    /// True for the first write, where this open made the file.
    pub(in crate::fs) fn is_first_write(&self) -> bool {
        self.new.load(Ordering::Relaxed) && self.new.swap(false, Ordering::Relaxed)
    }

    /// Something is to be flushed.
    pub(in crate::fs) fn written(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Something is not known to be flushed.
    pub(in crate::fs) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) || self.flushes.is_under_way()
    }

    /// A flush begins, if something is to be flushed.
    pub(in crate::fs) fn take_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) && self.dirty.swap(false, Ordering::Relaxed)
    }

    /// True the first time.
    pub(in crate::fs) fn is_written_by_others(&self) -> bool {
        !self.by_others.load(Ordering::Relaxed) && !self.by_others.swap(true, Ordering::Relaxed)
    }

    pub(in crate::fs) fn set_failed(&self, errno: Errno) {
        self.failed.store(errno.0, Ordering::Relaxed);
    }

    /// # Errors
    /// What was set, once.
    pub(in crate::fs) fn take_failed(&self) -> Result<(), Errno> {
        match self.failed.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    fn lockers(&self) -> MutexGuard<'_, Vec<OwnerKey>> {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::fs) fn note_locker(&self, owner: OwnerKey) {
        let mut lockers = self.lockers();
        if !lockers.contains(&owner) {
            lockers.push(owner);
        }
    }

    /// True when that owner may hold locks taken through this open.
    pub(in crate::fs) fn forget_locker(&self, owner: OwnerKey) -> bool {
        let mut lockers = self.lockers();
        let before = lockers.len();
        lockers.retain(|other| *other != owner);
        lockers.len() < before
    }

    pub(in crate::fs) fn take_lockers(&self) -> Vec<OwnerKey> {
        std::mem::take(&mut *self.lockers())
    }
}
