//! The border to C: structures that carry their size, panics that a program must not see, and its forks.
//!
//! Its types are made by C alone, as those of `pointer`.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::failure::{Failure, Outcome};
use crate::pointer::Context;
use crate::types::{
    dap_dirent_t, dap_lock_t, dap_op_t, dap_options_t, dap_result_t, dap_session_info_t,
    dap_setattr_t, dap_stat_t, dap_statfs_t,
};

/// A structure that begins with its size, made of numbers and pointers: any bytes are one.
///
/// # Safety
/// `repr(C)`, without padding; the first field is a `u32` with the structure's size; all bytes are valid.
pub unsafe trait Record: Copy {
    /// Bytes it had at first: programs that were compiled then say that.
    const BYTES_MIN: usize = size_of::<Self>();
}

// SAFETY: as the trait wants it: see `types.rs`, whose tests look for padding.
unsafe impl Record for dap_options_t {}
// SAFETY: as above.
unsafe impl Record for dap_session_info_t {
    const BYTES_MIN: usize = std::mem::offset_of!(dap_session_info_t, optimistic_hits);
}
// SAFETY: as above.
unsafe impl Record for dap_stat_t {}
// SAFETY: as above.
unsafe impl Record for dap_setattr_t {}
// SAFETY: as above.
unsafe impl Record for dap_statfs_t {}
// SAFETY: as above.
unsafe impl Record for dap_dirent_t {}
// SAFETY: as above.
unsafe impl Record for dap_lock_t {}
// SAFETY: as above.
unsafe impl Record for dap_op_t {}
// SAFETY: as above.
unsafe impl Record for dap_result_t {}

/// Bytes of a structure of a later version.
const RECORD_BYTES_MAX: usize = 4096;

/// A structure with its size that the program filled.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Record> In<T> {
    /// `None` for null.
    ///
    /// # Errors
    /// `EINVAL` and `E2BIG` for a size that cannot be.
    pub fn optional(&self) -> Outcome<Option<T>> {
        if self.0.is_null() { Ok(None) } else { read(self.0).map(Some) }
    }

    /// As [`optional`](Self::optional).
    ///
    /// # Errors
    /// Also `EINVAL` for null.
    pub fn get(&self, what: &str) -> Outcome<T> {
        self.optional()?.ok_or_else(|| Failure::null(what))
    }
}

/// A structure with its size, or an array of them, that the library fills.
#[repr(transparent)]
pub struct Records<T>(*mut T);

impl<T: Record> Records<T> {
    /// Fails where nothing can be put there. Bytes of each: as the first one says.
    ///
    /// # Errors
    /// `EINVAL` for null, or a size that cannot be.
    pub fn stride(&self, what: &str) -> Outcome<usize> {
        if self.0.is_null() {
            return Err(Failure::null(what));
        }
        size_of_record(self.0)
    }

    /// True for null: the program does not want it.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The one with this index, which says the size of the first one, too.
    ///
    /// # Errors
    /// As [`In::get`].
    pub fn get(&self, index: usize, stride: usize) -> Outcome<T> {
        let record = self.at(index, stride);
        if size_of_record(record)? != stride {
            let text = "the structures of an array have the same 'size', that of the first one";
            return Err(Failure::invalid(text));
        }
        read(record)
    }

    fn at(&self, index: usize, stride: usize) -> *mut T {
        self.0.wrapping_byte_add(index * stride)
    }

    /// Puts it at an index, as much of it as there is room for, with the size that was there.
    pub fn put(&self, index: usize, stride: usize, value: &T) {
        let size = std::mem::size_of::<u32>();
        let bytes = stride.min(std::mem::size_of::<T>()).saturating_sub(size);
        let from = std::ptr::from_ref(value).cast::<u8>().wrapping_add(size);
        let to = self.at(index, stride).cast::<u8>().wrapping_add(size);
        // SAFETY: `stride` bytes are there, as the program said; the value has no padding.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
}

/// The size that a structure says it has.
fn size_of_record<T: Record>(record: *const T) -> Outcome<usize> {
    // SAFETY: not null; a record begins with its size.
    let size = unsafe { record.cast::<u32>().read_unaligned() } as usize;
    let wrong = "the field 'size' of the structure must be its sizeof";
    if (T::BYTES_MIN..=RECORD_BYTES_MAX).contains(&size) {
        Ok(size)
    } else {
        Err(Failure::invalid(wrong))
    }
}

fn read<T: Record>(record: *const T) -> Outcome<T> {
    let size = size_of_record(record)?;
    let known = std::mem::size_of::<T>().min(size);
    let rest = record.cast::<u8>().wrapping_add(known);
    // SAFETY: the structure has `size` bytes, as it says.
    let rest = unsafe { std::slice::from_raw_parts(rest, size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let text =
            "the structure is of a later version of the library, and asks for what this one lacks";
        return Err(Failure::new(libc::E2BIG, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have so many bytes, the one by its size and the other by its type.
    unsafe { std::ptr::copy_nonoverlapping(record.cast::<u8>(), value.as_mut_ptr().cast(), known) };
    // SAFETY: all bytes were just written, or are zero, and any bytes are one.
    Ok(unsafe { value.assume_init() })
}

/// A function of the program that is told of what ended, and what it gets back with it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Callback(Option<extern "C" fn(context: Context, result: *const dap_result_t)>);

impl Callback {
    /// False for null.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Calls it.
    pub fn call(&self, context: Context, result: &dap_result_t) {
        if let Some(function) = self.0 {
            function(context, result);
        }
    }
}

/// Runs the body of an entry that answers a number; a panic becomes `EIO`.
#[inline]
pub fn count(body: impl FnOnce() -> Outcome<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => i64::from(failure.tell()),
        Err(panic) => i64::from(internal(panic)),
    }
}

/// As [`count`], of one that answers 0.
#[inline]
pub fn status(body: impl FnOnce() -> Outcome<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure.tell(),
        Err(panic) => internal(panic),
    }
}

#[cold]
fn internal(panic: Box<dyn std::any::Any + Send>) -> i32 {
    let text = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.as_str(),
        (None, Some(text)) => text,
        (None, None) => "a panic",
    };
    let failure = Failure::internal(text);
    // What was thrown may do anything when it is dropped.
    std::mem::forget(panic);
    failure.tell()
}

/// Once for the process: panics of the library's threads print nothing, and children learn that they
/// are children.
pub fn prepare(forked: extern "C" fn()) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|_| {}));
        // SAFETY: the function only adds to a number, and is there as long as the library.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}
