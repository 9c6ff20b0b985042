//! Entries of directories.

use std::sync::Arc;

use dafs_client::ReadDir;
use dafs_protocol::{Attr, DirEntry, FileKind};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::forked;
use crate::fork::Owned;
use crate::path::{below, text};
use crate::session::Link;
use crate::stat::Stat;

/// Entries that are taken from the client at a time.
const TAKEN: usize = 256;

/// The entries of a directory, one after the other.
#[pyclass(module = "dafs._dafs")]
pub struct ScanDir {
    link: Arc<Link>,
    given: Vec<u8>,
    base: Vec<u8>,
    entries: Option<Owned<Entries>>,
    taken: std::vec::IntoIter<DirEntry>,
}

/// In a lock that is never waited for: the interpreter lends the listing to one thread at a time.
type Entries = std::sync::Mutex<ReadDir>;

impl ScanDir {
    /// Of the directory that was called `given`, below `base`.
    pub fn new(link: Arc<Link>, given: Vec<u8>, base: Vec<u8>, entries: ReadDir) -> ScanDir {
        let entries = Some(Owned::new(std::sync::Mutex::new(entries)));
        ScanDir { link, given, base, entries, taken: Vec::new().into_iter() }
    }

    fn take(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(entries) = &self.entries else { return Ok(()) };
        let entries = entries.get().ok_or_else(|| forked(Some(&self.given), py))?;
        let taken = self.link.call(py, Some(&self.given), |_| {
            let mut entries = entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            entries.by_ref().take(TAKEN).collect::<Result<Vec<_>, _>>()
        })?;
        self.taken = taken.into_iter();
        Ok(())
    }
}

#[pymethods]
impl ScanDir {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Entry>> {
        if self.taken.len() == 0 {
            self.take(py)?;
        }
        let Some(entry) = self.taken.next() else { return Ok(None) };
        let path = below(&self.given, &entry.name);
        let link = self.link.clone();
        let whole = below(&self.base, &path);
        Ok(Some(Entry { link, path, whole, entry }))
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&mut self, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }

    /// No more entries come.
    fn close(&mut self) {
        self.entries = None;
        self.taken = Vec::new().into_iter();
    }
}

/// A name in a directory, with the attributes that came with the listing.
#[pyclass(frozen, name = "DirEntry", module = "dafs._dafs")]
pub struct Entry {
    link: Arc<Link>,
    path: Vec<u8>,
    whole: Vec<u8>,
    entry: DirEntry,
}

impl Entry {
    fn attr(&self, py: Python<'_>, follow: bool) -> PyResult<Attr> {
        match self.entry.attr {
            Some(attr) if attr.kind != FileKind::Symlink || !follow => Ok(attr),
            _ => self.link.call(py, Some(&self.path), |session| {
                if follow { session.stat(&self.whole) } else { session.lstat(&self.whole) }
            }),
        }
    }

    fn is(&self, py: Python<'_>, kind: FileKind, follow: bool) -> PyResult<bool> {
        match self.entry.kind.or(self.entry.attr.map(|attr| attr.kind)) {
            Some(known) if known != FileKind::Symlink || !follow => return Ok(known == kind),
            _ => {}
        }
        match self.attr(py, follow) {
            Ok(attr) => Ok(attr.kind == kind),
            // A link to nothing.
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyFileNotFoundError>(py) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[pymethods]
impl Entry {
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, &self.entry.name)
    }

    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, &self.path)
    }

    fn __fspath__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        text(py, &self.path)
    }

    #[pyo3(signature = (*, follow_symlinks=true))]
    fn stat(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<Stat> {
        self.attr(py, follow_symlinks).map(Stat)
    }

    fn inode(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.attr(py, false)?.inode)
    }

    #[pyo3(signature = (*, follow_symlinks=true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is(py, FileKind::Directory, follow_symlinks)
    }

    #[pyo3(signature = (*, follow_symlinks=true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is(py, FileKind::File, follow_symlinks)
    }

    fn is_symlink(&self, py: Python<'_>) -> PyResult<bool> {
        self.is(py, FileKind::Symlink, false)
    }

    fn __repr__(&self) -> String {
        format!("<dafs.DirEntry '{}'>", String::from_utf8_lossy(&self.entry.name))
    }
}
