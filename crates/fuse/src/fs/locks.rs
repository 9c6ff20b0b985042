//! fcntl(2) and flock(2) locks, held at the server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey};
use rustc_hash::FxHashMap;

use super::DafsFs;
use super::error::Errno;
use super::nodes::{Node, OpenFile};
use crate::kernel::{self, Answer, Caller, KernelLock};

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

/// Calls of one user that may wait for locks; those of all have a limit too.
const WAITS_PER_USER_MAX: usize = 512;

/// How many calls of each user wait for locks.
#[derive(Default)]
pub(super) struct LockWaits(Mutex<FxHashMap<u32, usize>>);

struct LockWait<'a> {
    waits: &'a LockWaits,
    uid: u32,
}

impl LockWaits {
    fn of_users(&self) -> MutexGuard<'_, FxHashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, while the answer lives.
    fn begin(&self, uid: u32) -> Result<LockWait<'_>, Errno> {
        let mut of_users = self.of_users();
        let count = of_users.entry(uid).or_default();
        if *count >= WAITS_PER_USER_MAX {
            return Err(Errno(libc::ENOLCK));
        }
        *count += 1;
        Ok(LockWait { waits: self, uid })
    }
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        let mut of_users = self.waits.of_users();
        if let Some(count) = of_users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                of_users.remove(&self.uid);
            }
        }
    }
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
        caller: &Caller,
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
        let waiting = if wait { Some(self.lock_waits.begin(caller.uid)?) } else { None };
        open.file.lock(&wanted, wait)?;
        drop(waiting);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_waits_to_others() {
        let waits = LockWaits::default();
        let mut one: Vec<_> = (0..WAITS_PER_USER_MAX).map(|_| waits.begin(1)).collect();
        assert!(one.iter().all(Result::is_ok));
        assert_eq!(waits.begin(1).err(), Some(Errno(libc::ENOLCK)));
        assert!(waits.begin(2).is_ok());
        one.pop();
        assert!(waits.begin(1).is_ok());
        drop(one);
        assert!(waits.of_users().is_empty());
    }
}
