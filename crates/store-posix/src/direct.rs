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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dafs_fabric::{Buffer, SgList, sg_bytes};
use dafs_protocol::Status;

use super::attr::Stat;
use super::file::{self, PosixFile};
use super::ring::{self, Transfer, Way};
use super::sys::{self, Errno};
use super::{BTRFS, EXT4, F2FS, OVERLAY, Shared, TMPFS, XFS};
use dafs_store::{Answer, Completer, Pending, pending};

/// Files up to this size stay in the page cache: a create, a few bytes and an fsync are served
/// better there.
const SMALL_BYTES: u64 = 64 << 10;
/// Offsets, lengths and addresses of direct transfers are multiples of this: a page of the page
/// cache never has a part that goes directly.
const BLOCK: u64 = 4096;
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

/// What direct transfers of this file must be multiples of; `None`: they are not possible.
fn alignment(fd: &OwnedFd) -> Option<u64> {
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
struct Descriptor {
    fd: Arc<OwnedFd>,
    align: u64,
}

impl Descriptor {
    /// `None`: the file system cannot, now or later.
    ///
    /// # Errors
    /// It could not be opened now.
    fn open(base: &OwnedFd, access: i32) -> Result<Option<Descriptor>, Errno> {
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
    reader: OnceLock<Option<Descriptor>>,
    writer: OnceLock<Option<Descriptor>>,
    /// Of the file when it was last asked for.
    size: AtomicU64,
}

impl Descriptors {
    /// The file is cut, or grows.
    pub(super) fn forget_size(&self) {
        self.size.store(0, Ordering::Relaxed);
    }
}

/// Who waits for a transfer, and what finishes it where it ends early.
pub(super) struct Waiting {
    inner: Shared,
    /// Of the page cache.
    fd: Arc<OwnedFd>,
    completer: Completion,
}

enum Completion {
    Read(Completer<Result<usize, Status>>),
    Write(Completer<Result<(), Status>>),
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
        let _server = self.inner().identities.as_server().ok()?;
        let Descriptors { reader, writer, .. } = &self.direct;
        let (known, access) = match way {
            Way::Write => (writer, libc::O_RDWR),
            Way::Read => match writer.get() {
                Some(Some(both)) => return Some(both),
                _ => (reader, libc::O_RDONLY),
            },
        };
        if known.get().is_none() {
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

    /// Writes by the descriptor that [`direct_for`](PosixFile::direct_for) gave.
    pub(super) fn write_direct(
        &self,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        (offset, from): (u64, SgList),
        clear_privileges: bool,
    ) -> Answer<()> {
        if clear_privileges {
            let cleared = self.inner().identities.as_server().and_then(|_acting| file::clear(base));
            if let Err(status) = cleared {
                return Pending::ready(Err(status));
            }
        }
        let (completer, answer) = pending();
        self.begin(Way::Write, fd, base, (offset, from), Completion::Write(completer));
        answer
    }

    fn begin(
        &self,
        way: Way,
        fd: Arc<OwnedFd>,
        base: &Arc<OwnedFd>,
        (offset, memory): (u64, SgList),
        completer: Completion,
    ) {
        let owner = Waiting { inner: self.inner().clone(), fd: base.clone(), completer };
        let transfer = Transfer { way, fd, offset, memory, owner };
        if let Some(transfer) = ring::start(transfer) {
            in_pool(transfer);
        }
    }
}

/// A transfer of a thread without a ring.
fn in_pool(transfer: Transfer<Waiting>) {
    let inner = transfer.owner.inner.clone();
    let shared = inner.clone();
    inner.pool.run(Box::new(move || {
        let server = match shared.identities.as_server() {
            Ok(server) => server,
            Err(status) => return finish(transfer, Err(status)),
        };
        let Transfer { way, fd, offset, memory, .. } = &transfer;
        let tried =
            i64::try_from(*offset).map_err(|_| Errno(libc::EINVAL)).and_then(|at| match way {
                Way::Read => sys::read_vectored(fd, memory, 0, at, 0),
                Way::Write => sys::write_vectored(fd, memory, 0, at),
            });
        drop(server);
        drop(shared);
        match tried {
            Ok(bytes) if bytes == sg_bytes(&transfer.memory) => ended_whole(transfer, bytes),
            Ok(bytes) => go_on(transfer, bytes),
            Err(errno) => failed(transfer, errno),
        }
    }));
}

/// A transfer came back from a ring.
pub(super) fn ended(transfer: Transfer<Waiting>, result: i32) {
    let bytes = usize::try_from(result);
    match bytes {
        Ok(bytes) if bytes == sg_bytes(&transfer.memory) => ended_whole(transfer, bytes),
        Ok(bytes) => hand_over(transfer, bytes),
        Err(_) => match Errno(result.wrapping_neg()) {
            errno if is_final(errno) => finish(transfer, Err(file::data_error(errno))),
            _ => hand_over(transfer, 0),
        },
    }
}

fn ended_whole(transfer: Transfer<Waiting>, bytes: usize) {
    transfer.owner.inner.direct_transfers.fetch_add(1, Ordering::Relaxed);
    finish(transfer, Ok(bytes));
}

fn failed(transfer: Transfer<Waiting>, errno: Errno) {
    match is_final(errno) {
        true => finish(transfer, Err(file::data_error(errno))),
        false => go_on(transfer, 0),
    }
}

/// Others mean that it was not tried, or cannot be direct.
fn is_final(Errno(errno): Errno) -> bool {
    !matches!(
        errno,
        libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::EAGAIN
            | libc::EINTR
            | libc::ECANCELED
            | libc::EBUSY
            | libc::ENOMEM
    )
}

fn hand_over(transfer: Transfer<Waiting>, done: usize) {
    let inner = transfer.owner.inner.clone();
    inner.pool.run(Box::new(move || go_on(transfer, done)));
}

/// Does what is left by plain calls, which may block.
fn go_on(transfer: Transfer<Waiting>, mut done: usize) {
    let Transfer { way, offset, memory, owner, .. } = &transfer;
    let outcome = match way {
        Way::Read => file::read(&owner.fd, *offset, memory, &mut done, 0).map_err(file::data_error),
        Way::Write => file::write(&owner.inner, &owner.fd, *offset, memory, &mut done),
    };
    finish(transfer, outcome.map(|()| done));
}

fn finish(transfer: Transfer<Waiting>, outcome: Result<usize, Status>) {
    let Transfer { memory, fd, owner: Waiting { inner, fd: base, completer }, .. } = transfer;
    // First, so that who waits for the answer is not the last to hold any of it.
    drop((memory, fd, base, inner));
    match completer {
        Completion::Read(completer) => completer.complete(outcome),
        Completion::Write(completer) => completer.complete(outcome.map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{HandleKey, PosixOptions, PosixStore};

    /// What who waits is told of a transfer of one block that ends so, in a file of two blocks.
    fn told(way: Way, result: i32) -> Result<usize, Status> {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 2 * BLOCK as usize]).expect("file");
        let options = PosixOptions { key: Some(HandleKey([7; 16])), ..PosixOptions::default() };
        let store = PosixStore::open(dir.path(), options).expect("store");
        let fd = |path: &Path| {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
            Arc::new(OwnedFd::from(file.expect("open")))
        };
        let memory = Buffer::new(BLOCK as usize).expect("buffer").post();
        let list = SgList::from_iter([memory.span().clone()]);
        let transfer = |completer| Transfer {
            way,
            fd: fd(&path),
            offset: BLOCK,
            memory: list,
            owner: Waiting { inner: store.inner.clone(), fd: fd(&path), completer },
        };
        let outcome = match way {
            Way::Read => {
                let (completer, answer) = pending();
                ended(transfer(Completion::Read(completer)), result);
                answer.wait()
            }
            Way::Write => {
                let (completer, answer) = pending();
                ended(transfer(Completion::Write(completer)), result);
                answer.wait().map(|()| 0)
            }
        };
        let rest = usize::try_from(result).unwrap_or(0);
        let moved = outcome.is_ok() && result != BLOCK as i32;
        let buffer = memory.take_back().expect("nobody has it");
        match way {
            Way::Read if moved => assert!(buffer[rest..].iter().all(|byte| *byte == 7)),
            Way::Write if moved => {
                let bytes = std::fs::read(&path).expect("file");
                let (kept, written) = bytes.split_at(BLOCK as usize + rest);
                assert!(kept.iter().all(|byte| *byte == 7));
                assert!(written.iter().all(|byte| *byte == 0));
            }
            _ => {}
        }
        outcome
    }

    #[test]
    fn a_ring_does_not_wait_for_ever_for_what_never_ends() {
        let dir = tempfile::tempdir().expect("directory");
        let options = PosixOptions { key: Some(HandleKey([7; 16])), ..PosixOptions::default() };
        let store = PosixStore::open(dir.path(), options).expect("store");
        if ring::probe().is_err() {
            return eprintln!("skipped: no io_uring here");
        }
        // A pipe into which nobody writes is a disk that does not answer.
        let (reader, writer) = std::io::pipe().expect("pipe");
        let fd = Arc::new(OwnedFd::from(reader));
        let memory = Buffer::new(BLOCK as usize).expect("buffer").post();
        let (completer, answer) = pending();
        let (inner, base) = (store.inner.clone(), fd.clone());
        let transfer = Transfer {
            way: Way::Read,
            fd: fd.clone(),
            offset: 0,
            memory: SgList::from_iter([memory.span().clone()]),
            owner: Waiting { inner, fd: base, completer: Completion::Read(completer) },
        };
        let thread = std::thread::spawn(move || {
            let own = ring::ThreadRing::open().expect("a ring");
            assert!(ring::start(transfer).is_none(), "it is begun");
            own.close(std::time::Duration::ZERO)
        });
        assert_eq!(thread.join().expect("it ends"), Err(1));
        assert_eq!(Arc::strong_count(&fd), 3, "the kernel's as before");
        assert!(memory.take_back().is_err(), "so is the memory");
        drop((answer, writer));
    }

    #[test]
    fn errors_are_told_as_they_are() {
        for way in [Way::Read, Way::Write] {
            assert_eq!(told(way, -libc::EIO), Err(Status::Io));
            // A medium that lost what it had; a checksum that is wrong.
            assert_eq!(told(way, -libc::ENODATA), Err(Status::Io));
            assert_eq!(told(way, -libc::EILSEQ), Err(Status::Io));
        }
        assert_eq!(told(Way::Write, -libc::ENOSPC), Err(Status::NoSpc));
        assert_eq!(told(Way::Write, -libc::EDQUOT), Err(Status::DQuot));
        assert_eq!(told(Way::Write, -libc::EFBIG), Err(Status::FBig));
    }

    #[test]
    fn what_was_not_tried_or_cut_short_is_done_by_plain_calls() {
        let errnos = [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ECANCELED, libc::EINVAL];
        for result in errnos.map(|errno| -errno).into_iter().chain([0, 512, BLOCK as i32]) {
            assert_eq!(told(Way::Read, result), Ok(BLOCK as usize), "{result}");
            assert_eq!(told(Way::Write, result), Ok(0), "{result}");
        }
    }
}
