//! What went wrong.

use std::ffi::c_char;

use crate::border::count;
use crate::failure::Failure;
use crate::pointer::Outs;
use crate::types::DAP_VERSION;

/// Words for the last error of this thread: what is wrong, and what to do
///
/// Puts the words for the last call of this thread that failed into buffer, at most size bytes with the
/// NUL at their end, and cut where there is no room. A call that succeeds leaves them as they are; only
/// dap_wait, dap_test and dap_cg_wait put the words there of operations that failed, those of the last one,
/// and a callback finds those of its operation. Does not block.
///
/// Returns the bytes of the whole text without the NUL, 0 where nothing has failed; so dap_error_message(NULL,
/// 0) tells how much room is needed.
#[unsafe(no_mangle)]
pub extern "C" fn dap_error_message(buffer: Outs<c_char>, size: usize) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let text = Failure::last().map_or_else(String::new, |failure| failure.text());
        // A C text ends at its first NUL.
        let text = text.replace('\0', " ");
        if size > 0 && !buffer.is_null() {
            let cut = text.len().min(size - 1);
            let room = buffer.slice(cut + 1, "buffer")?;
            for (to, from) in room.iter_mut().zip(text.as_bytes().iter().take(cut).chain([&0])) {
                *to = from.cast_signed();
            }
        }
        Ok(i64::try_from(text.len()).unwrap_or(i64::MAX))
    })
}

/// Which of the errors that have no errno of their own the last one of this thread was
///
/// Errors with errno EIO may be of several kinds that a program treats differently: DAP_REASON_WRITES_LOST
/// (write again what was written since the last fsync), DAP_REASON_OUTCOME_UNKNOWN (look at what is there),
/// DAP_REASON_LOCKS_LOST (open and lock again). Any other number is the server's status. Does not block.
///
/// Returns the reason of the last call of this thread that failed, or 0: nothing failed, or the server has not
/// said it.
#[unsafe(no_mangle)]
pub extern "C" fn dap_error_reason() -> u32 {
    Failure::last().map_or(0, |failure| failure.reason)
}

/// The version of the library
///
/// A program that was compiled with DAP_VERSION works with every library of the same soname whose version is
/// not lower. Does not block.
///
/// Returns the version: 0x000100 is 0.1.0.
#[unsafe(no_mangle)]
pub extern "C" fn dap_version() -> u32 {
    DAP_VERSION
}
