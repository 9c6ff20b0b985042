//! fcntl(2) and flock(2) locks, held at the server.

use std::sync::Arc;

use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey};

use super::DafsFs;
use super::error::Errno;
use super::files::OpenFile;
use super::nodes::Node;
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
        if flock {
            // A lock of the other mode is given up in between.
            self.flush_node(&open.node)?;
        }
        open.file.lock(&wanted, wait)?;
        open.note_locker(wanted.owner);
        self.see_changes(&open);
        Ok(Answer::Done)
    }

    /// What others wrote under the lock that they gave back must be seen under ours. The lock is
    /// held, so nothing fails any more: what cannot be compared is dropped.
    fn see_changes(&self, open: &Arc<OpenFile>) {
        let good = || open.file.attr().is_ok_and(|attr| open.node.cache_is_good(&attr));
        if !open.direct && !good() {
            self.kernel_forgets(open.node.number);
        }
    }

    /// All locks of an owner on a file. That they are still there is no error of a close: they end
    /// with the session at the latest. False: they are still there.
    pub(super) fn unlock_all(&self, open: &OpenFile, owner: OwnerKey) -> bool {
        let unlocked = open.file.unlock(owner, LockRange::ALL);
        if let Err(error) = &unlocked {
            tracing::warn!(%error, "locks of a closed file");
        }
        unlocked.is_ok()
    }

    /// A process closed a descriptor of the file: its POSIX locks on the file are gone.
    pub(super) fn closed_by(&self, node: &Node, owner: u64) {
        let owner = OwnerKey { kind: LockKind::Posix, number: owner };
        let through = node.forget_locker(owner);
        let Some(open) = through.first() else { return };
        // Also what was written through other descriptors.
        let unlocked = self.flush_node(node).is_ok() && self.unlock_all(open, owner);
        if !unlocked {
            // Interrupted, perhaps: the last close tries again.
            through.iter().for_each(|open| open.note_locker(owner));
        }
    }
}
