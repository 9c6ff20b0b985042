//! Data of a file where the server has it, as buffers that are only read.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use dafs_client::Lent;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::fork::Owned;
use crate::sys;

type Shared = Arc<Owned<Lent>>;

/// A range of a file to be read where it is: `file.lend(size, offset)`. The server's cache has it, where this
/// process may read that (`mapped`), else memory of this process. It stays as it was when the call read it, until this
/// and all of its pieces are gone, or `release` and they.
///
/// In a child of this process it is not there: to look at a piece ends the child.
#[pyclass(frozen, name = "Loan", module = "dafs._dafs")]
pub struct PyLoan {
    lent: Mutex<Option<Shared>>,
    len: usize,
    mapped: bool,
}

impl PyLoan {
    /// Just lent.
    pub fn new(lent: Lent) -> PyLoan {
        let (len, mapped) = (lent.len(), lent.is_mapped());
        PyLoan { lent: Mutex::new(Some(Arc::new(Owned::new(lent)))), len, mapped }
    }

    fn lent(&self) -> std::sync::MutexGuard<'_, Option<Shared>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyLoan {
    fn __len__(&self) -> usize {
        self.len
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// All of it is in the server's cache; none of it was copied.
    #[getter]
    fn mapped(&self) -> bool {
        self.mapped
    }

    /// The bytes, in order: in as many places as the cache has them. `numpy.frombuffer(piece, ...)` shows one.
    #[getter]
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyMemoryView>>> {
        let lent = self.lent().clone();
        let lent = lent.ok_or_else(|| PyValueError::new_err("the loan was released"))?;
        let count = lent.get().ok_or_else(of_parent)?.pieces().count();
        let piece = |index| {
            let piece = Bound::new(py, Piece { lent: lent.clone(), index })?;
            PyMemoryView::from(&piece)
        };
        (0..count).map(piece).collect()
    }

    /// Gives it back, as far as no piece is left.
    fn release(&self) {
        let lent = self.lent().take();
        // Not under the lock: its end lets other threads run.
        drop(lent);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyAny>) {
        self.release();
    }

    fn __repr__(&self) -> String {
        let how = if self.mapped { "mapped" } else { "copied" };
        format!("<dafs.Loan of {} bytes, {how}>", self.len)
    }
}

fn of_parent() -> PyErr {
    PyBufferError::new_err("the loan belongs to the process that made it: ask for one here")
}

/// Bytes of a loan that lie together.
#[pyclass(frozen, module = "dafs._dafs")]
struct Piece {
    lent: Shared,
    index: usize,
}

#[pymethods]
impl Piece {
    #[allow(unsafe_code, reason = "the interpreter asks so")]
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let piece = this.get();
        let lent = piece.lent.get().ok_or_else(of_parent)?;
        let bytes = lent.pieces().nth(piece.index).unwrap_or_default();
        // SAFETY: the view comes from the interpreter; the loan keeps the memory, which is only read, as long as `this`.
        unsafe { sys::fill_read_view(view, this.as_any(), bytes, flags) }
    }
}
