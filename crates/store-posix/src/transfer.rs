//! A transfer that was begun, and how it ends: what is left of it is done by plain calls.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::{SgList, Span, sg_bytes};
use dafs_protocol::Status;
use dafs_store::{Completer, ReadEnd};
use smallvec::SmallVec;

use super::sys::{self, Errno};
use super::{Shared, data};

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// Data between a file and memory, and who waits for it.
pub(crate) struct Transfer<T> {
    pub(crate) way: Way,
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) offset: u64,
    pub(crate) memory: Memory,
    pub(crate) owner: T,
}

/// Where a transfer's bytes are: mostly in one piece, and small, since transfers are moved.
pub(crate) type Memory = SmallVec<[Span; 1]>;

/// That of a list.
#[inline(always)]
pub(super) fn memory(mut list: SgList) -> Memory {
    match list.len() {
        1 => list.pop().map_or_else(Memory::new, |span| Memory::from_buf([span])),
        _ => list.into_iter().collect(),
    }
}

/// Who waits for a transfer, and what finishes it where it ends early.
pub(super) struct Waiting {
    pub(super) inner: Shared,
    /// Of the page cache.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) completer: Completion,
}

/// What is told of its end.
pub(super) enum Completion {
    Read(Completer<Result<usize, Status>>),
    /// Of a read.
    Told(ReadEnd),
    Write(Completer<Result<(), Status>>),
}

/// A transfer of a thread without a ring.
pub(super) fn in_pool(transfer: Transfer<Waiting>) {
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
#[inline(always)]
pub(super) fn ended(transfer: Transfer<Waiting>, result: i32) {
    match usize::try_from(result) {
        Ok(bytes) if bytes == sg_bytes(&transfer.memory) => ended_whole(transfer, bytes),
        _ => ended_early(transfer, result),
    }
}

/// With an error, or before it was done.
#[cold]
#[inline(never)]
fn ended_early(transfer: Transfer<Waiting>, result: i32) {
    match usize::try_from(result) {
        Ok(bytes) => hand_over(transfer, bytes),
        Err(_) => match Errno(result.wrapping_neg()) {
            errno if is_final(errno) => finish(transfer, Err(data::data_error(errno))),
            _ => hand_over(transfer, 0),
        },
    }
}

#[inline(always)]
fn ended_whole(transfer: Transfer<Waiting>, bytes: usize) {
    transfer.owner.inner.direct_transfers.fetch_add(1, Ordering::Relaxed);
    finish(transfer, Ok(bytes));
}

fn failed(transfer: Transfer<Waiting>, errno: Errno) {
    match is_final(errno) {
        true => finish(transfer, Err(data::data_error(errno))),
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
        Way::Read => data::read(&owner.fd, *offset, memory, &mut done, 0).map_err(data::data_error),
        Way::Write => data::write(&owner.inner, &owner.fd, *offset, memory, &mut done),
    };
    finish(transfer, outcome.map(|()| done));
}

#[inline(always)]
fn finish(transfer: Transfer<Waiting>, outcome: Result<usize, Status>) {
    let Transfer { memory, fd, owner: Waiting { inner, fd: base, completer }, .. } = transfer;
    // First, so that who waits for the answer is not the last to hold any of it.
    drop((memory, fd, base, inner));
    match completer {
        Completion::Told(end) => end.tell(outcome),
        Completion::Read(completer) => completer.complete(outcome),
        Completion::Write(completer) => completer.complete(outcome.map(drop)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dafs_fabric::Buffer;
    use dafs_store::pending;

    use super::*;
    use crate::direct_fd::BLOCK;
    use crate::ring;
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
        let list = Memory::from_iter([memory.span().clone()]);
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
            memory: Memory::from_iter([memory.span().clone()]),
            owner: Waiting { inner, fd: base, completer: Completion::Read(completer) },
        };
        let thread = std::thread::spawn(move || {
            let own = ring::ThreadRing::open().expect("a ring");
            assert!(ring::start(transfer).is_ok(), "it has one");
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
