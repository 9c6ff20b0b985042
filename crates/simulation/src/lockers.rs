//! Owners of locks, and the files that they lock.

use dafs_client::core::FileKey;
use dafs_protocol::{LockKind, OwnerKey};

use crate::model::locks::key;
use crate::plan::LOCK_FILES;

/// An owner of locks.
#[derive(Debug, Clone)]
pub struct Locker {
    /// Its name.
    pub key: OwnerKey,
    /// The file that it locks; `None`: any.
    pub file: Option<usize>,
    /// A call is under way.
    pub busy: bool,
    /// A call was given up, what came of it may not have been given back.
    pub unsettled: bool,
}

/// The owners of a client. Only POSIX ones may hold one lock and wait for another: the server
/// finds no deadlocks of the others.
pub fn lockers() -> Vec<Locker> {
    let new = |key, file| Locker { key, file, busy: false, unsettled: false };
    let mut all = vec![new(key(LockKind::Posix, 1), None), new(key(LockKind::Posix, 2), None)];
    for file in 0..LOCK_FILES {
        all.push(new(key(LockKind::Ofd, 10 + file as u64), Some(file)));
        all.push(new(key(LockKind::Whole, 20 + file as u64), Some(file)));
    }
    all
}

/// A file of locks as a client has it open.
#[derive(Debug, Clone, Copy)]
pub struct LockOpen {
    /// As the core names it.
    pub key: FileKey,
    /// Calls fail: it is to be closed.
    pub broken: bool,
    /// Since it was opened, the session may have ended without a fault of the server.
    pub excused: bool,
}

/// Whether a client has a file of locks open.
#[derive(Debug, Clone, Copy, Default)]
pub enum Door {
    /// No.
    #[default]
    Shut,
    /// It is being opened, or closed.
    Moving,
    /// Yes.
    Open(LockOpen),
}
