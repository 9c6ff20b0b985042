//! The lock manager: who holds what, who waits for it, and who may go on. No I/O, no clock.
//!
//! Each file has two worlds (byte ranges, whole-file locks) that know nothing of each other: a
//! [`Place`]. A waiter goes on when nothing held stands against it and nobody who came before it
//! does either, so that nobody starves. It passes those before it who wait, directly or over
//! others, for its own owner: to stand behind them would be to wait for ever.

mod order;
mod steps;
mod types;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dafs_protocol::{
    HeldLock, LockKind, LockRange, LockRequest, LockTicket, Locked, RangeLocks, SessionId, StateId,
    Status,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::grace::{Client, Grace};
use crate::planted::{Defect, planted};
pub(crate) use types::{
    Ended, LockFile, LockLimits, LockStats, Owner, Place, SessionNumber, Wanted,
};

#[derive(Debug, Clone, Copy)]
struct Waiter {
    wanted: Wanted,
    /// False: it waits for the end of the grace period only.
    stays: bool,
}

#[derive(Debug, Default)]
struct Locks {
    held: RangeLocks<Owner>,
    /// First come, first served.
    queue: Vec<LockTicket>,
    /// Opens through which owners other than POSIX ones locked.
    used: Vec<(Owner, StateId)>,
}

/// What a session has in one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    locks: usize,
    waits: usize,
}

#[derive(Debug)]
struct SessionLocks {
    worker: u16,
    id: SessionId,
    places: BTreeMap<Place, Share>,
    locks: usize,
    waits: usize,
    uid: u32,
    /// What all sessions of the user may have of the files with locks.
    files_max: usize,
    /// Ended waits of which the session has not confirmed to know; what was granted.
    unreported: BTreeMap<LockTicket, Option<(Place, Owner, LockRange)>>,
}

/// All locks of a server.
#[derive(Debug)]
pub(crate) struct LockTable {
    limits: LockLimits,
    places: FxHashMap<Place, Locks>,
    sessions: FxHashMap<SessionNumber, SessionLocks>,
    /// Places of each user's sessions, those of several counted for each.
    places_of: FxHashMap<u32, usize>,
    waiters: BTreeMap<LockTicket, Waiter>,
    of_owner: FxHashMap<Owner, Vec<LockTicket>>,
    holds_in: FxHashMap<Owner, BTreeSet<Place>>,
    next_ticket: u64,
    /// Places where somebody may go on now.
    unsettled: BTreeSet<Place>,
    ended: Vec<Ended>,
    /// What this call has looked at.
    steps: Cell<usize>,
    steps_max: usize,
    pub(super) grace: Grace,
    /// The server ends: nobody is given anything any more.
    stopped: bool,
    grants: u64,
    deadlocks: u64,
    reclaims: u64,
}

impl LockTable {
    pub(crate) fn new(limits: LockLimits, grace: Grace) -> LockTable {
        LockTable {
            limits,
            places: FxHashMap::default(),
            sessions: FxHashMap::default(),
            places_of: FxHashMap::default(),
            waiters: BTreeMap::new(),
            of_owner: FxHashMap::default(),
            holds_in: FxHashMap::default(),
            next_ticket: 1,
            unsettled: BTreeSet::new(),
            ended: Vec::new(),
            steps: Cell::new(0),
            steps_max: order::STEPS_MAX,
            grace,
            stopped: false,
            grants: 0,
            deadlocks: 0,
            reclaims: 0,
        }
    }

    /// A session of a worker may lock from now on: files up to this number, together with others
    /// of its user.
    pub(crate) fn begin_session(
        &mut self,
        number: SessionNumber,
        (worker, id): (u16, SessionId),
        (uid, files_max): (u32, usize),
    ) {
        let session = SessionLocks {
            worker,
            id,
            places: BTreeMap::new(),
            locks: 0,
            waits: 0,
            uid,
            files_max,
            unreported: BTreeMap::new(),
        };
        self.sessions.insert(number, session);
    }

