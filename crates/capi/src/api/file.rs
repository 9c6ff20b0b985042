//! Open files.

use std::sync::Arc;

use dafs_client::{Advice, OpenOptions};
use dafs_protocol::SetAttr;

use super::record::{check_flags, set_attr_of, size as checked_size, stat_of};
use crate::border::{In, Records, count, status};
use crate::failure::{Failure, Outcome};
use crate::object::{FileObject, Object};
use crate::operation::{file as named, length, session as session_of};
use crate::pointer::{Bytes, Out, Text};
use crate::table;
use crate::types::{
    DAP_ADVISE_DONTNEED, DAP_ADVISE_RANDOM, DAP_ADVISE_SEQUENTIAL, DAP_ADVISE_WILLNEED,
    DAP_OPEN_APPEND, DAP_OPEN_CREATE, DAP_OPEN_EXCLUSIVE, DAP_OPEN_NOFOLLOW, DAP_OPEN_READ,
    DAP_OPEN_TRUNCATE, DAP_OPEN_WRITE, dap_file_t, dap_session_t, dap_setattr_t, dap_stat_t,
};

/// Opens a file
///
/// The path is below that of the session's URL. The flags are DAP_OPEN_READ, DAP_OPEN_WRITE or both, with
/// DAP_OPEN_CREATE, DAP_OPEN_EXCLUSIVE (with CREATE only), DAP_OPEN_TRUNCATE, DAP_OPEN_APPEND, DAP_OPEN_NOFOLLOW; mode
/// has the permission bits of a new file, which the library's user does not change by a umask. The handle is put
/// into file. It lives over lost connections and restarts of the server.
///
/// Blocks.
///
/// Returns 0, or: -ENOENT, -EEXIST, -EACCES, -EISDIR, -ELOOP, -EROFS, -ENOSPC; -EBADF for the session; -EINVAL; -EMFILE; the
/// session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_open(
    session: dap_session_t,
    path: Text,
    flags: u32,
    mode: u32,
    file: Out<dap_file_t>,
) -> i32 {
    status(|| {
        file.check("file")?;
        let options = open_options(flags, mode)?;
        let session = session_of(session)?;
        let opened = session.session.open(&session.path(path.bytes("path")?), options)?;
        let object = Object::File(Arc::new(FileObject { file: opened, session }));
        file.put(table::insert(object)?);
        Ok(())
    })
}

fn open_options(flags: u32, mode: u32) -> Outcome<OpenOptions> {
    check_flags(flags, 0x7f)?;
    if mode > 0o7777 {
        return Err(Failure::invalid("mode has permission bits only, up to 07777"));
    }
    let has = |flag| flags & flag != 0;
    if has(DAP_OPEN_EXCLUSIVE) && !has(DAP_OPEN_CREATE) {
        return Err(Failure::invalid("DAP_OPEN_EXCLUSIVE goes with DAP_OPEN_CREATE"));
    }
    if !has(DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_APPEND) {
        return Err(Failure::invalid("say DAP_OPEN_READ, DAP_OPEN_WRITE or both"));
    }
    Ok(OpenOptions {
        read: has(DAP_OPEN_READ),
        write: has(DAP_OPEN_WRITE),
        create: has(DAP_OPEN_CREATE),
        exclusive: has(DAP_OPEN_EXCLUSIVE),
        truncate: has(DAP_OPEN_TRUNCATE),
        append: has(DAP_OPEN_APPEND),
        no_follow: has(DAP_OPEN_NOFOLLOW),
        mode,
        ..OpenOptions::default()
    })
}

/// Closes a file
///
/// Waits for the calls on it that are under way; operations of groups that wait for room in the session, thousands behind others,
/// end with -EBADF. Local programs on the server then see what was written. The handle is
/// gone in any case but -EBADF and -ECHILD.
///
/// Blocks.
///
/// Returns 0, or: -EBADF; -EIO with DAP_REASON_WRITES_LOST where writes of this file were lost with the server; errors of
/// writes that came late.
#[unsafe(no_mangle)]
pub extern "C" fn dap_close(file: dap_file_t) -> i32 {
    status(|| {
        let object = table::remove(file, |object| match object {
            Object::File(file) => Ok(file.clone()),
            _ => Err(table::bad_handle()),
        })?;
        object.file.clone().close()?;
        Ok(())
    })
}

/// Attributes of an open file
///
/// Fills stat, whose field size the caller has set. Blocks.
///
/// Returns 0, or: -EBADF; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_fstat(file: dap_file_t, stat: Records<dap_stat_t>) -> i32 {
    status(|| {
        let stride = stat.stride("stat")?;
        stat.put(0, stride, &stat_of(&named(file)?.file.attr()?));
        Ok(())
    })
}

/// Changes attributes of an open file
///
/// Those that the bits in set->set name. Blocks.
///
/// Returns 0, or: -EPERM, -EACCES; -EBADF; -EINVAL; -EFBIG; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_fsetattr(file: dap_file_t, set: In<dap_setattr_t>) -> i32 {
    status(|| {
        let set = set_attr_of(&set.get("set")?)?;
        named(file)?.file.set_attr(set)?;
        Ok(())
    })
}

/// Truncates or extends an open file
///
/// To size bytes; what is added reads as zeros. Blocks.
///
/// Returns 0, or: -EBADF, also where it is not open for writing; -EFBIG; -ENOSPC; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_ftruncate(file: dap_file_t, size: u64) -> i32 {
    status(|| {
        let set = SetAttr { size: Some(checked_size(size)?), ..SetAttr::default() };
        named(file)?.file.set_attr(set)?;
        Ok(())
    })
}

