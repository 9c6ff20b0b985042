//! Users for whom a session acts beside its own.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dafs_protocol::{CredHandle, Identity, Status};
use dafs_store::Caller;
use rustc_hash::FxHashMap;

/// By their numbers, from 1 on.
pub(crate) struct Credentials {
    users: RefCell<FxHashMap<u32, Caller>>,
    next: Cell<u32>,
}

impl Credentials {
    /// None.
    pub(crate) fn new() -> Credentials {
        Credentials { users: RefCell::default(), next: Cell::new(1) }
    }

    /// Who it is.
    pub(crate) fn find(&self, cred: CredHandle) -> Result<Caller, Status> {
        self.users.borrow().get(&cred.0).cloned().ok_or(Status::NoCreds)
    }

    /// One more, of at most `max`.
    pub(crate) fn add(&self, identity: Identity, max: usize) -> Result<CredHandle, Status> {
        let mut users = self.users.borrow_mut();
        if users.len() >= max {
            return Err(Status::Resource);
        }
        let number = self.next.get();
        self.next.set(number.checked_add(1).ok_or(Status::Resource)?);
        users.insert(number, Arc::new(identity));
        Ok(CredHandle(number))
    }

    /// It is forgotten.
    pub(crate) fn remove(&self, cred: CredHandle) -> Result<(), Status> {
        self.users.borrow_mut().remove(&cred.0).map(drop).ok_or(Status::NoCreds)
    }
}