    /// A session is over: its locks are free, its waits end unreported.
    pub(crate) fn end_session(&mut self, number: SessionNumber) {
        let Some(session) = self.sessions.get(&number) else { return };
        let places: Vec<Place> = session.places.keys().copied().collect();
        for place in places {
            self.drop_owners(place, number, |owner| owner.session == number, None);
        }
        self.sessions.remove(&number);
        self.settle();
    }

    /// LOCK.
    pub(crate) fn lock(&mut self, wanted: Wanted, wait: bool) -> Result<Locked, Status> {
        self.begin();
        self.check_room(&wanted)?;
        if self.waits_for_grace() {
            return self.enqueue(wanted, wait);
        }
        if wanted.place.whole && self.convert(&wanted) {
            return Ok(Locked::Granted);
        }
        let result = self.decide(wanted, wait);
        self.settle();
        result
    }

    /// LOCK of what the client held when the server restarted.
    pub(crate) fn reclaim(&mut self, wanted: Wanted, client: &Client) -> Result<Locked, Status> {
        if !self.may_reclaim(client) {
            return Err(Status::NoGrace);
        }
        self.check_room(&wanted)?;
        if self.is_held_against(&wanted) {
            return Err(Status::Again);
        }
        self.begin();
        self.hold(&wanted);
        self.reclaims += 1;
        Ok(Locked::Granted)
    }

    /// The server still waits for this client.
    pub(crate) fn may_reclaim(&self, client: &Client) -> bool {
        let may = self.grace.may_reclaim(client) || planted(Defect::ReclaimedAtAnyTime);
        may && !self.stopped
    }

    /// LOCK_TEST: what stands against it, and whether that is of the same session.
    pub(crate) fn test(
        &self,
        place: Place,
        owner: Owner,
        range: LockRange,
        exclusive: bool,
    ) -> Result<Option<(LockRequest, bool)>, Status> {
        let locks = self.places.get(&place);
        let answer = |held: &HeldLock<Owner>| {
            let HeldLock { owner: holder, range, exclusive, pid } = *held;
            (
                LockRequest { owner: holder.key, range, exclusive, pid },
                holder.session == owner.session,
            )
        };
        match locks.and_then(|locks| locks.held.conflict(owner, range, exclusive)) {
            Some(held) => Ok(Some(answer(held))),
            None if self.waits_for_grace() => Err(Status::Grace),
            None => Ok(None),
        }
    }

    /// UNLOCK.
    pub(crate) fn unlock(
        &mut self,
        place: Place,
        owner: Owner,
        range: LockRange,
    ) -> Result<(), Status> {
        let Some(locks) = self.places.get_mut(&place) else { return Ok(()) };
        let is_cut = |held: &HeldLock<Owner>| {
            let within = held.range.first() < range.first() && held.range.last() > range.last();
            held.owner == owner && within
        };
        let full = |session: &SessionLocks| session.locks >= self.limits.locks_per_session;
        if locks.held.iter().any(is_cut) && self.sessions.get(&owner.session).is_some_and(full) {
            return Err(Status::Resource);
        }
        if locks.held.clear(owner, range) {
            self.note_freed(place, owner);
            self.changed(place, owner.session);
            if planted(Defect::UnlockWakesNobody) {
                self.unsettled.clear();
            }
            self.settle();
        }
        Ok(())
    }

    /// LOCK_CANCEL.
    pub(crate) fn cancel(
        &mut self,
        session: SessionNumber,
        ticket: LockTicket,
    ) -> Result<(), Status> {
        let waiter = self.waiters.get(&ticket).filter(|w| w.wanted.owner.session == session);
        let place = waiter.ok_or(Status::NoEnt)?.wanted.place;
        self.leave(ticket);
        self.changed(place, session);
        self.settle();
        Ok(())
    }

    /// OWNER_RELEASE.
    pub(crate) fn release(&mut self, owner: Owner) {
        let whole = owner.key.kind == LockKind::Whole;
        let Some(session) = self.sessions.get(&owner.session) else { return };
        let places = session.places.keys().filter(|place| place.whole == whole);
        let places: Vec<Place> = places.copied().collect();
        for place in places {
            self.drop_owners(place, owner.session, |other| other == owner, Some(Status::Intr));
        }
        self.settle();
    }

