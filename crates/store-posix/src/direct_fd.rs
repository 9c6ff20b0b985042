//! Descriptors with O_DIRECT, and what transfers by them must be multiples of.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::sys::{self, Errno};

/// Offsets, lengths and addresses of direct transfers are multiples of this: a page of the page
/// cache never has a part that goes directly.
pub(super) const BLOCK: u64 = 4096;
/// What direct transfers of this file must be multiples of; `None`: they are not possible.
pub(super) fn alignment(fd: &OwnedFd) -> Option<u64> {
    let stat = sys::statx(fd, b"", 0, libc::STATX_DIOALIGN).ok()?;
    if stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        // An older kernel does not tell.
        return Some(BLOCK);
    }
    let (memory, offset) = (u64::from(stat.stx_dio_mem_align), stat.stx_dio_offset_align.into());
    let fits = memory <= BLOCK && memory != 0 && offset != 0;
    fits.then_some(BLOCK.max(offset))
}

/// A descriptor with O_DIRECT of a file.
pub(super) struct Descriptor {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) align: u64,
}

impl Descriptor {
    /// `None`: the file system cannot, now or later.
    ///
    /// # Errors
    /// It could not be opened now.
    pub(super) fn open(base: &OwnedFd, access: i32) -> Result<Option<Descriptor>, Errno> {
        let flags = access | libc::O_DIRECT | libc::O_NOCTTY | libc::O_NONBLOCK;
        let fd = match sys::reopen(base, flags) {
            Ok(fd) => fd,
            Err(Errno(libc::EINVAL | libc::EOPNOTSUPP)) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let align = alignment(&fd);
        Ok(align.map(|align| Descriptor { fd: Arc::new(fd), align }))
    }
}

/// The descriptors with O_DIRECT of an open file, opened when they are first wanted.
#[derive(Default)]
pub(super) struct Descriptors {
    pub(super) reader: OnceLock<Option<Descriptor>>,
    pub(super) writer: OnceLock<Option<Descriptor>>,
    /// Of the file when it was last asked for.
    pub(super) size: AtomicU64,
}

impl Descriptors {
    /// The file is cut, or grows.
    pub(super) fn forget_size(&self) {
        self.size.store(0, Ordering::Relaxed);
    }
}
