//! Dirty files, by the time of their first dirty byte.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::CachedFile;
use crate::wait::locked;

/// Files of one device that are written back at the same time, beside those that somebody waits
/// for. A device that hangs keeps no other waiting.
const FLUSHES_MAX: usize = 16;

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
