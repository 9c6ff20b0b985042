//! fcntl(2) and flock(2) locks, held at the server.

use std::sync::Arc;

use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey};

use super::DafsFs;
use super::error::Errno;
use super::files::OpenFile;
use crate::kernel::{self, Answer, KernelLock};

fn request(lock: &KernelLock, kind: LockKind) -> Result<LockRequest, Errno> {
    // The kernel's ranges end at the largest offset where they have no end.
    let last = if lock.end >= i64::MAX as u64 { u64::MAX } else { lock.end };
    Ok(LockRequest {
        owner: OwnerKey { kind, number: lock.owner },
        range: LockRange::new(lock.start, last).ok_or(Errno::INVAL)?,
        exclusive: lock.kind == kernel::LockKind::Write,
        pid: lock.pid,
    })
}

impl DafsFs {
    pub(super) fn get_lock(&self, fh: u64, lock: KernelLock) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        let held = open.file.test_lock(&request(&lock, LockKind::Posix)?)?;
        Ok(Answer::Lock(match held {
            None => KernelLock { kind: kernel::LockKind::Unlock, ..lock },
            Some((held, ours)) => KernelLock {
                start: held.range.first(),
                end: held.range.last().min(i64::MAX as u64),
                kind: if held.exclusive { kernel::LockKind::Write } else { kernel::LockKind::Read },
                // A process of another machine has no number here.
                pid: if ours { held.pid } else { 0 },
                owner: 0,
            },
        }))
    }

    pub(super) fn set_lock(
        &self,
        fh: u64,
        lock: KernelLock,
        wait: bool,
        flock: bool,
    ) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        let kind = if flock { LockKind::Whole } else { LockKind::Posix };
        let wanted = request(&lock, kind)?;
        if lock.kind == kernel::LockKind::Unlock {
            // Who gets the lock next may write what must not be overwritten by what is kept here.
            self.flush_node(&open.node)?;
            open.file.unlock(wanted.owner, wanted.range)?;
            return Ok(Answer::Done);
        }
        open.file.lock(&wanted, wait)?;
        open.note_locker(wanted.owner);
        self.see_changes(&open)?;
        Ok(Answer::Done)
    }

    /// What others wrote under the lock that they gave back must be seen under ours.
    fn see_changes(&self, open: &Arc<OpenFile>) -> Result<(), Errno> {
        if !open.direct && !open.node.cache_is_good(&open.file.attr()?) {
            self.kernel_forgets(open.node.number);
        }
        Ok(())
    }

    /// All locks of an owner on a file. That they are still there is no error of a close: they end
    /// with the session at the latest.
    pub(super) fn unlock_all(&self, open: &OpenFile, owner: OwnerKey) {
        if let Err(error) = open.file.unlock(owner, LockRange::ALL) {
            tracing::warn!(%error, "locks of a closed file");
        }
    }

    /// A process closed a descriptor of the file: its POSIX locks on the file are gone.
    pub(super) fn closed_by(&self, open: &Arc<OpenFile>, owner: u64) {
        let owner = OwnerKey { kind: LockKind::Posix, number: owner };
        if open.node.forget_locker(owner) {
            self.unlock_all(open, owner);
        }
    }
}
