//! Reads and writes that block.

use dafs_client::{Call, Error};

use super::record::stat_of;
use crate::border::{Records, count};
use crate::failure::{Failure, Outcome};
use crate::operation::{
    check_segments, file as named, length as checked, session as session_of, span, stability,
    transfer_list,
};
use crate::pointer::{Bytes, Items, Outs, Room, Text, Texts};
use crate::types::{
    DAP_NAMES_MAX, dap_file_t, dap_mem_t, dap_segment_t, dap_session_t, dap_stat_t,
};

fn counted(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Reads into registered memory
///
/// Reads up to length bytes (at most DAP_IO_BYTES_MAX) at offset of file into the memory that mem names, from mem_offset
/// on. The transport puts them there; the library copies nothing. Several calls may use one registered memory at a time;
/// what is in bytes that two of them write is one, or the other, or a mixture. The name is one of those in print of the
/// DAFS API of 2001; its arguments are ours.
///
/// Blocks.
///
/// Returns the bytes, fewer than length only at the end of the file, or: -EBADF for a handle, or a file that is not open for
/// reading; -EINVAL for a part that is not inside the memory; -EFBIG; -EIO; -ECANCELED where the session is closed meanwhile;
/// -ENOTCONN, -ECONNREFUSED where the server was not found again in time. After an error the bytes in memory are
/// undefined.
#[unsafe(no_mangle)]
pub extern "C" fn dap_read(
    file: dap_file_t,
    mem: dap_mem_t,
    mem_offset: u64,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        let len = checked(offset, length)?;
        let (file, span) = (named(file)?, span(mem, mem_offset, len)?);
        Ok(counted(file.file.read_span_at(&span, offset)?))
    })
}

/// Writes from registered memory
///
/// Writes length bytes (at most DAP_IO_BYTES_MAX) from the memory that mem names, from mem_offset on, at offset of file. With
/// flags 0 they are in the server's memory when it returns, and dap_fsync makes them durable; with DAP_WRITE_DATA or
/// DAP_WRITE_STABLE they are on disk. The name is one of those in print of the DAFS API of 2001; its arguments are ours.
///
/// Blocks.
///
/// Returns the bytes, or: -EBADF for a handle, or a file that is not open for writing; -EINVAL for a part that is not inside the
/// memory, or unknown flags; -EFBIG; -ENOSPC; -EIO; -ECANCELED, -ENOTCONN, -ECONNREFUSED as dap_read. After an error a part
/// may have been written.
#[unsafe(no_mangle)]
pub extern "C" fn dap_write(
    file: dap_file_t,
    mem: dap_mem_t,
    mem_offset: u64,
    length: usize,
    offset: u64,
    flags: u32,
) -> i64 {
    count(|| {
        let (stable, len) = (stability(flags)?, checked(offset, length)?);
        let (file, span) = (named(file)?, span(mem, mem_offset, len)?);
        Ok(counted(file.file.write_span_at(&span, offset, stable)?))
    })
}

/// Reads into any memory
///
/// As dap_read, into length bytes of buffer, which is the caller's and not used after the call.
///
/// Blocks.
///
/// Returns as dap_read.
#[unsafe(no_mangle)]
pub extern "C" fn dap_pread(file: dap_file_t, buffer: Room, length: usize, offset: u64) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let len = checked(offset, length)?;
        let file = named(file)?;
        Ok(counted(file.file.read_at(buffer.slice(len, "buffer")?, offset)?))
    })
}

/// Writes from any memory
///
/// As dap_write, from length bytes of buffer, which is the caller's and not used after the call.
///
/// Blocks.
///
/// Returns as dap_write.
#[unsafe(no_mangle)]
pub extern "C" fn dap_pwrite(
    file: dap_file_t,
    buffer: Bytes,
    length: usize,
    offset: u64,
    flags: u32,
) -> i64 {
    count(|| {
        let (stable, len) = (stability(flags)?, checked(offset, length)?);
        let file = named(file)?;
        Ok(counted(file.file.write_at_stable(buffer.slice(len, "buffer")?, offset, stable)?))
    })
}

