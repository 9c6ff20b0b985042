//! Takes down what clients read and write, for a simulation of the cache. Off unless asked for: it
//! writes to a file where requests are answered.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use dafs_unifier::CachedFile;
use dafs_unifier::trace::{Event, TraceWriter};

/// A trace ends at this size.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// See the module. The format is that of [`dafs_unifier::trace`].
pub struct Recorder {
    /// `None` when it is full or failed.
    trace: Mutex<Option<TraceWriter<BufWriter<File>>>>,
}

impl Recorder {
    /// Into a new file, or an old one that is overwritten.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let out = BufWriter::new(File::create(path)?);
        let trace = TraceWriter::new(out, TRACE_BYTES_MAX)?;
        Ok(Recorder { trace: Mutex::new(Some(trace)) })
    }

    pub(crate) fn read(&self, file: &CachedFile, offset: u64, len: usize) {
        self.record(file, file.size(), Event::Read { offset, len: len as u64 });
    }

    pub(crate) fn write(&self, file: &CachedFile, offset: u64, len: usize) {
        self.record(file, file.size(), Event::Write { offset, len: len as u64 });
    }

    pub(crate) fn resize(&self, file: &CachedFile, size: u64) {
        self.record(file, size, Event::Size(size));
    }

    pub(crate) fn gone(&self, file: &CachedFile) {
        self.record(file, 0, Event::Gone);
    }

    fn record(&self, file: &CachedFile, size: u64, event: Event) {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(writer) = trace.as_mut() else { return };
        match writer.record(file.id(), size, event) {
            Ok(true) => return,
            Ok(false) => tracing::warn!("the trace is full: nothing more is recorded"),
            Err(error) => tracing::warn!(%error, "nothing more is recorded"),
        }
        Self::end(trace.take());
    }

    /// Hands all on to the file.
    pub(crate) fn finish(&self) {
        Self::end(self.trace.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn end(trace: Option<TraceWriter<BufWriter<File>>>) {
        if let Some(mut trace) = trace
            && let Err(error) = trace.flush()
        {
            tracing::warn!(%error, "the end of the trace is lost");
        }
    }
}
