//! Memory as a DLPack tensor: one dimension of bytes.

use std::ffi::{c_char, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// `kDLCPU`.
pub const DEVICE_CPU: i32 = 1;
/// `kDLUInt`.
const UNSIGNED: u8 = 1;

/// `DLTensor` of dlpack.h.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of dlpack.h, and what it needs.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    // SAFETY: dlpack.h has its consumer call it once.
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    shape: i64,
    owner: Option<Py<PyAny>>,
}

/// Frees what `capsule` made.
///
/// # Safety
/// It is that, or null, and nobody uses it any more.
// SAFETY: what it is called with is its consumer's duty, and `destroy`'s.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if managed.is_null() {
        return;
    }
    // SAFETY: it came from a box, and its consumer deletes it once.
    let managed = unsafe { Box::from_raw(managed) };
    // Consumers may do so without the interpreter's lock.
    // After its end there are no objects any more.
    let _ = Python::try_attach(|_| drop(managed.owner));
}

/// Of a capsule that nobody consumed.
///
/// # Safety
/// The interpreter calls it, with a capsule that `capsule` made.
// SAFETY: no one else has it: it is given to that capsule only.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    const NAME: *const c_char = c"dltensor".as_ptr();
    // SAFETY: called with the capsule that dies; a consumed one has another name.
    let unused = unsafe { ffi::PyCapsule_IsValid(capsule, NAME) } != 0;
    if !unused {
        return;
    }
    // SAFETY: valid under this name, as just asked.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME) };
    // SAFETY: it points to what `capsule` made, which nobody consumed.
    unsafe { delete(managed.cast()) };
}

/// A capsule `dltensor` over `len` bytes at `start`, which `owner` keeps.
pub fn capsule<'py>(
    owner: &Bound<'py, PyAny>,
    start: *mut u8,
    len: usize,
) -> PyResult<Bound<'py, PyCapsule>> {
    let mut managed = Box::new(Managed {
        tensor: Tensor {
            data: start.cast(),
            device_type: DEVICE_CPU,
            device_id: 0,
            dimensions: 1,
            code: UNSIGNED,
            bits: 8,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
        context: std::ptr::null_mut(),
        deleter: Some(delete),
        shape: i64::try_from(len)?,
        owner: Some(owner.clone().unbind()),
    });
    managed.tensor.shape = &raw mut managed.shape;
    let managed = Box::into_raw(managed);
    // SAFETY: attached; the name is static, and the destructor fits what the capsule has.
    let made = unsafe { ffi::PyCapsule_New(managed.cast(), c"dltensor".as_ptr(), Some(destroy)) };
    if made.is_null() {
        // SAFETY: no capsule took it.
        unsafe { delete(managed) };
        return Err(PyErr::fetch(owner.py()));
    }
    // SAFETY: a new reference, as just checked.
    let capsule = unsafe { Bound::from_owned_ptr(owner.py(), made) };
    Ok(capsule.cast_into::<PyCapsule>()?)
}
