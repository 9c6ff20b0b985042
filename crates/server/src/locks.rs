//! Byte-range and whole-file locks, shared by all workers.

mod grace;
mod table;

use std::sync::{Mutex, PoisonError};

pub use grace::Client;
pub(crate) use grace::Grace;
pub(crate) use table::{
    Ended, LockFile, LockLimits, LockStats, LockTable, Owner, Place, SessionNumber, Wanted,
};

/// The locks of a server. Nothing is waited for while they are locked.
#[derive(Debug)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
}

impl Locks {
    pub(crate) fn new(limits: LockLimits, grace: Grace) -> Locks {
        Locks { table: Mutex::new(LockTable::new(limits, grace)) }
    }

    /// Does something; answers its result and the sessions to be told.
    pub(crate) fn with<R>(&self, what: impl FnOnce(&mut LockTable) -> R) -> (R, Vec<Ended>) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let result = what(&mut table);
        (result, table.take_ended())
    }

    pub(crate) fn stats(&self) -> LockStats {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).stats()
    }
}
