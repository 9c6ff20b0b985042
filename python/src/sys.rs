//! What Rust cannot say safely: memory that Python objects lend, and what happens at a fork.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fork;

/// A view of an object's memory, given back when it is dropped.
struct View(Box<ffi::Py_buffer>);

impl View {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached to the interpreter, with a live object, and a view that stays in its box.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0;
        if failed { Err(PyErr::fetch(object.py())) } else { Ok(View(view)) }
    }

    fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: it was filled by PyObject_GetBuffer, and the thread is attached: views do not leave
        // the functions below.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}

/// Lends the memory of a writable object, contiguous, to `body`. Python programs that write to it
/// meanwhile change what `body` sees, as with every object that is read into.
pub fn lend_mut<R>(
    object: &Bound<'_, PyAny>,
    body: impl FnOnce(&mut [u8]) -> PyResult<R>,
) -> PyResult<R> {
    let view = View::of(object, ffi::PyBUF_WRITABLE)?;
    if view.0.readonly != 0 {
        return Err(PyBufferError::new_err("a writable buffer is needed"));
    }
    let (start, len) = (view.0.buf.cast::<u8>(), view.len());
    if len == 0 {
        return body(&mut []);
    }
    // SAFETY: the exporter vouches for `len` writable bytes until the view is released.
    body(unsafe { std::slice::from_raw_parts_mut(start, len) })
}

/// Lends the memory of an object, contiguous, to `body`.
pub fn lend<R>(object: &Bound<'_, PyAny>, body: impl FnOnce(&[u8]) -> PyResult<R>) -> PyResult<R> {
    let view = View::of(object, ffi::PyBUF_SIMPLE)?;
    let (start, len) = (view.0.buf.cast::<u8>(), view.len());
    if len == 0 {
        return body(&[]);
    }
    // SAFETY: the exporter vouches for `len` bytes until the view is released.
    body(unsafe { std::slice::from_raw_parts(start, len) })
}

/// Fills in a view of `len` bytes at `start`, which `owner` keeps.
///
/// # Safety
/// `view` comes from the interpreter, which wants it filled in; the memory lives as long as `owner`.
pub unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    start: *mut u8,
    len: usize,
    flags: c_int,
) -> PyResult<()> {
    let len = isize::try_from(len)?;
    // SAFETY: passed on to the caller.
    let failed =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start.cast(), len, 0, flags) } != 0;
    if failed { Err(PyErr::fetch(owner.py())) } else { Ok(()) }
}

/// Fills in a view of `bytes`, which `owner` keeps, and which is only read.
///
/// # Safety
/// As of [`fill_view`].
pub unsafe fn fill_read_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    bytes: &[u8],
    flags: c_int,
) -> PyResult<()> {
    let (start, len) = (bytes.as_ptr().cast_mut().cast(), isize::try_from(bytes.len())?);
    // SAFETY: passed on to the caller; a view that is to be written is refused.
    let failed = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, 1, flags) } != 0;
    if failed { Err(PyErr::fetch(owner.py())) } else { Ok(()) }
}

extern "C" fn forked() {
    fork::in_child();
}

/// From now on `fork::in_child` is called in each process that is forked from this one.
pub fn hear_of_forks() -> bool {
    // SAFETY: the handler touches an atomic number only, and stays loaded: Python does not unload
    // modules.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) == 0 }
}

/// The number of the interpreter that runs, of those of the process.
pub fn interpreter(_py: Python<'_>) -> i64 {
    // SAFETY: attached to an interpreter, which is the one that is meant.
    let state = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: it is there as long as this thread is attached.
    unsafe { ffi::PyInterpreterState_GetID(state) }
}

/// This thread is the process's first, where Python runs signal handlers.
pub fn is_main_thread() -> bool {
    // SAFETY: takes nothing, cannot fail.
    let (thread, process) = (unsafe { libc::gettid() }, std::process::id());
    u32::try_from(thread) == Ok(process)
}