/// Makes all that was written to a file durable
///
/// Whoever wrote it, with the attributes. Blocks.
///
/// Returns 0, or: -EBADF; -EIO with DAP_REASON_WRITES_LOST, once, where writes of this file were lost with the server
/// since the last dap_fsync: write them again, and call it again; errors of writes that came late.
#[unsafe(no_mangle)]
pub extern "C" fn dap_fsync(file: dap_file_t) -> i32 {
    status(|| Ok(named(file)?.file.commit()?))
}

/// As dap_fsync, without attributes that reading does not need
///
/// Blocks.
///
/// Returns as dap_fsync.
#[unsafe(no_mangle)]
pub extern "C" fn dap_fdatasync(file: dap_file_t) -> i32 {
    status(|| Ok(named(file)?.file.sync_data()?))
}

/// Hands what was written to the server's file system
///
/// So that local programs there see it, and errors that come late are told. It is not durable: see dap_fsync. Blocks.
///
/// Returns as dap_fsync.
#[unsafe(no_mangle)]
pub extern "C" fn dap_flush(file: dap_file_t) -> i32 {
    status(|| Ok(named(file)?.file.flush()?))
}

/// Writes at the end of a file
///
/// Writes all length bytes of buffer, and puts where they went into offset, which may be null. It is one step up to the
/// session's data_bytes_max, and cut above that. The buffer is the caller's, and not used after the call. Blocks.
///
/// Returns the bytes that were written, or: -EBADF; -EINVAL; -EFBIG; -ENOSPC; -EIO with DAP_REASON_OUTCOME_UNKNOWN, where it
/// may have been written; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_append(
    file: dap_file_t,
    buffer: Bytes,
    length: usize,
    offset: Out<u64>,
) -> i64 {
    count(|| {
        let len = crate::operation::length(0, length)?;
        let bytes = buffer.slice(len, "buffer")?;
        offset.put(named(file)?.file.append(bytes)?);
        Ok(i64::try_from(len).unwrap_or(i64::MAX))
    })
}

/// Tells the server how a range of a file will be used
///
/// The advice is one of DAP_ADVISE_SEQUENTIAL and DAP_ADVISE_RANDOM, which are about the open file, and
/// DAP_ADVISE_WILLNEED and DAP_ADVISE_DONTNEED, about length bytes from offset on (0: to the end). It is best effort. A
/// call reads a part of a large range in: go on behind it. Blocks until the server has heard.
///
/// Returns the bytes from offset on that are cached or being read in, or that were dropped; or: -EBADF; -EINVAL; the
/// session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_advise(file: dap_file_t, offset: u64, length: u64, advice: u32) -> i64 {
    count(|| {
        let advice = match advice {
            DAP_ADVISE_SEQUENTIAL => Advice::Sequential,
            DAP_ADVISE_RANDOM => Advice::Random,
            DAP_ADVISE_WILLNEED => Advice::WillNeed,
            DAP_ADVISE_DONTNEED => Advice::DontNeed,
            _ => return Err(Failure::invalid("advice is one of DAP_ADVISE_...")),
        };
        check_range(offset, length)?;
        let advised = named(file)?.file.advise(offset, length, advice)?;
        Ok(i64::try_from(advised.bytes).unwrap_or(i64::MAX))
    })
}

fn check_range(offset: u64, len: u64) -> Outcome<()> {
    length(offset, usize::try_from(len).unwrap_or(usize::MAX)).map(drop)
}

/// Allocates space, punches holes, zeroes: as fallocate(2)
///
/// For length bytes from offset on. The mode is 0 to allocate, 1 not to change the size, 3 to punch a hole, 0x10 to zero.
/// Blocks.
///
/// Returns 0, or: -EBADF; -EINVAL; -EFBIG; -ENOSPC; -EOPNOTSUPP where the server's file system cannot; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_allocate(file: dap_file_t, mode: u32, offset: u64, length: u64) -> i32 {
    status(|| {
        check_range(offset, length)?;
        named(file)?.file.fallocate(mode, offset, length)?;
        Ok(())
    })
}

/// Where data begins
///
/// At or after offset. Blocks.
///
/// Returns the offset, or: -ENXIO where only a hole follows; -EBADF; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_seek_data(file: dap_file_t, offset: u64) -> i64 {
    count(|| place(named(file)?.file.seek_data(checked_size(offset)?)?))
}

/// Where a hole begins
///
/// At or after offset; the end of a file counts as one. Blocks.
///
/// Returns the offset, or: -ENXIO where offset is behind the end; -EBADF; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_seek_hole(file: dap_file_t, offset: u64) -> i64 {
    count(|| place(named(file)?.file.seek_hole(checked_size(offset)?)?))
}

fn place(found: Option<u64>) -> Outcome<i64> {
    let nothing = || Failure::new(libc::ENXIO, "nothing of this kind follows in the file");
    found.and_then(|offset| i64::try_from(offset).ok()).ok_or_else(nothing)
}

/// Copies within the server
///
/// Of length bytes from offset of file on to to_offset of to, a file of the same session, as many as the server does in one
/// call: go on behind them. Blocks.
///
/// Returns the bytes, 0 where the source ends, or: -EBADF; -EXDEV for a file of another session; -EFBIG; -ENOSPC; the
/// session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_copy_range(
    file: dap_file_t,
    offset: u64,
    to: dap_file_t,
    to_offset: u64,
    length: u64,
) -> i64 {
    count(|| {
        check_range(offset, length)?;
        check_range(to_offset, length)?;
        let (file, to) = (named(file)?, named(to)?);
        let bytes = file.file.copy_range(offset, &to.file, to_offset, length)?;
        Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
    })
}
