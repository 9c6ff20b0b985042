//! Dirty files: which is written back next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::core::Core;
use crate::file::CachedFile;
use crate::job::Job;
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
    flushes: usize,
}

impl DirtyFiles {
    /// Dirty since then.
    pub(crate) fn push(&self, since: Duration, file: Arc<CachedFile>) {
        let number = file.id().device;
        let devices = &mut *locked(&self.0);
        match devices.iter_mut().find(|device| device.number == number) {
            Some(device) => {
                let at = device.files.partition_point(|other| other.0 <= since);
                device.files.insert(at, (since, file));
            }
            None => {
                let files = VecDeque::from([(since, file)]);
                devices.push(Device { number, files, flushes: 0 });
            }
        }
    }

    /// The file that has been dirty longest.
    fn pop(&self) -> Option<Arc<CachedFile>> {
        let devices = &mut *locked(&self.0);
        let oldest = devices.iter_mut().filter(|device| !device.files.is_empty());
        let file = oldest.min_by_key(|device| device.files[0].0)?.files.pop_front()?.1;
        devices.retain(Device::is_used);
        Some(file)
    }

    /// Of those that are due, where a flush may begin, the one that has been dirty longest. Its
    /// flush counts from now on, until `end_flush`.
    fn begin_flush(&self, is_due: impl Fn(Duration) -> bool) -> Option<Arc<CachedFile>> {
        let devices = &mut *locked(&self.0);
        let due = devices.iter_mut().filter(|device| device.is_due(&is_due));
        let device = due.min_by_key(|device| device.files[0].0)?;
        let file = device.files.pop_front()?.1;
        device.flushes += 1;
        Some(file)
    }

    fn end_flush(&self, number: u64) {
        let devices = &mut *locked(&self.0);
        if let Some(device) = devices.iter_mut().find(|device| device.number == number) {
            device.flushes -= 1;
        }
        devices.retain(Device::is_used);
    }

    fn is_any_due(&self, is_due: impl Fn(Duration) -> bool) -> bool {
        locked(&self.0).iter().any(|device| device.is_due(&is_due))
    }

    pub(crate) fn clear(&self) {
        let devices = std::mem::take(&mut *locked(&self.0));
        drop(devices);
    }
}

impl Device {
    fn is_used(&self) -> bool {
        self.flushes > 0 || !self.files.is_empty()
    }

    fn is_due(&self, is_due: impl Fn(Duration) -> bool) -> bool {
        self.flushes < FLUSHES_MAX && self.files.front().is_some_and(|file| is_due(file.0))
    }
}

impl Core {
    pub(crate) fn list_as_dirty(&self, file: &Arc<CachedFile>) {
        self.dirty_files.push(self.now(), file.clone());
    }

    /// The file that has been dirty longest.
    pub(crate) fn next_dirty(&self) -> Option<Arc<CachedFile>> {
        let file = self.dirty_files.pop()?;
        file.unlist_as_dirty();
        Some(file)
    }

    /// A file is to be written back, and may be.
    pub(crate) fn write_back_due(&self) -> bool {
        self.dirty_files.is_any_due(self.is_due())
    }

    /// Begins to write back what is due; goes on while something is. What is written to a file
    /// meanwhile comes after its flush: not beside it, in small pieces.
    pub(crate) fn begin_flush(self: &Arc<Self>) -> Option<Arc<Job>> {
        let mut file = self.dirty_files.begin_flush(self.is_due())?;
        let core = self.clone();
        let job = Job::new(async move {
            loop {
                let since = core.now();
                // A failure is told to the file's writers.
                let _ = file.flush_pass().await;
                core.dirty_files.end_flush(file.id().device);
                if file.relist_as_dirty(since) {
                    core.pool.space.changed();
                }
                match core.dirty_files.begin_flush(core.is_due()) {
                    Some(next) => file = next,
                    None => return Ok(()),
                }
            }
        });
        self.jobs.start(&job);
        Some(job)
    }

    /// Whether a file is, by the time of its first dirty byte.
    fn is_due(&self) -> impl Fn(Duration) -> bool + use<> {
        let (now, age, is_half) = (self.now(), self.config.dirty_age, self.is_half_dirty());
        move |since| is_half || since.saturating_add(age) <= now
    }
}
