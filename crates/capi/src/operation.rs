//! Operations of the interface as calls of the client.

use std::sync::Arc;

use dafs_client::Call;
use dafs_fabric::Span;
use dafs_protocol::Stability;

use crate::failure::{Failure, Outcome};
use crate::group::{Group, Submission};
use crate::object::{FileObject, MemoryObject, Object, SessionObject};
use crate::table;
use crate::types::{
    DAP_IO_BYTES_MAX, DAP_OP_FDATASYNC, DAP_OP_FSYNC, DAP_OP_READ, DAP_OP_READ_LIST, DAP_OP_WRITE,
    DAP_OP_WRITE_LIST, DAP_SEGMENTS_MAX, DAP_WRITE_DATA, DAP_WRITE_STABLE, dap_op_t, dap_segment_t,
};

/// Data of one request is at least this, whatever the server grants.
const PIECE_BYTES_MIN: usize = 4096;

/// The session that a handle names.
///
/// # Errors
/// As [`table::get`].
pub fn session(handle: u64) -> Outcome<Arc<SessionObject>> {
    table::get(handle, |object| match object {
        Object::Session(session) => Some(session.clone()),
        _ => None,
    })
}

/// The file that a handle names.
///
/// # Errors
/// As [`table::get`].
#[inline]
pub fn file(handle: u64) -> Outcome<Arc<FileObject>> {
    table::get(handle, |object| match object {
        Object::File(file) => Some(file.clone()),
        _ => None,
    })
}

/// A part of the memory that a handle names.
///
/// # Errors
/// As [`table::get`]; `EINVAL`.
#[inline]
pub fn span(handle: u64, offset: u64, len: usize) -> Outcome<Span> {
    table::get(handle, |object| match object {
        Object::Memory(memory) => Some(memory.span(offset, len)),
        _ => None,
    })?
}

/// Memory is given back, if nobody uses it; `own`: which of the two kinds.
///
/// # Errors
/// `EBUSY`; `EINVAL` for memory of the other kind.
pub fn give_back(handle: u64, own: bool) -> Outcome<()> {
    let first = take_back(handle, own);
    if !matches!(&first, Err(failure) if failure.errno == libc::EBUSY) {
        return first;
    }
    // Networks keep memory registered that they know.
    let sessions = table::all(|object| match object {
        Object::Session(session) => Some(session.clone()),
        _ => None,
    })?;
    let whole = table::get(handle, |object| match object {
        Object::Memory(memory) => Some(memory.whole()),
        _ => None,
    })?;
    sessions.iter().for_each(|session| session.session.let_go(&whole));
    drop(whole);
    take_back(handle, own)
}

fn take_back(handle: u64, own: bool) -> Outcome<()> {
    table::remove(handle, |object| {
        let Object::Memory(memory) = object else { return Err(table::bad_handle()) };
        if memory.own != own {
            return Err(Failure::invalid(
                "dap_mem_free is for memory of dap_mem_alloc, dap_deregister_mem for that of dap_register_mem",
            ));
        }
        if MemoryObject::is_in_flight(memory) {
            let text = "the memory is in flight: take the results of what uses it first";
            return Err(Failure::new(libc::EBUSY, text));
        }
        Ok(())
    })
}

/// How durable a write is to be.
///
/// # Errors
/// `EINVAL`: unknown flags.
pub fn stability(flags: u32) -> Outcome<Stability> {
    match flags {
        0 => Ok(Stability::Unstable),
        DAP_WRITE_DATA => Ok(Stability::Data),
        DAP_WRITE_STABLE => Ok(Stability::File),
        _ => Err(Failure::invalid("flags of a write: 0, DAP_WRITE_DATA or DAP_WRITE_STABLE")),
    }
}

/// The bytes of a read or write that are moved: all, or as many as one call may.
///
/// # Errors
/// `EFBIG`: the range ends behind the last offset that a file can have.
#[inline]
pub fn length(offset: u64, len: usize) -> Outcome<usize> {
    let end = offset.checked_add(len as u64);
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(Failure::new(
            libc::EFBIG,
            "offset and length go beyond the largest file: they are at most 2^63 - 1 together",
        ));
    }
    Ok(len.min(DAP_IO_BYTES_MAX as usize))
}

/// Bytes that one request of the session may move.
fn piece_bytes(session: &SessionObject) -> usize {
    session.session.data_bytes_max()
}

/// One call that moves a whole span.
fn call_of(file: &FileObject, offset: u64, span: Span, write: Option<Stability>) -> Call {
    let file = file.file.clone();
    match write {
        None => Call::ReadInto { file, offset, span },
        Some(stability) => Call::WriteFrom { file, offset, span, stability },
    }
}

