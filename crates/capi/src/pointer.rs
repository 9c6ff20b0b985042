//! Pointers that a program gave.
//!
//! These types are made by C alone, from the arguments of a call. Each function's manual says what a
//! pointer must be good for, and for how long: that is what the blocks here rely on. A null pointer
//! is found, any other wrong one cannot be.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use dafs_fabric::Arena;

use crate::failure::{Failure, Outcome};

/// A text that ends with NUL, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Without the NUL; `None` for null.
    pub fn optional(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null; C gave a text that ends with NUL and stays as it is for the call.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// As [`optional`](Self::optional).
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn bytes(&self, what: &str) -> Outcome<&[u8]> {
        self.optional().ok_or_else(|| Failure::null(what))
    }
}

/// An array of texts.
#[repr(transparent)]
pub struct Texts(*const *const c_char);

impl Texts {
    /// All of them; the caller looked at `count`.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn all(&self, count: usize, what: &str) -> Outcome<Vec<Text>> {
        check_array(self.0, what)?;
        // SAFETY: not null, aligned; C gave so many pointers.
        let texts = unsafe { std::slice::from_raw_parts(self.0, count) };
        Ok(texts.iter().map(|text| Text(*text)).collect())
    }
}

/// Where one number goes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Fails where nothing can be put there: before anything is done.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn check(&self, what: &str) -> Outcome<()> {
        if self.0.is_null() { Err(Failure::null(what)) } else { Ok(()) }
    }

    /// Puts it there; nothing where it is null.
    pub fn put(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null; C gave room for one.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// Where an array of numbers goes.
#[repr(transparent)]
pub struct Outs<T>(*mut T);

impl<T: Copy> Outs<T> {
    /// True for null: the program does not want them.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Room for `count`, which the caller looked at.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn slice(&mut self, count: usize, what: &str) -> Outcome<&mut [T]> {
        check_array(self.0, what)?;
        // SAFETY: not null, aligned; C gave room for so many, which it initialized or which are plain numbers.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, count) })
    }
}

/// An array of structures of a size that never changes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Items<T>(*const T);

impl<T: Copy> Items<T> {
    /// All of them; the caller looked at `count`.
    ///
    /// # Errors
    /// `EINVAL` for null.
    pub fn all(&self, count: usize, what: &str) -> Outcome<&[T]> {
        check_array(self.0, what)?;
        // SAFETY: not null, aligned; C gave so many.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// Memory that is only read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bytes(*const c_void);

impl Bytes {
    /// So many of them.
    ///
    /// # Errors
    /// `EINVAL` for null, unless it is of no bytes; `EFBIG` for more than there can be.
    pub fn slice(&self, len: usize, what: &str) -> Outcome<&[u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        check_memory(self.0, len, what)?;
        // SAFETY: not null; C gave so many bytes, which stay as they are for the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }
}

/// Memory that is written.
#[repr(transparent)]
pub struct Room(*mut c_void);

impl Room {
    /// So much of it.
    ///
    /// # Errors
    /// As [`Bytes::slice`].
    pub fn slice(&mut self, len: usize, what: &str) -> Outcome<&mut [u8]> {
        if len == 0 {
            return Ok(&mut []);
        }
        check_memory(self.0, len, what)?;
        // SAFETY: not null; C gave room for so many bytes, which nobody else uses in the call.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }

    /// It as memory that a network may touch, until the program takes it back.
    ///
    /// # Errors
    /// `EINVAL`, `EFBIG`.
    pub fn arena(&self, len: usize) -> Outcome<Arc<Arena>> {
        check_memory(self.0, len, "the memory")?;
        let start = NonNull::new(self.0.cast()).ok_or_else(|| Failure::null("the memory"))?;
        // SAFETY: C keeps the memory until `dap_deregister_mem` says that nobody uses it.
        let arena = unsafe { Arena::foreign(start, len) };
        arena.map_err(|_| Failure::invalid("memory of no bytes: register at least one"))
    }
}

fn check_array<T>(start: *const T, what: &str) -> Outcome<()> {
    if start.is_null() {
        return Err(Failure::null(what));
    }
    if !start.is_aligned() {
        let text = format!("{what} is not aligned: give the address of an array");
        return Err(Failure::about(libc::EINVAL, text));
    }
    Ok(())
}

fn check_memory(start: *const c_void, len: usize, what: &str) -> Outcome<()> {
    if start.is_null() {
        return Err(Failure::null(what));
    }
    if len > isize::MAX as usize || start.addr().checked_add(len).is_none() {
        return Err(Failure::new(
            libc::EFBIG,
            "more bytes than a program can have: look at the length",
        ));
    }
    Ok(())
}

/// A pointer that is the program's own affair.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Context(*mut c_void);

// SAFETY: it is handed back and never followed; the manual says from which thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
