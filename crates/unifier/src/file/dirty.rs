//! Dirty data: how much there is, and of which files.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::CachedFile;
use crate::wait::locked;

/// Files of one device that are written back at the same time, beside those that somebody waits
/// for. A device that hangs keeps no other waiting.
const FLUSHES_MAX: usize = 16;

/// Flushes that those who wait for space keep going.
pub(crate) const HELPERS_MAX: usize = 4;

/// Dirty data of all files.
pub(crate) struct Dirty {
    /// Dirty, being written, or reserved for a write.
    slots: AtomicUsize,
    slots_max: usize,
    /// The most that one write may take.
    pub(crate) write_slots_max: usize,
    pub(crate) files: DirtyFiles,
    /// With dirty data whose write-back failed.
    failed: Mutex<Vec<Arc<CachedFile>>>,
    /// Flushes that are kept going by those who wait for space.
    helpers: AtomicUsize,
}

impl Dirty {
    /// None; so many slots may be, of `least` that the cache always has.
    pub(crate) fn new(slots_max: usize, least: usize) -> Dirty {
        Dirty {
            slots: AtomicUsize::new(0),
            slots_max,
            write_slots_max: (slots_max / 2).min(least * 3 / 4),
            files: DirtyFiles::default(),
            failed: Mutex::default(),
            helpers: AtomicUsize::new(0),
        }
    }

    /// How many slots are.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// The bound of these, in a cache that has so many now. Reading must go on while writers wait.
    #[inline]
    pub(crate) fn slots_max(&self, kept: usize) -> usize {
        self.slots_max.min(kept * 3 / 4)
    }

    /// Takes room for `slots`, up to `most`.
    #[inline]
    pub(crate) fn take(&self, slots: usize, most: usize) -> bool {
        let more = |dirty: usize| (dirty + slots <= most).then_some(dirty + slots);
        self.slots.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// Some slots that counted do not any more, others do.
    #[inline]
    pub(crate) fn recount(&self, before: usize, after: usize) {
        self.slots.fetch_add(after.wrapping_sub(before), Ordering::SeqCst);
    }

    /// The write-back of a file failed.
    pub(crate) fn add_failed(&self, file: Arc<CachedFile>) {
        locked(&self.failed).push(file);
    }

    /// Those whose write-back failed, which are listed no more.
    pub(crate) fn take_failed(&self) -> Vec<Arc<CachedFile>> {
        std::mem::take(&mut *locked(&self.failed))
    }

    /// As before.
    pub(crate) fn put_back_failed(&self, files: &mut Vec<Arc<CachedFile>>) {
        locked(&self.failed).append(files);
    }

    /// Flushes are kept going by those who wait for space.
    pub(crate) fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::Relaxed) > 0
    }

    /// As many as may be.
    pub(crate) fn is_helped_enough(&self) -> bool {
        self.helpers.load(Ordering::Relaxed) >= HELPERS_MAX
    }

    /// One more is.
    pub(crate) fn helper_begins(&self) {
        self.helpers.fetch_add(1, Ordering::Relaxed);
    }

    /// It is over.
    pub(crate) fn helper_ends(&self) {
        self.helpers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A file is another cache's from now on.
    pub(crate) fn unlist(&self, file: &Arc<CachedFile>) {
        self.files.unlist(file);
        locked(&self.failed).retain(|other| !Arc::ptr_eq(other, file));
    }

    /// Of no file any more.
    pub(crate) fn clear(&self) {
        self.files.clear();
        drop(self.take_failed());
    }
}

/// By their devices. Few: those with dirty files or with flushes under way.
#[derive(Default)]
pub(crate) struct DirtyFiles(Mutex<Vec<Device>>);

struct Device {
    number: u64,
    /// By the time of their first dirty byte.
    files: VecDeque<(Duration, Arc<CachedFile>)>,
    /// Those being written back; what is written to them meanwhile lists them again.
    flushed: Vec<Arc<CachedFile>>,
}

impl DirtyFiles {
    pub(crate) fn push(&self, now: Duration, file: Arc<CachedFile>) {
        let number = file.id().device;
        let devices = &mut *locked(&self.0);
        match devices.iter_mut().find(|device| device.number == number) {
            Some(device) => device.files.push_back((now, file)),
            None => {
                let files = VecDeque::from([(now, file)]);
                devices.push(Device { number, files, flushed: Vec::new() });
            }
        }
    }

    /// The file that has been dirty longest.
    pub(crate) fn pop(&self) -> Option<Arc<CachedFile>> {
        let devices = &mut *locked(&self.0);
        let oldest = devices.iter_mut().filter(|device| !device.files.is_empty());
        let file = oldest.min_by_key(|device| device.files[0].0)?.files.pop_front()?.1;
        devices.retain(Device::is_used);
        Some(file)
    }

    /// Of those that are due and may be flushed, the one that has been dirty longest. It counts as
    /// being flushed until `end_flush`.
    pub(crate) fn begin_flush(&self, is_due: impl Fn(Duration) -> bool) -> Option<Arc<CachedFile>> {
        let devices = &mut *locked(&self.0);
        let due = devices.iter_mut().filter_map(|device| Some((device.due(&is_due)?, device)));
        let (at, device) = due.min_by_key(|(at, device)| device.files[*at].0)?;
        let file = device.files.remove(at)?.1;
        device.flushed.push(file.clone());
        Some(file)
    }

    /// A flush is over.
    pub(crate) fn end_flush(&self, file: &Arc<CachedFile>) {
        let devices = &mut *locked(&self.0);
        if let Some(device) = devices.iter_mut().find(|device| device.number == file.id().device) {
            device.flushed.retain(|other| !Arc::ptr_eq(other, file));
        }
        devices.retain(Device::is_used);
    }

    /// It is not to be written back any more.
    pub(crate) fn unlist(&self, file: &Arc<CachedFile>) {
        let devices = &mut *locked(&self.0);
        devices
            .iter_mut()
            .for_each(|device| device.files.retain(|(_, other)| !Arc::ptr_eq(other, file)));
        devices.retain(Device::is_used);
    }

    /// One is due and may be flushed.
    pub(crate) fn is_any_due(&self, is_due: impl Fn(Duration) -> bool) -> bool {
        locked(&self.0).iter().any(|device| device.due(&is_due).is_some())
    }

    pub(crate) fn clear(&self) {
        let devices = std::mem::take(&mut *locked(&self.0));
        drop(devices);
    }
}

impl Device {
    fn is_used(&self) -> bool {
        !self.flushed.is_empty() || !self.files.is_empty()
    }

    /// The place of the first one that may be flushed: not one that is, in small pieces.
    fn due(&self, is_due: impl Fn(Duration) -> bool) -> Option<usize> {
        if self.flushed.len() == FLUSHES_MAX {
            return None;
        }
        let is_flushed = |file| self.flushed.iter().any(|other| Arc::ptr_eq(other, file));
        let at = self.files.iter().position(|(_, file)| !is_flushed(file))?;
        is_due(self.files[at].0).then_some(at)
    }
}