/// Reads a list
///
/// Each of the segment_count segments (1 to DAP_SEGMENTS_MAX, of DAP_IO_BYTES_MAX bytes together) names bytes of the file and
/// where they go in registered memory. Their requests travel together.
///
/// Blocks.
///
/// Returns the bytes that were read without a gap, in the order of the list: fewer than were asked for where a segment goes
/// beyond the end of the file; or as dap_read.
#[unsafe(no_mangle)]
pub extern "C" fn dap_readv(
    file: dap_file_t,
    segments: Items<dap_segment_t>,
    segment_count: u32,
) -> i64 {
    count(|| {
        let count = check_segments(segment_count)?;
        Ok(transfer_list(file, segments.all(count, "segments")?, None)?.into())
    })
}

/// Writes a list
///
/// As dap_readv, in the other direction; the flags are those of dap_write. Segments that overlap in the file are written in any
/// order.
///
/// Blocks.
///
/// Returns the bytes, or as dap_write.
#[unsafe(no_mangle)]
pub extern "C" fn dap_writev(
    file: dap_file_t,
    segments: Items<dap_segment_t>,
    segment_count: u32,
    flags: u32,
) -> i64 {
    count(|| {
        let (stable, count) = (stability(flags)?, check_segments(segment_count)?);
        Ok(transfer_list(file, segments.all(count, "segments")?, Some(stable))?.into())
    })
}

/// Opens a file by its path, reads its beginning and closes it, in one round trip
///
/// Puts up to length bytes into buffer, at most the session's data_bytes_max (see dap_session_query), and the attributes into
/// stat, which may be null; otherwise the caller has set its field size. Where stat.bytes is more than the answer, the
/// file is longer. The buffer is the caller's, and not used after the call.
///
/// Blocks.
///
/// Returns the bytes, or: -ENOENT, -EACCES, -EISDIR; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_read_file(
    session: dap_session_t,
    path: Text,
    buffer: Room,
    length: usize,
    stat: Records<dap_stat_t>,
) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let stride = if stat.is_null() { None } else { Some(stat.stride("stat")?) };
        let into = buffer.slice(checked(0, length)?, "buffer")?;
        let session = session_of(session)?;
        let (attr, bytes) = session.session.read_file(&session.path(path.bytes("path")?), into)?;
        if let Some(stride) = stride {
            stat.put(0, stride, &stat_of(&attr));
        }
        Ok(counted(bytes))
    })
}

/// Which of many names exist, in one round trip
///
/// For each of the count names in paths (at most DAP_NAMES_MAX) puts into results 0 where it exists, -ENOENT (or -ENOTDIR)
/// where it does not, or the errno that kept the server from looking. Symbolic links are followed. All questions are under
/// way together: as many as the session has credits in a round trip.
///
/// Blocks.
///
/// Returns how many exist, or: -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_exists(
    session: dap_session_t,
    paths: Texts,
    count: u32,
    results: Outs<i32>,
) -> i64 {
    let mut results = results;
    crate::border::count(|| {
        if count > DAP_NAMES_MAX {
            return Err(Failure::invalid("at most DAP_NAMES_MAX names in a call"));
        }
        let names = count as usize;
        if names == 0 {
            return Ok(0);
        }
        let results = results.slice(names, "results")?;
        let session = session_of(session)?;
        let mut calls = Vec::with_capacity(names);
        for path in paths.all(names, "paths")? {
            let path = session.path(path.bytes("one of the paths")?);
            calls.push(Call::Stat { path, no_follow: false });
        }
        ask(&session.session.group(), calls, results)?;
        Ok(counted(results.iter().filter(|result| **result == 0).count()))
    })
}

/// Asks all, and puts what became of each into its result.
fn ask(group: &dafs_client::Group, calls: Vec<Call>, results: &mut [i32]) -> Outcome<()> {
    let mut left = calls.len();
    let mut calls = calls.into_iter().enumerate();
    let mut next = calls.next();
    while left > 0 {
        while let Some((index, call)) = next.take() {
            if let Err(call) = group.submit(index as u64, call) {
                next = Some((index, call));
                break;
            }
            next = calls.next();
        }
        let room = std::time::Duration::from_millis(1);
        if next.is_some() && group.outstanding() == 0 {
            group.wait_for_room(room);
            continue;
        }
        let wait = next.is_some().then_some(room);
        for done in group.wait(1, wait) {
            left -= 1;
            let errno = match done.result {
                Ok(_) => 0,
                Err(error @ Error::Status { .. }) => -error.errno(),
                // Nothing can be said about any of them.
                Err(error) => return Err(error.into()),
            };
            let index = usize::try_from(done.tag).unwrap_or(usize::MAX);
            if let Some(result) = results.get_mut(index) {
                *result = errno;
            }
        }
    }
    Ok(())
}
