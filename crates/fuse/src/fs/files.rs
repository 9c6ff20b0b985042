//! Open files and directories, by the number that the kernel has of them.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use dafs_client::{DirAhead, File};
use dafs_protocol::{DirEntry, OwnerKey};

use super::error::Errno;
use super::flushes::Flushes;
use super::nodes::Node;

/// An open regular file.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) node: Arc<Node>,
    /// The kernel does not cache what goes through it.
    pub(super) direct: bool,
    /// The file was made by this open, and not written yet.
    new: AtomicBool,
    /// Written since the last flush.
    dirty: AtomicBool,
    pub(super) flushes: Flushes,
    /// What a flush for somebody else failed with, until it is told here; 0: nothing.
    failed: AtomicI32,
    /// Somebody else than who opened it wrote through it.
    by_others: AtomicBool,
    /// Owners that took a lock through it.
    lockers: Mutex<Vec<OwnerKey>>,
}

impl OpenFile {
    pub(super) fn new(file: File, node: Arc<Node>, direct: bool, new: bool) -> Arc<OpenFile> {
        let new = AtomicBool::new(new);
        let (dirty, flushes) = (AtomicBool::new(false), Flushes::default());
        let (failed, lockers) = (AtomicI32::new(0), Mutex::default());
        let by_others = AtomicBool::new(false);
        Arc::new(OpenFile { file, node, direct, new, dirty, flushes, failed, by_others, lockers })
    }

    /// True for the first write, where this open made the file.
    pub(super) fn is_first_write(&self) -> bool {
        self.new.load(Ordering::Relaxed) && self.new.swap(false, Ordering::Relaxed)
    }

    /// Something is to be flushed.
    pub(super) fn written(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Something is not known to be flushed.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) || self.flushes.is_under_way()
    }

    /// A flush begins, if something is to be flushed.
    pub(super) fn take_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) && self.dirty.swap(false, Ordering::Relaxed)
    }

    /// True the first time.
    pub(super) fn is_written_by_others(&self) -> bool {
        !self.by_others.load(Ordering::Relaxed) && !self.by_others.swap(true, Ordering::Relaxed)
    }

    pub(super) fn set_failed(&self, errno: Errno) {
        self.failed.store(errno.0, Ordering::Relaxed);
    }

    /// # Errors
    /// What was set, once.
    pub(super) fn take_failed(&self) -> Result<(), Errno> {
        match self.failed.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    fn lockers(&self) -> MutexGuard<'_, Vec<OwnerKey>> {
        self.lockers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_locker(&self, owner: OwnerKey) {
        let mut lockers = self.lockers();
        if !lockers.contains(&owner) {
            lockers.push(owner);
        }
    }

    /// True when that owner may hold locks taken through this open.
    pub(super) fn forget_locker(&self, owner: OwnerKey) -> bool {
        let mut lockers = self.lockers();
        let before = lockers.len();
        lockers.retain(|other| *other != owner);
        lockers.len() < before
    }

    pub(super) fn take_lockers(&self) -> Vec<OwnerKey> {
        std::mem::take(&mut *self.lockers())
    }
}

/// A directory that is read: what the server listed and the kernel did not take yet.
#[derive(Default)]
pub(super) struct DirStream {
    pub(super) entries: std::collections::VecDeque<DirEntry>,
    /// The position before the first of them.
    pub(super) at: u64,
    /// Nothing follows them.
    pub(super) end: bool,
    /// They came with attributes and handles.
    pub(super) plus: bool,
    /// When they were asked for.
    pub(super) asked: Option<Instant>,
    /// What follows them is on its way, asked for then.
    pub(super) ahead: Option<(DirAhead, Instant)>,
}

struct Slab<T> {
    places: Vec<Option<Arc<T>>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn add(&mut self, item: Arc<T>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(item);
        place as u64
    }

    fn get(&self, number: u64) -> Option<Arc<T>> {
        self.places.get(usize::try_from(number).ok()?)?.clone()
    }

    fn remove(&mut self, number: u64) -> Option<Arc<T>> {
        let place = usize::try_from(number).ok()?;
        let item = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(item)
    }
}

#[derive(Default)]
pub(super) struct Files {
    files: RwLock<Slab<OpenFile>>,
    dirs: RwLock<Slab<Mutex<DirStream>>>,
}

impl Files {
    pub(super) fn add(&self, file: Arc<OpenFile>) -> u64 {
        self.files.write().unwrap_or_else(PoisonError::into_inner).add(file)
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(number).ok_or(Errno::BADF)
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let file = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(number)?;
        file.node.closed(&file);
        Some(file)
    }

    /// All that are open.
    pub(super) fn all(&self) -> Vec<Arc<OpenFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.places.iter().flatten().cloned().collect()
    }

    pub(super) fn open_dir(&self) -> u64 {
        let stream = Arc::new(Mutex::new(DirStream::default()));
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).add(stream)
    }

    pub(super) fn dir(&self, number: u64) -> Result<Arc<Mutex<DirStream>>, Errno> {
        let dirs = self.dirs.read().unwrap_or_else(PoisonError::into_inner);
        dirs.get(number).ok_or(Errno::BADF)
    }

    pub(super) fn close_dir(&self, number: u64) {
        self.dirs.write().unwrap_or_else(PoisonError::into_inner).remove(number);
    }

    /// Nobody can use them any more.
    pub(super) fn close_all(&self) {
        let files =
            std::mem::take(&mut *self.files.write().unwrap_or_else(PoisonError::into_inner));
        for file in files.places.into_iter().flatten() {
            file.node.closed(&file);
        }
    }
}