    /// An open of a file ends. `last`: the session has no other of this file.
    pub(crate) fn close(
        &mut self,
        session: SessionNumber,
        file: LockFile,
        state: StateId,
        last: bool,
    ) {
        for whole in [false, true] {
            let place = Place { file, whole };
            let Some(locks) = self.places.get_mut(&place) else { continue };
            let mut gone = FxHashSet::default();
            let mine = |owner: &Owner| owner.session == session;
            locks.used.retain(|(owner, through)| {
                let ends = mine(owner) && *through == state;
                if ends {
                    gone.insert(*owner);
                }
                !ends
            });
            for (owner, _) in &locks.used {
                gone.remove(owner);
            }
            let ends = |owner: Owner| (last && mine(&owner)) || gone.contains(&owner);
            self.drop_owners(place, session, ends, Some(Status::BadF));
        }
        self.settle();
    }

    /// The session knows of the end of a wait; or says that it never waited for that.
    pub(crate) fn confirmed(&mut self, session: SessionNumber, ticket: LockTicket, known: bool) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let granted = entry.unreported.remove(&ticket).flatten();
        if let (Some((place, owner, range)), false) = (granted, known)
            && let Some(locks) = self.places.get_mut(&place)
            && locks.held.clear(owner, range)
        {
            self.note_freed(place, owner);
            self.changed(place, session);
            self.settle();
        }
    }

    /// The server ends: what it still holds is for its successor to be reclaimed.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The grace period is over: those who waited for its end are decided in their order.
    pub(crate) fn end_grace(&mut self) {
        if !self.grace.end() || self.stopped {
            return;
        }
        self.begin();
        let tickets: Vec<LockTicket> = self.waiters.keys().copied().collect();
        let waiting = tickets.into_iter().filter_map(|ticket| Some((ticket, self.leave(ticket)?)));
        let waiting: Vec<_> = waiting.collect();
        for (_, Waiter { wanted, .. }) in &waiting {
            self.changed(wanted.place, wanted.owner.session);
        }
        for (ticket, Waiter { wanted, stays }) in waiting {
            if wanted.place.whole && self.convert(&wanted) {
                self.report(ticket, &wanted, Ok(()));
                continue;
            }
            match self.decide_as(ticket, wanted, stays) {
                Ok(Locked::Granted) => self.report(ticket, &wanted, Ok(())),
                Ok(Locked::Waiting(_)) => {}
                Err(status) => self.report(ticket, &wanted, Err(status)),
            }
        }
        self.settle();
    }

    /// Goes on with what the last calls left.
    pub(crate) fn go_on(&mut self) {
        if !self.unsettled.is_empty() {
            self.settle();
        }
    }

    /// A client has reclaimed what it wants to, or is no more. True: nobody is missing now.
    pub(crate) fn grace_complete(&mut self, client: &Client) -> bool {
        self.grace.complete(client)
    }

    /// True once: the grace period has lasted a lease. Who has not come by then; `end_grace` is
    /// to follow. The first call begins it.
    pub(crate) fn grace_due(&mut self, now: Duration, lease: Duration) -> Option<Vec<Client>> {
        self.grace.is_due(now, lease).then(|| self.grace.missing())
    }

    /// The session has locks or waits of this file.
    pub(crate) fn has_any(&self, session: SessionNumber, file: LockFile) -> bool {
        let Some(session) = self.sessions.get(&session) else { return false };
        [false, true].into_iter().any(|whole| session.places.contains_key(&Place { file, whole }))
    }

    /// Sessions to be told since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    pub(crate) fn stats(&self) -> LockStats {
        LockStats {
            held: self.places.values().map(|locks| locks.held.len() as u64).sum(),
            waiting: self.waiters.len() as u64,
            unreported: self.sessions.values().map(|session| session.unreported.len() as u64).sum(),
            grants: self.grants,
            deadlocks: self.deadlocks,
            reclaims: self.reclaims,
        }
    }
}

#[cfg(test)]
mod tests;
