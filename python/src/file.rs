//! Open files: what `io` asks of a raw file, and positional reads and writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dafs_client::{Call, Error, File, OpenOptions};
use dafs_protocol::SetAttr;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::error::{closed, forked};
use crate::fork::Owned;
use crate::loan::PyLoan;
use crate::path::text;
use crate::session::Link;
use crate::stat::Stat;
use crate::sys;

/// Bytes of writes that one open file keeps, to write them again where the server's process ends,
/// before it flushes.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Longer reads ask first how much there is, instead of for memory that nothing may come to.
const ASKED_BYTES: usize = 64 << 20;

/// An open file.
///
/// `read`, `readinto`, `write` and `seek` share a position, for one thread at a time; `pread` and
/// `pwrite` have none, and any thread may call them.
#[pyclass(frozen, module = "dafs._dafs")]
pub struct RawFile {
    file: Owned<File>,
    link: Arc<Link>,
    name: Vec<u8>,
    options: OpenOptions,
    position: AtomicU64,
    closed: AtomicBool,
    /// Writes that have ended, and as many of them as a flush found.
    written: AtomicU64,
    flushed: AtomicU64,
}

impl RawFile {
    /// Just opened.
    pub fn new(link: Arc<Link>, file: File, name: Vec<u8>, options: OpenOptions) -> RawFile {
        RawFile {
            file: Owned::new(file),
            link,
            name,
            options,
            position: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        }
    }

    /// The client's file, where it may still be used.
    pub fn file(&self, py: Python<'_>) -> PyResult<&File> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(closed("file"));
        }
        self.file.get().ok_or_else(|| forked(Some(&self.name), py))
    }

    /// As `file`, where it was opened for reading.
    pub fn readable_file(&self, py: Python<'_>) -> PyResult<&File> {
        let file = self.file(py)?;
        if self.options.read { Ok(file) } else { Err(unsupported(py, "File not open for reading")) }
    }

    /// As `file`, where it was opened for writing.
    pub fn writable_file(&self, py: Python<'_>) -> PyResult<&File> {
        let file = self.file(py)?;
        if self.options.write {
            Ok(file)
        } else {
            Err(unsupported(py, "File not open for writing"))
        }
    }

    /// Runs a call of the file.
    pub fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.link.call(py, Some(&self.name), |_| body())
    }

    /// The session, where it may still be used.
    pub fn link(&self, py: Python<'_>) -> PyResult<&dafs_client::Session> {
        self.link.session(py, Some(&self.name))
    }

    /// What calls of it need after it is gone: the session, and its name.
    pub fn shared(&self) -> (Arc<Link>, Vec<u8>) {
        (self.link.clone(), self.name.clone())
    }

    /// Runs a call that writes, after which, whatever became of it, there is something to flush.
    fn writes<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let outcome = self.call(py, body);
        self.written.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// Runs a call that flushes what was written before it, not what other threads write meanwhile.
    fn flushes<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let written = self.written.load(Ordering::Relaxed);
        let done = self.call(py, body)?;
        self.flushed.fetch_max(written, Ordering::Relaxed);
        Ok(done)
    }

    fn has_to_flush(&self) -> bool {
        self.flushed.load(Ordering::Relaxed) < self.written.load(Ordering::Relaxed)
    }

    /// No more calls.
    pub fn mark_closed(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// The exception for `error`.
    pub fn failed(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.link.failed(py, error, Some(&self.name))
    }

    fn move_by(&self, at: u64, bytes: usize) {
        self.position.store(at.saturating_add(bytes as u64), Ordering::Relaxed);
    }

    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.readable_file(py)?;
        let mut size = size;
        if size > ASKED_BYTES {
            let left = self.call(py, || file.attr())?.size.saturating_sub(offset);
            size = size.min(usize::try_from(left)?);
        }
        let mut read = 0;
        let bytes = PyBytes::new_with(py, size, |into| {
            read = self.call(py, || file.read_at(into, offset))?;
            Ok(())
        })?;
        if read == size {
            Ok(bytes)
        } else {
            Ok(PyBytes::new(py, &bytes.as_bytes()[..read.min(size)]))
        }
    }

    fn write_at(&self, py: Python<'_>, file: &File, from: &[u8], offset: u64) -> PyResult<usize> {
        self.writes(py, || {
            // What is kept stays below the limit by flushes in between.
            let mut at = offset;
            for part in from.chunks(KEPT_BYTES_MAX) {
                let kept = file.write_kept(part, at)?;
                at += part.len() as u64;
                if kept.of_open >= KEPT_BYTES_MAX {
                    file.flush()?;
                }
            }
            Ok(from.len())
        })
    }

    /// At the end; where it went.
    fn append(&self, py: Python<'_>, file: &File, from: &[u8]) -> PyResult<u64> {
        self.writes(py, || file.append(from))
    }
}

