//! Open files and directories, by the number that the kernel has of them.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use dafs_client::DirAhead;
use dafs_protocol::DirEntry;

use super::error::Errno;
use super::nodes::OpenFile;

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
