//! Data of large files between the disk and the caller's memory, past the kernel's page cache.
//!
//! Whole blocks of files above [`SMALL_BYTES`] go by a second descriptor with O_DIRECT: by the
//! ring of the calling thread, or by the pool where it has none. Small files, and the last block
//! of a file where it is a part of one, stay in the page cache. The kernel keeps both true to
//! each other: it writes back and drops what it has cached of a range before that range is read
//! or written directly.
//!
//! A direct transfer is tried once. Whatever is left of it (it was short, or cannot be direct
//! after all) is done by plain calls in the pool, which give the answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::{Buffer, SgList, sg_bytes};
use dafs_protocol::Status;

use super::attr::Stat;
use super::data::clear;
use super::direct_fd::{BLOCK, Descriptor, Descriptors, alignment};
use super::file::PosixFile;
use super::ring;
use super::sys::{self, Errno};
use super::transfer::{self, Completion, Transfer, Waiting, Way, in_pool};
use super::{BTRFS, EXT4, F2FS, OVERLAY, TMPFS, XFS};
use dafs_store::{Answer, Pending, ReadEnd, pending};

/// Files up to this size stay in the page cache: a create, a few bytes and an fsync are served
/// better there.
const SMALL_BYTES: u64 = 64 << 10;
/// File systems known to have O_DIRECT, for directories where it cannot be tried.
const DIRECT: [i64; 4] = [EXT4, XFS, BTRFS, F2FS];

/// Tries direct transfers in a directory; what is in their way.
pub(super) fn probe(dir: &OwnedFd, magic: i64, read_only: bool) -> Result<(), String> {
    ring::probe().map_err(|error| {
        format!("io_uring: {error} (see sysctl kernel.io_uring_disabled, seccomp rules)")
    })?;
    match magic {
        TMPFS => return Err("its file system is memory".into()),
        OVERLAY => return Err("it is an overlay".into()),
        _ => {}
    }
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_DIRECT;
    let fd = match sys::openat(dir, b".", flags, 0o600) {
        Ok(fd) if !read_only => fd,
        Ok(_) => return Ok(()),
        Err(Errno(libc::EINVAL)) => return Err("its file system has no O_DIRECT".into()),
        Err(_) if DIRECT.contains(&magic) => return Ok(()),
        Err(errno) => return Err(format!("cannot try O_DIRECT: {}", Status::from(errno))),
    };
    alignment(&fd).ok_or("its file system has no O_DIRECT for blocks of 4 KiB")?;
    let block = Buffer::new(BLOCK as usize).map_err(|error| error.to_string())?;
    let block = block.post();
    let written = sys::write_vectored(&fd, &[block.span().clone()], 0, 0);
    match written {
        Ok(bytes) if bytes as u64 == BLOCK => Ok(()),
        // A full disk is to be served too: files are removed so.
        Err(Errno(libc::ENOSPC | libc::EDQUOT)) if DIRECT.contains(&magic) => Ok(()),
        Ok(_) => Err("a direct write was cut short".into()),
        Err(errno) => Err(format!("a direct write: {}", Status::from(errno))),
    }
}

impl PosixFile {
    /// A descriptor for a transfer that can be direct: whole blocks within the file, or, of a
    /// write, at its end.
    pub(super) fn direct_for(
        &self,
        base: &OwnedFd,
        way: Way,
        offset: u64,
        memory: &SgList,
    ) -> Option<Arc<OwnedFd>> {
        if !self.inner().direct {
            return None;
        }
        let bytes = sg_bytes(memory) as u64;
        let end = offset.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok())?;
        let is_whole = |number: u64| number.is_multiple_of(BLOCK);
        let aligned = |span: &dafs_fabric::Span| is_whole(span.addr() | span.len() as u64);
        if bytes == 0 || !is_whole(offset) || !memory.iter().all(aligned) {
            return None;
        }
        let is_within = |size: u64| match way {
            Way::Read => size > SMALL_BYTES && end <= size / BLOCK * BLOCK,
            Way::Write => size.max(end) > SMALL_BYTES,
        };
        // A file that was cut since ends the transfer early, which is seen to.
        if !is_within(self.direct.size.load(Ordering::Relaxed)) {
            let size = Stat::of(base, true).ok()?.attr().size;
            self.direct.size.store(size, Ordering::Relaxed);
            if !is_within(size) {
                return None;
            }
        }
        let descriptor = self.descriptor(base, way)?;
        let fits = (offset | end).is_multiple_of(descriptor.align);
        fits.then(|| descriptor.fd.clone())
    }

    fn descriptor(&self, base: &OwnedFd, way: Way) -> Option<&Descriptor> {
        let Descriptors { reader, writer, .. } = &self.direct;
        let (known, access) = match way {
            Way::Write => (writer, libc::O_RDWR),
            Way::Read => match writer.get() {
                Some(Some(both)) => return Some(both),
                _ => (reader, libc::O_RDONLY),
            },
        };
        if known.get().is_none() {
            let _server = self.inner().identities.as_server().ok()?;
            // What is in the way now, as too many open files, may not be the next time.
            let opened = Descriptor::open(base, access).ok()?;
            known.get_or_init(|| opened);
        }
        known.get()?.as_ref()
    }

    /// Reads by the descriptor that [`direct_for`](PosixFile::direct_for) gave.
    pub(super) fn read_direct(
        &self,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        offset: u64,
        into: SgList,
    ) -> Answer<usize> {
        let (completer, answer) = pending();
        self.begin(Way::Read, fd, base, (offset, into), Completion::Read(completer));
        answer
    }

    /// As [`read_direct`](PosixFile::read_direct), for who is told of the end.
    pub(super) fn read_direct_then(
        &self,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        (offset, into): (u64, SgList),
        end: ReadEnd,
    ) {
        self.begin(Way::Read, fd, base, (offset, into), Completion::Told(end));
    }

    /// Writes by the descriptor that [`direct_for`](PosixFile::direct_for) gave.
    pub(super) fn write_direct(
        &self,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        (offset, from): (u64, SgList),
        clear_privileges: bool,
    ) -> Answer<()> {
        if clear_privileges {
            let cleared = self.inner().identities.as_server().and_then(|_acting| clear(base));
            if let Err(status) = cleared {
                return Pending::ready(Err(status));
            }
        }
        let (completer, answer) = pending();
        self.begin(Way::Write, fd, base, (offset, from), Completion::Write(completer));
        answer
    }

    #[inline(always)]
    fn begin(
        &self,
        way: Way,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        (offset, memory): (u64, SgList),
        completer: Completion,
    ) {
        let owner = Waiting { inner: self.inner().clone(), fd: base.clone(), completer };
        let memory = transfer::memory(memory);
        if let Err(transfer) = ring::start(Transfer { way, fd, offset, memory, owner }) {
            in_pool(transfer);
        }
    }
}
