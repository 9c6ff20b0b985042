//! What the lock table is asked, and what it answers.

use dafs_protocol::{
    HeldLock, LockKind, LockRange, LockTicket, OwnerKey, SessionId, SlotId, StateId, Status,
};
use dafs_store::FileId;

/// A file of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockFile {
    pub export: u8,
    pub id: FileId,
}

/// Locks that know of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(super) file: LockFile,
    pub(super) whole: bool,
}

impl Place {
    pub(crate) fn of(file: LockFile, kind: LockKind) -> Place {
        Place { file, whole: kind == LockKind::Whole }
    }
}

/// The number of a session, used once. A client has one session at a time.
pub(crate) type SessionNumber = u64;

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub session: SessionNumber,
    pub key: OwnerKey,
}

impl Owner {
    pub(super) fn is_posix(&self) -> bool {
        self.key.kind == LockKind::Posix
    }
}

/// A lock that somebody asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub place: Place,
    pub owner: Owner,
    pub range: LockRange,
    pub exclusive: bool,
    pub pid: u32,
    /// The open through which it is asked for.
    pub state: StateId,
    /// The request, to be named in the callback.
    pub origin: (SlotId, u32),
}

impl Wanted {
    /// Both cannot hold what they want.
    pub(super) fn is_against(&self, other: &Wanted) -> bool {
        self.owner != other.owner
            && self.range.overlaps(&other.range)
            && (self.exclusive || other.exclusive)
    }

    /// It cannot be had beside what another holds.
    pub(super) fn is_against_held(&self, held: &HeldLock<Owner>) -> bool {
        self.owner != held.owner
            && self.range.overlaps(&held.range)
            && (self.exclusive || held.exclusive)
    }
}

/// A wait that is over; its session is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub worker: u16,
    pub session: SessionId,
    pub ticket: LockTicket,
    pub result: Result<(), Status>,
    pub origin: (SlotId, u32),
}

/// What the locks of a server may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockLimits {
    pub locks_per_session: usize,
    pub waits_per_session: usize,
    pub waits_per_file: usize,
    pub files: usize,
}

/// For the admin port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LockStats {
    pub held: u64,
    pub waiting: u64,
    /// Ended waits that their sessions did not confirm to know of.
    pub unreported: u64,
    pub grants: u64,
    pub deadlocks: u64,
    pub reclaims: u64,
}