/// Begins what `op` says in a group of the same session; its name.
///
/// # Errors
/// `EINVAL`, `EBADF`, `EFBIG`; `EXDEV`: another session; `EAGAIN`: the group is full.
pub fn submit(
    group: &Group,
    session: &Arc<SessionObject>,
    op: &dap_op_t,
    segments: &[dap_segment_t],
) -> Outcome<u64> {
    let file = file(op.file)?;
    if !Arc::ptr_eq(&file.session, session) {
        let text = "the file is of another session than the group: submit it to a group of its own";
        return Err(Failure::new(libc::EXDEV, text));
    }
    let of = Submission { op: op.op, user: op.user };
    let write = match op.op {
        DAP_OP_WRITE | DAP_OP_WRITE_LIST => Some(stability(op.flags)?),
        _ if op.flags != 0 => return Err(Failure::invalid("flags of this operation must be 0")),
        _ => None,
    };
    match op.op {
        DAP_OP_READ | DAP_OP_WRITE => {
            let len = length(op.offset, usize::try_from(op.length).unwrap_or(usize::MAX))?;
            let span = span(op.mem, op.mem_offset, len)?;
            if (1..=PIECE_BYTES_MIN).contains(&len) {
                let bytes = u32::try_from(len).unwrap_or(u32::MAX);
                return group.submit_one(&of, call_of(&file, op.offset, span, write), bytes);
            }
            let parts = [(op.offset, span)];
            group.submit_many(&of, calls(&file, session, &parts, write))
        }
        DAP_OP_READ_LIST | DAP_OP_WRITE_LIST => {
            let parts = parts(segments)?;
            group.submit_many(&of, calls(&file, session, &parts, write))
        }
        DAP_OP_FSYNC | DAP_OP_FDATASYNC => {
            let data_only = op.op == DAP_OP_FDATASYNC;
            group.submit_one(&of, Call::Commit { file: file.file.clone(), data_only }, 0)
        }
        _ => Err(Failure::invalid("unknown operation: use one of DAP_OP_...")),
    }
}

/// The parts of a list: where in the file, and the memory.
///
/// # Errors
/// `EINVAL`, `EBADF`, `EFBIG`.
fn parts(segments: &[dap_segment_t]) -> Outcome<Vec<(u64, Span)>> {
    let mut left = DAP_IO_BYTES_MAX as usize;
    let mut parts = Vec::with_capacity(segments.len());
    for segment in segments {
        let len = usize::try_from(segment.length).unwrap_or(usize::MAX);
        let len = length(segment.offset, len)?;
        if len > left {
            return Err(Failure::invalid("the segments have more than DAP_IO_BYTES_MAX together"));
        }
        left -= len;
        parts.push((segment.offset, span(segment.mem, segment.mem_offset, len)?));
    }
    Ok(parts)
}

/// How many segments a list may have.
///
/// # Errors
/// `EINVAL`.
pub fn check_segments(count: u32) -> Outcome<usize> {
    if (1..=DAP_SEGMENTS_MAX).contains(&count) {
        Ok(count as usize)
    } else {
        Err(Failure::invalid("a list has 1 to DAP_SEGMENTS_MAX segments"))
    }
}

/// Calls of at most what one request may move.
fn calls<'a>(
    file: &'a FileObject,
    session: &SessionObject,
    parts: &'a [(u64, Span)],
    write: Option<Stability>,
) -> impl Iterator<Item = (Call, u32)> + 'a {
    let piece = piece_bytes(session);
    parts.iter().flat_map(move |(offset, span)| {
        (0..span.len()).step_by(piece).map(move |start| {
            let len = piece.min(span.len() - start);
            let bytes = u32::try_from(len).unwrap_or(u32::MAX);
            let call = call_of(file, offset + start as u64, span.part(start, len), write);
            (call, bytes)
        })
    })
}

/// Reads or writes a list, and waits for it: bytes that were moved without a gap.
///
/// # Errors
/// As [`submit`], and the session's.
pub fn transfer_list(
    handle: u64,
    segments: &[dap_segment_t],
    write: Option<Stability>,
) -> Outcome<u32> {
    let file = file(handle)?;
    let parts = parts(segments)?;
    let group = Group::new(&file.session.session, 1);
    let of = Submission { op: 0, user: 0 };
    let id = group.submit_many(&of, calls(&file, &file.session, &parts, write))?;
    match group.wait_one(id, None)? {
        Some(ended) => ended.result,
        None => Err(Failure::internal("a wait without a limit ended")),
    }
}
