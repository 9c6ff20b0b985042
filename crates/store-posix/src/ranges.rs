//! Ranges of files: how they are allocated, and what is.

use std::os::fd::OwnedFd;

use dafs_protocol::{FileExtent, Status};

use super::attr::{self, Stat};
use super::sys::{self, Errno, RawExtent};
use dafs_store::Extents;

/// fallocate(2) modes that mean something to the file systems of today.
const MODES: u32 = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNWRITTEN: u32 = 0x800;
const EXTENT_SHARED: u32 = 0x2000;

/// The range of fallocate(2), if it has a mode that is known.
pub(super) fn allocation(mode: u32, offset: u64, len: u64) -> Result<(i32, i64, i64), Status> {
    let mode = Some(mode).filter(|mode| mode & !MODES == 0).ok_or(Status::NotSupp)?;
    let mode = i32::try_from(mode).map_err(|_| Status::NotSupp)?;
    Ok((mode, attr::size(offset)?, attr::size(len)?))
}

/// By FIEMAP, or where the file system has none by its holes.
pub(super) fn extents(fd: &OwnedFd, offset: u64, len: u64, most: usize) -> Result<Extents, Status> {
    let end = offset.saturating_add(len);
    let mut raw = Vec::new();
    let mut at = offset;
    while at < end && raw.len() <= most {
        match sys::extents(fd, at, end - at, &mut raw) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno(libc::EOPNOTSUPP | libc::ENOTTY)) if raw.is_empty() => {
                return data(fd, offset, end, most);
            }
            Err(errno) => return Err(errno.into()),
        }
        match raw.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => {
                at = at.max(last.offset.saturating_add(last.len));
            }
            _ => break,
        }
    }
    let extent = |raw: &RawExtent| FileExtent {
        offset: raw.offset,
        len: raw.len,
        unwritten: raw.flags & EXTENT_UNWRITTEN != 0,
        shared: raw.flags & EXTENT_SHARED != 0,
    };
    let list = raw.iter().take(most).map(extent).collect();
    Ok(Extents { list, end: raw.len() <= most })
}

/// Data between holes.
fn data(fd: &OwnedFd, offset: u64, end: u64, most: usize) -> Result<Extents, Status> {
    let end = end.min(Stat::of(fd, false)?.attr().size);
    let mut list = Vec::new();
    let mut at = offset;
    while at < end {
        let start = match sys::lseek(fd, attr::size(at)?, libc::SEEK_DATA) {
            Ok(start) if start < end => start,
            Ok(_) | Err(Errno(libc::ENXIO)) => break,
            Err(errno) => return Err(errno.into()),
        };
        if list.len() == most {
            return Ok(Extents { list, end: false });
        }
        at = sys::lseek(fd, attr::size(start)?, libc::SEEK_HOLE)?.max(start + 1);
        list.push(FileExtent { offset: start, len: at - start, ..FileExtent::default() });
    }
    Ok(Extents { list, end: true })
}
