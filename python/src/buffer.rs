//! Memory that the network may use for as long as it likes: for calls that do not block.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dafs_fabric::{Anchor, Buffer};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::dlpack;
use crate::fork;
use crate::session::RawSession;
use crate::sys;

/// Memory, aligned to pages and zeroed, that is read into and written from without a copy. It is
/// a buffer: `memoryview(b)` and `numpy.asarray(b)` show it, and `torch.from_dlpack(b)`. That of a
/// session (`session.buffer(n)`) its server reaches as it is, where both are on one host.
///
/// While an asynchronous call has it, what it holds changes, and no other call gets it.
#[pyclass(frozen, name = "Buffer", module = "dafs._dafs")]
pub struct PyMemory {
    state: Mutex<State>,
    start: usize,
    len: usize,
    /// Keeps it where it is where a call does not give the buffer back.
    anchor: Option<Anchor>,
    /// Of the process that made it.
    generation: u32,
}

enum State {
    Here(Buffer),
    InFlight,
    /// The network kept it, since the call was given up.
    Lost,
}

impl PyMemory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a call, which gives it back.
    pub fn take(&self) -> PyResult<Buffer> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::InFlight) {
            State::Here(buffer) if self.generation == fork::generation() => Ok(buffer),
            here @ State::Here(_) => {
                *state = here;
                Err(PyBufferError::new_err(
                    "the buffer belongs to the process that made it: make one of this session",
                ))
            }
            State::InFlight => Err(PyBufferError::new_err(
                "the buffer is in use by another call: await that one first",
            )),
            State::Lost => {
                *state = State::Lost;
                Err(PyBufferError::new_err(
                    "the network kept the buffer when its call was given up: make a new one",
                ))
            }
        }
    }

    /// After a call.
    pub fn put_back(&self, buffer: Option<Buffer>) {
        *self.state() = buffer.map_or(State::Lost, State::Here);
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.len
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }
}

impl Drop for PyMemory {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // It belongs to the parent, whose locks are as they were at the fork.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(state, State::Lost));
            std::mem::forget(self.anchor.take());
        }
    }
}

#[pymethods]
impl PyMemory {
    /// `session`: whose calls are to use it.
    #[new]
    #[pyo3(signature = (size, session=None))]
    fn new(
        py: Python<'_>,
        size: usize,
        session: Option<PyRef<'_, RawSession>>,
    ) -> PyResult<PyMemory> {
        if size == 0 || isize::try_from(size).is_err() {
            return Err(PyValueError::new_err(format!("a buffer of {size} bytes")));
        }
        let none = |error: &dyn std::fmt::Display| {
            PyMemoryError::new_err(format!("a buffer of {size} bytes: {error}"))
        };
        let mut buffer = match session {
            Some(session) => {
                session.link.session(py, None)?.buffer(size).map_err(|error| none(&error))?
            }
            None => Buffer::new(size).map_err(|error| none(&error))?,
        };
        let start = buffer.as_mut_ptr().expose_provenance();
        let anchor = Some(buffer.anchor());
        let (state, generation) = (Mutex::new(State::Here(buffer)), fork::generation());
        Ok(PyMemory { state, start, len: size, anchor, generation })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// An asynchronous call has it.
    #[getter]
    fn in_flight(&self) -> bool {
        !matches!(*self.state(), State::Here(_))
    }

    #[allow(unsafe_code, reason = "the interpreter asks so")]
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = this.get();
        // SAFETY: the view comes from the interpreter; the anchor keeps the memory as long as `this`.
        unsafe { sys::fill_view(view, this.as_any(), memory.start(), memory.len, flags) }
    }

    /// For `from_dlpack` of NumPy, torch and others: bytes, on the CPU, never copied.
    #[pyo3(signature = (*, dl_device=None, copy=None, **_other))]
    fn __dlpack__<'py>(
        this: &Bound<'py, Self>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
        _other: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if copy == Some(true) || dl_device.is_some_and(|(kind, _)| kind != dlpack::DEVICE_CPU) {
            let text =
                "a dafs.Buffer is shown where it is: copy what from_dlpack gives without copy=";
            return Err(PyBufferError::new_err(text));
        }
        dlpack::capsule(this.as_any(), this.get().start(), this.get().len)
    }

    /// The CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::DEVICE_CPU, 0)
    }

    fn __repr__(&self) -> String {
        format!("<dafs.Buffer of {} bytes>", self.len)
    }
}