fn unsupported(py: Python<'_>, text: &str) -> PyErr {
    let made = py.import("io").and_then(|io| io.getattr("UnsupportedOperation"));
    match made.and_then(|class| class.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// An offset that files can have.
pub fn offset_of(offset: i64) -> PyResult<u64> {
    u64::try_from(offset).map_err(|_| PyValueError::new_err("negative offset"))
}

#[pymethods]
impl RawFile {
    /// As it was opened.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, &self.name)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// It is the parent's of this process.
    #[getter]
    fn inherited(&self) -> bool {
        self.file.get().is_none()
    }

    fn readable(&self, py: Python<'_>) -> PyResult<bool> {
        self.file(py)?;
        Ok(self.options.read)
    }

    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.file(py)?;
        Ok(self.options.write)
    }

    fn seekable(&self, py: Python<'_>) -> PyResult<bool> {
        self.file(py)?;
        Ok(true)
    }

    /// Reads into a writable buffer, straight, without the interpreter's lock; answers how many
    /// bytes, fewer than fit at the end of the file only.
    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.readable_file(py)?;
        let at = self.position.load(Ordering::Relaxed);
        let read = sys::lend_mut(buffer, |into| self.call(py, || file.read_at(into, at)))?;
        self.move_by(at, read);
        Ok(read)
    }

    /// Up to `size` bytes from the position on; all that follow, where it is negative or missing.
    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
            return self.readall(py);
        };
        let at = self.position.load(Ordering::Relaxed);
        let bytes = self.read_bytes(py, size, at)?;
        self.move_by(at, bytes.as_bytes().len());
        Ok(bytes)
    }

    /// All bytes from the position to the end.
    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.readable_file(py)?;
        let at = self.position.load(Ordering::Relaxed);
        let size = self.call(py, || file.attr())?.size;
        let left = usize::try_from(size.saturating_sub(at))?;
        let bytes = self.read_bytes(py, left, at)?;
        self.move_by(at, bytes.as_bytes().len());
        Ok(bytes)
    }

    /// Up to `size` bytes at `offset`.
    #[pyo3(signature = (size, offset, /))]
    pub fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.read_bytes(py, size, offset_of(offset)?)
    }

    /// As `readinto`, at `offset`.
    #[pyo3(signature = (buffer, offset, /))]
    pub fn preadinto(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<usize> {
        let file = self.readable_file(py)?;
        let offset = offset_of(offset)?;
        sys::lend_mut(buffer, |into| self.call(py, || file.read_at(into, offset)))
    }

    /// Up to `size` bytes at `offset`, to be read where they are: see `Loan`.
    #[pyo3(signature = (size, offset, /))]
    fn lend(&self, py: Python<'_>, size: usize, offset: i64) -> PyResult<PyLoan> {
        let (file, offset) = (self.readable_file(py)?, offset_of(offset)?);
        self.call(py, || file.lend(offset, size)).map(PyLoan::new)
    }

    /// Writes all bytes of a buffer; in the server's memory when it returns.
    #[pyo3(signature = (buffer, /))]
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.writable_file(py)?;
        sys::lend(buffer, |from| {
            if from.is_empty() {
                return Ok(0);
            }
            let at = if self.options.append {
                self.append(py, file, from)?
            } else {
                let at = self.position.load(Ordering::Relaxed);
                self.write_at(py, file, from, at)?;
                at
            };
            self.move_by(at, from.len());
            Ok(from.len())
        })
    }

    /// As `write`, at `offset`.
    #[pyo3(signature = (buffer, offset, /))]
    pub fn pwrite(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: i64,
    ) -> PyResult<usize> {
        let file = self.writable_file(py)?;
        let offset = offset_of(offset)?;
        sys::lend(buffer, |from| self.write_at(py, file, from, offset))
    }

    /// Moves the position: from the start (0), itself (1), the end (2), or to the next data (3) or
    /// hole (4).
    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        let file = self.file(py)?;
        let base = match whence {
            0 => 0,
            1 => self.position.load(Ordering::Relaxed),
            2 => self.call(py, || file.attr())?.size,
            3 | 4 => return self.seek_kind(py, file, offset_of(offset)?, whence == 4),
            _ => return Err(PyValueError::new_err(format!("invalid whence ({whence})"))),
        };
        let to = i128::from(base) + i128::from(offset);
        if to < 0 {
            return Err(PyValueError::new_err(format!("negative seek value {to}")));
        }
        let to = i64::try_from(to)
            .map_err(|_| PyOverflowError::new_err("a position beyond what files can have"))?;
        let to = offset_of(to)?;
        self.position.store(to, Ordering::Relaxed);
        Ok(to)
    }

    /// The position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.file(py)?;
        Ok(self.position.load(Ordering::Relaxed))
    }

    /// Cuts the file, or makes it longer; at the position, unless a size is given.
    #[pyo3(signature = (size=None, /))]
    fn truncate(&self, py: Python<'_>, size: Option<i64>) -> PyResult<u64> {
        let file = self.writable_file(py)?;
        let size = match size {
            Some(size) => offset_of(size)?,
            None => self.position.load(Ordering::Relaxed),
        };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let session = self.link(py)?;
        // With what was written before: what went wrong with it is told here.
        let flush = self.has_to_flush();
        self.flushes(py, || session.set_attr_open(file, None, set, flush)?.1)?;
        Ok(size)
    }

    /// Hands what was written to the server's file system: programs there see it, and it outlives
    /// the server's process. Raises what went wrong with it since.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file(py)?;
        if self.has_to_flush() {
            self.flushes(py, || file.flush())?;
        }
        Ok(())
    }

    /// What was written is on the server's disk when it returns.
    #[pyo3(signature = (*, data_only=false))]
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let file = self.file(py)?;
        self.flushes(py, || if data_only { file.sync_data() } else { file.commit() })
    }

    /// Attributes.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        let file = self.file(py)?;
        Ok(Stat(self.call(py, || file.attr())?))
    }

    /// Closes the file; raises what went wrong with writes, and does not wait where it was only read. It
    /// is closed in any case, and a second time does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // A child leaves its parent's files alone.
        let Some(file) = self.file.get() else { return Ok(()) };
        if !self.options.write && self.close_unwaited(py, file)? {
            return Ok(());
        }
        self.call(py, || file.clone().close().map(drop))
    }

    fn __repr__(&self) -> String {
        format!("<dafs.RawFile '{}'>", String::from_utf8_lossy(&self.name))
    }
}

impl RawFile {
    /// Of what was only read there is nothing to tell: the close goes on its way, and nobody waits
    /// for a server that is lost. False: there is no room for it.
    fn close_unwaited(&self, py: Python<'_>, file: &File) -> PyResult<bool> {
        let group = self.link(py)?.group();
        let sent = group.submit(0, Call::Close { file: file.clone() }).is_ok();
        group.flush();
        Ok(sent)
    }

    fn seek_kind(&self, py: Python<'_>, file: &File, from: u64, hole: bool) -> PyResult<u64> {
        let found = self.call(py, || {
            let found = if hole { file.seek_hole(from) } else { file.seek_data(from) };
            found?.ok_or_else(|| dafs_protocol::Status::NxIo.into())
        })?;
        self.position.store(found, Ordering::Relaxed);
        Ok(found)
    }
}
