//! Which dirty file is written back next.

use std::sync::Arc;
use std::time::Duration;

use crate::file::{CachedFile, Core};
use crate::job::Job;

impl Core {
    pub(crate) fn list_as_dirty(&self, file: &Arc<CachedFile>) {
        self.dirty.files.push(self.now(), file.clone());
    }

    /// The file that has been dirty longest.
    pub(crate) fn next_dirty(&self) -> Option<Arc<CachedFile>> {
        let file = self.dirty.files.pop()?;
        file.unlist_as_dirty();
        Some(file)
    }

    /// A file is to be written back, and may be.
    pub(crate) fn write_back_due(&self) -> bool {
        self.dirty.files.is_any_due(self.is_due())
    }

    /// Begins to write back what is due; goes on while something is.
    pub(crate) fn begin_flush(self: &Arc<Self>) -> Option<Arc<Job>> {
        let mut file = self.next_due()?;
        let core = self.clone();
        let job = Job::new(async move {
            loop {
                // A failure is told to the file's writers.
                let _ = file.flush_pass().await;
                core.dirty.files.end_flush(&file);
                match core.next_due() {
                    Some(next) => file = next,
                    None => return Ok(()),
                }
            }
        });
        self.jobs.start(&job);
        Some(job)
    }

    fn next_due(&self) -> Option<Arc<CachedFile>> {
        let file = self.dirty.files.begin_flush(self.is_due())?;
        file.unlist_as_dirty();
        Some(file)
    }

    /// Whether a file is, by the time of its first dirty byte.
    fn is_due(&self) -> impl Fn(Duration) -> bool + use<> {
        let (now, age, is_half) = (self.now(), self.config.dirty_age, self.is_half_dirty());
        move |since| is_half || since.saturating_add(age) <= now
    }
}
