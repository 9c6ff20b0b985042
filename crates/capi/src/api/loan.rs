//! Reading data where the server has it.

use std::ffi::c_void;
use std::sync::Arc;

use crate::border::{count, status};
use crate::failure::Outcome;
use crate::object::{LoanObject, Object};
use crate::operation::{file as named, length as checked};
use crate::pointer::Out;
use crate::table;
use crate::types::{dap_file_t, dap_loan_t};

fn loan(handle: u64) -> Outcome<Arc<LoanObject>> {
    table::get(handle, |object| match object {
        Object::Loan(loan) => Some(loan.clone()),
        _ => None,
    })
}

fn counted(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Reads data where the server has it
///
/// Up to length bytes (at most DAP_IO_BYTES_MAX) at offset of file, as they are now, are to be read in place: in the server's
/// cache, where the session goes by shared memory, the program may read the server's memory (its user is the
/// server's own, or root) and the data is cached. Where that is not so, or more is lent than the server lends at a time
/// (16 MiB to a connection, 64 MiB to a user, less of a small cache), they are copied into memory of the library: it is
/// the same for the program, and dap_loan_is_mapped tells. The handle is put into loan, and stays until dap_return, also
/// when the file or the session is closed; dap_loan_piece tells where the bytes are. Nobody changes them meanwhile: what is
/// written goes elsewhere.
///
/// They are for reading only. A child of fork(2) has neither the handle nor the memory: to look at it there ends the child.
///
/// Blocks.
///
/// Returns the bytes, fewer than length only at the end of the file, or: -EBADF for a handle, or a file that is not open for
/// reading; -EINVAL; -EFBIG; -EMFILE; -ENOMEM; -EIO; -ECANCELED, -ENOTCONN, -ECONNREFUSED as dap_read.
#[unsafe(no_mangle)]
pub extern "C" fn dap_lend(
    file: dap_file_t,
    offset: u64,
    length: usize,
    loan: Out<dap_loan_t>,
) -> i64 {
    count(|| {
        loan.check("loan")?;
        let len = checked(offset, length)?;
        let lent = named(file)?.file.lend(offset, len)?;
        let bytes = lent.len();
        loan.put(table::insert(Object::Loan(Arc::new(LoanObject(lent))))?);
        Ok(counted(bytes))
    })
}

/// Tells where bytes of a loan are
///
/// The address of the byte at offset of the loan (0: the first one that was asked for) is put into address. The bytes of a loan lie in
/// one or more places: so many as it returns lie together, and those after them are asked for by offset plus so many. They stay
/// until dap_return.
///
/// Does not block.
///
/// Returns the bytes that lie together from there on, 0 at the end of the loan, or: -EBADF for the handle; -EINVAL for null;
/// -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_loan_piece(
    loan: dap_loan_t,
    offset: u64,
    address: Out<*const c_void>,
) -> i64 {
    count(|| {
        address.check("address")?;
        let loan = self::loan(loan)?;
        let piece = loan.piece(usize::try_from(offset).unwrap_or(usize::MAX));
        address.put(piece.as_ptr().cast());
        Ok(counted(piece.len()))
    })
}

/// Tells whether a loan is in the server's cache
///
/// Does not block.
///
/// Returns 1 where all of it is, 0 where some was copied, or: -EBADF for the handle; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_loan_is_mapped(loan: dap_loan_t) -> i32 {
    let mapped = count(|| Ok(i64::from(self::loan(loan)?.is_mapped())));
    i32::try_from(mapped).unwrap_or(-libc::EIO)
}

/// Returns a loan
///
/// The program looks at its bytes no more. What is lent for long the server lacks.
///
/// Does not block.
///
/// Returns 0, or: -EBADF for the handle; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_return(loan: dap_loan_t) -> i32 {
    status(|| {
        table::remove(loan, |object| match object {
            Object::Loan(_) => Ok(()),
            _ => Err(table::bad_handle()),
        })
    })
}
