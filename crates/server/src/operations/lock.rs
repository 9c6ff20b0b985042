//! Operations on locks.

use dafs_protocol::{
    LockKind, LockRange, LockRequest, Operation, Outcome, OwnerKey, StateId, Status,
};

use crate::chain::{Chain, Stop};
use crate::context::{Action, Context};
use crate::locks::{Client, LockFile, LockTable, Owner, Place, Wanted};
use crate::mailbox::Message;
use crate::opens::Open;
use crate::planted::{Defect, planted};
use crate::session::Session;

impl Context {
    /// Does something with the locks; whoever is to be told of it is.
    pub(crate) fn locks<R>(&self, what: impl FnOnce(&mut LockTable) -> R) -> R {
        let (result, ended) = self.shared.locks.with(what);
        for ended in ended {
            if ended.worker == self.number {
                self.actions.borrow_mut().push_back(Action::LockEnded(ended));
            } else {
                self.shared.send(ended.worker, Message::LockEnded(ended));
            }
        }
        result
    }

    /// A client has reclaimed its locks, or is no more.
    pub(crate) fn reclaimed(&self, client: &Client) {
        self.locks(|table| {
            if table.grace_complete(client) {
                table.end_grace();
            }
        });
    }
}

/// Asked of the locks under this name. A whole-file lock has no range.
fn range_of(owner: OwnerKey, range: LockRange) -> LockRange {
    if owner.kind == LockKind::Whole { LockRange::ALL } else { range }
}

fn file_of(open: &Open) -> LockFile {
    LockFile { export: open.export_number(), id: open.stored.id() }
}

impl Session {
    fn owner(&self, key: OwnerKey) -> Owner {
        Owner { session: self.number(), key }
    }

    /// No open of this file but the one that is named.
    fn is_last_of(&self, file: LockFile, state: StateId) -> bool {
        !self.any_open(|other, open| other != state && file_of(open) == file)
    }
}

impl Chain {
    pub(crate) async fn lock_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        let context = self.context.clone();
        let session = self.session.clone();
        match operation {
            Operation::Lock { state, lock, wait, reclaim } => {
                Ok(self.lock(*state, lock, *wait, *reclaim).await?)
            }
            Operation::LockTest { state, lock } => {
                let open = session.open(self.state(*state)?)?;
                let place = Place::of(file_of(&open), lock.owner.kind);
                let (owner, range) = (session.owner(lock.owner), range_of(lock.owner, lock.range));
                let held =
                    context.locks(|table| table.test(place, owner, range, lock.exclusive))?;
                Ok(Outcome::Conflict { held })
            }
            Operation::Unlock { state, owner, range } => {
                let open = session.open(self.state(*state)?)?;
                let place = Place::of(file_of(&open), owner.kind);
                let range = range_of(*owner, *range);
                context.locks(|table| table.unlock(place, session.owner(*owner), range))?;
                Ok(Outcome::Done)
            }
            Operation::LockCancel { ticket } => {
                context.locks(|table| table.cancel(session.number(), *ticket))?;
                Ok(Outcome::Done)
            }
            Operation::OwnerRelease { owner } => {
                context.locks(|table| table.release(session.owner(*owner)));
                Ok(Outcome::Done)
            }
            Operation::ReclaimComplete => {
                context.reclaimed(&session.client);
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    async fn lock(
        &mut self,
        state: StateId,
        lock: &LockRequest,
        wait: bool,
        reclaim: bool,
    ) -> Result<Outcome, Status> {
        let state = self.state(state)?;
        let session = self.session.clone();
        session.open(state)?;
        if reclaim && !self.context.locks(|table| table.may_reclaim(&session.client)) {
            return Err(Status::NoGrace);
        }
        self.record_client().await?;
        // It may have been closed meanwhile.
        let open = session.open(state)?;
        if session.life.has_ended() {
            return Err(Status::BadSession);
        }
        let may = match lock.owner.kind {
            LockKind::Whole => true,
            _ if lock.exclusive => open.write.get(),
            _ => open.read.get(),
        };
        if !may {
            return Err(Status::BadF);
        }
        let wanted = Wanted {
            place: Place::of(file_of(&open), lock.owner.kind),
            owner: session.owner(lock.owner),
            range: range_of(lock.owner, lock.range),
            exclusive: lock.exclusive,
            pid: lock.pid,
            state,
            origin: (self.slot, self.sequence),
        };
        let locked = self.context.locks(|table| match reclaim {
            true => table.reclaim(wanted, &session.client),
            false => table.lock(wanted, wait),
        })?;
        Ok(Outcome::Lock(locked))
    }

    /// The server must know after a crash that this client may have locks to reclaim.
    async fn record_client(&self) -> Result<(), Status> {
        if self.session.may_lock.get() || planted(Defect::LockNotRecorded) {
            self.session.may_lock.set(true);
            return Ok(());
        }
        let shared = &self.context.shared;
        let most = self.session.allowance.user.part_of(shared.limits.lock_clients);
        if let Err(error) = shared.sessions.clients.record(self.session.client, most)?.await {
            tracing::error!(%error, "cannot record that a client has locks");
            return Err(Status::Io);
        }
        self.session.may_lock.set(true);
        Ok(())
    }

    /// Locks end with the opens that they were taken through.
    pub(crate) fn close_locks(&self, state: StateId) -> Result<(), Status> {
        let session = &self.session;
        if !session.may_lock.get() {
            return Ok(());
        }
        let state = self.state(state)?;
        let (number, file) = (session.number(), file_of(&*session.open(state)?));
        if !self.context.locks(|table| table.has_any(number, file)) {
            return Ok(());
        }
        let last = session.is_last_of(file, state);
        self.context.locks(|table| table.close(number, file, state, last));
        Ok(())
    }
}
