//! The lock manager: who holds what, who waits for it, and who may go on. No I/O, no clock.
//!
//! Each file has two worlds (byte ranges, whole-file locks) that know nothing of each other: a
//! [`Place`]. A waiter goes on when nothing held stands against it and nobody who came before it
//! does either, so that nobody starves. It passes those before it who wait, directly or over
//! others, for its own owner: to stand behind them would be to wait for ever.

mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dafs_protocol::{
    HeldLock, LockKind, LockRange, LockRequest, LockTicket, Locked, OwnerKey, RangeLocks,
    SessionId, SlotId, StateId, Status,
};
use dafs_store::FileId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::grace::{Client, Grace};
use crate::planted::{Defect, planted};

/// A file of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockFile {
    pub export: u8,
    pub id: FileId,
}

/// Locks that know of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    file: LockFile,
    whole: bool,
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
    fn is_posix(&self) -> bool {
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
    fn is_against(&self, other: &Wanted) -> bool {
        self.owner != other.owner
            && self.range.overlaps(&other.range)
            && (self.exclusive || other.exclusive)
    }
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    wanted: Wanted,
    /// False: it waits for the end of the grace period only.
    stays: bool,
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
    pub untold: u64,
    pub grants: u64,
    pub deadlocks: u64,
    pub reclaims: u64,
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
    /// Ended waits of which the session has not confirmed to know; what was granted.
    untold: BTreeMap<LockTicket, Option<(Place, Owner, LockRange)>>,
}

/// All locks of a server.
#[derive(Debug)]
pub(crate) struct LockTable {
    limits: LockLimits,
    places: FxHashMap<Place, Locks>,
    sessions: FxHashMap<SessionNumber, SessionLocks>,
    waiters: BTreeMap<LockTicket, Waiter>,
    of_owner: FxHashMap<Owner, Vec<LockTicket>>,
    holds_in: FxHashMap<Owner, BTreeSet<Place>>,
    next_ticket: u64,
    /// Places where somebody may go on now.
    unsettled: BTreeSet<Place>,
    ended: Vec<Ended>,
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
            waiters: BTreeMap::new(),
            of_owner: FxHashMap::default(),
            holds_in: FxHashMap::default(),
            next_ticket: 1,
            unsettled: BTreeSet::new(),
            ended: Vec::new(),
            grace,
            stopped: false,
            grants: 0,
            deadlocks: 0,
            reclaims: 0,
        }
    }

    /// A session may lock from now on.
    pub(crate) fn begin_session(&mut self, number: SessionNumber, worker: u16, id: SessionId) {
        let session = SessionLocks {
            worker,
            id,
            places: BTreeMap::new(),
            locks: 0,
            waits: 0,
            untold: BTreeMap::new(),
        };
        self.sessions.insert(number, session);
    }

    /// A session is over: its locks are free, its waits end untold.
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
    pub(crate) fn told(&mut self, session: SessionNumber, ticket: LockTicket, known: bool) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let granted = entry.untold.remove(&ticket).flatten();
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
        let tickets: Vec<LockTicket> = self.waiters.keys().copied().collect();
        let waiting = tickets.into_iter().filter_map(|ticket| Some((ticket, self.leave(ticket)?)));
        let waiting: Vec<_> = waiting.collect();
        for (_, Waiter { wanted, .. }) in &waiting {
            self.changed(wanted.place, wanted.owner.session);
        }
        for (ticket, Waiter { wanted, stays }) in waiting {
            if wanted.place.whole && self.convert(&wanted) {
                self.tell(ticket, &wanted, Ok(()));
                continue;
            }
            match self.decide_as(ticket, wanted, stays) {
                Ok(Locked::Granted) => self.tell(ticket, &wanted, Ok(())),
                Ok(Locked::Waiting(_)) => {}
                Err(status) => self.tell(ticket, &wanted, Err(status)),
            }
        }
        self.settle();
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
            untold: self.sessions.values().map(|session| session.untold.len() as u64).sum(),
            grants: self.grants,
            deadlocks: self.deadlocks,
            reclaims: self.reclaims,
        }
    }

    // --- parts ---

    fn waits_for_grace(&self) -> bool {
        self.stopped || (self.grace.is_on() && !planted(Defect::GraceGrants))
    }

    fn check_room(&self, wanted: &Wanted) -> Result<(), Status> {
        let session = self.sessions.get(&wanted.owner.session).ok_or(Status::BadSession)?;
        // A lock may cut one into two, and one more open may have been used.
        let full = session.locks + 3 > self.limits.locks_per_session;
        let new = !self.places.contains_key(&wanted.place);
        if full || (new && self.places.len() >= self.limits.files) {
            return Err(Status::Resource);
        }
        Ok(())
    }

    fn is_held_against(&self, wanted: &Wanted) -> bool {
        let Wanted { place, owner, range, exclusive, .. } = *wanted;
        let locks = self.places.get(&place);
        locks.is_some_and(|locks| locks.held.conflicts(owner, range, exclusive).next().is_some())
    }

    /// flock(2): another lock is given up first. True: it is held as wanted.
    fn convert(&mut self, wanted: &Wanted) -> bool {
        let Some(locks) = self.places.get_mut(&wanted.place) else { return false };
        let held = locks.held.iter().find(|held| held.owner == wanted.owner);
        let Some(held) = held.copied() else { return false };
        if held.exclusive == wanted.exclusive {
            self.hold(wanted);
            return true;
        }
        locks.held.clear(wanted.owner, held.range);
        self.note_freed(wanted.place, wanted.owner);
        self.changed(wanted.place, wanted.owner.session);
        false
    }

    fn decide(&mut self, wanted: Wanted, wait: bool) -> Result<Locked, Status> {
        let ticket = LockTicket(self.next_ticket);
        let result = self.decide_as(ticket, wanted, wait);
        if matches!(result, Ok(Locked::Waiting(_))) {
            self.next_ticket += 1;
        }
        result
    }

    fn decide_as(
        &mut self,
        ticket: LockTicket,
        wanted: Wanted,
        wait: bool,
    ) -> Result<Locked, Status> {
        let is_held = self.is_held_against(&wanted);
        // Who does not wait does not queue either, as with fcntl(2).
        if !is_held && (!wait || !self.stands_behind(&wanted, &self.queue(wanted.place))) {
            self.check_room(&wanted)?;
            self.hold(&wanted);
            return Ok(Locked::Granted);
        }
        if !wait {
            return Err(Status::Again);
        }
        if wanted.owner.is_posix() && self.closes_cycle(&wanted) {
            self.deadlocks += 1;
            return Err(Status::Deadlock);
        }
        self.join(ticket, wanted, true)?;
        Ok(Locked::Waiting(ticket))
    }

    fn enqueue(&mut self, wanted: Wanted, stays: bool) -> Result<Locked, Status> {
        let ticket = LockTicket(self.next_ticket);
        self.join(ticket, wanted, stays)?;
        self.next_ticket += 1;
        Ok(Locked::Waiting(ticket))
    }

    fn queue(&self, place: Place) -> Vec<LockTicket> {
        self.places.get(&place).map(|locks| locks.queue.clone()).unwrap_or_default()
    }

    fn join(&mut self, ticket: LockTicket, wanted: Wanted, stays: bool) -> Result<(), Status> {
        let Wanted { place, owner, state, .. } = wanted;
        let session = self.sessions.get(&owner.session).ok_or(Status::BadSession)?;
        let locks = self.places.entry(place).or_default();
        let full = session.waits + session.untold.len() >= self.limits.waits_per_session
            || locks.queue.len() >= self.limits.waits_per_file;
        if !full {
            locks.queue.push(ticket);
            note_use(locks, owner, state);
            self.waiters.insert(ticket, Waiter { wanted, stays });
            self.of_owner.entry(owner).or_default().push(ticket);
        }
        self.changed(place, owner.session);
        if full {
            return Err(Status::Resource);
        }
        self.look_for_passers(owner);
        Ok(())
    }

    fn leave(&mut self, ticket: LockTicket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let Wanted { place, owner, .. } = waiter.wanted;
        if let Some(locks) = self.places.get_mut(&place) {
            locks.queue.retain(|other| *other != ticket);
        }
        if let Some(tickets) = self.of_owner.get_mut(&owner) {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                self.of_owner.remove(&owner);
            }
        }
        Some(waiter)
    }

    /// Nothing stands against it.
    fn hold(&mut self, wanted: &Wanted) {
        let Wanted { place, owner, range, exclusive, pid, state, .. } = *wanted;
        let locks = self.places.entry(place).or_default();
        locks.held.set(owner, range, exclusive, pid);
        note_use(locks, owner, state);
        self.holds_in.entry(owner).or_default().insert(place);
        self.grants += 1;
        self.changed(place, owner.session);
        self.look_for_passers(owner);
    }

    /// Ends what owners of a session have in a place; their waits with `status`, or untold.
    fn drop_owners(
        &mut self,
        place: Place,
        session: SessionNumber,
        is: impl Fn(Owner) -> bool,
        status: Option<Status>,
    ) {
        for ticket in self.queue(place) {
            let Some(waiter) = self.waiters.get(&ticket).copied() else { continue };
            if !is(waiter.wanted.owner) {
                continue;
            }
            self.leave(ticket);
            if let Some(status) = status {
                self.tell(ticket, &waiter.wanted, Err(status));
            }
        }
        let Some(locks) = self.places.get_mut(&place) else { return };
        let owners = locks.held.iter().map(|held| held.owner).filter(|owner| is(*owner));
        let owners: FxHashSet<Owner> = owners.collect();
        locks.held.clear_owners(&is);
        locks.used.retain(|(owner, _)| !is(*owner));
        for owner in owners {
            self.note_freed(place, owner);
        }
        self.changed(place, session);
    }

    /// Some of what an owner held in a place is free.
    fn note_freed(&mut self, place: Place, owner: Owner) {
        let holds = |locks: &Locks| locks.held.iter().any(|held| held.owner == owner);
        if self.places.get(&place).is_some_and(holds) {
            return;
        }
        if let Some(places) = self.holds_in.get_mut(&owner) {
            places.remove(&place);
            if places.is_empty() {
                self.holds_in.remove(&owner);
            }
        }
    }

    fn tell(&mut self, ticket: LockTicket, wanted: &Wanted, result: Result<(), Status>) {
        let Wanted { place, owner, range, origin, .. } = *wanted;
        let Some(session) = self.sessions.get_mut(&owner.session) else { return };
        session.untold.insert(ticket, result.ok().map(|()| (place, owner, range)));
        let (worker, id) = (session.worker, session.id);
        self.ended.push(Ended { worker, session: id, ticket, result, origin });
    }

    /// Counts again what a session has in a place, and notes that others may go on there.
    fn changed(&mut self, place: Place, number: SessionNumber) {
        let mut share = Share::default();
        if let Some(locks) = self.places.get_mut(&place) {
            let of = |owner: &Owner| owner.session == number;
            let (held, queue) = (&locks.held, &locks.queue);
            locks.used.retain(|(owner, _)| {
                let waits = |ticket: &LockTicket| {
                    self.waiters.get(ticket).is_some_and(|waiter| waiter.wanted.owner == *owner)
                };
                !of(owner) || held.iter().any(|h| h.owner == *owner) || queue.iter().any(waits)
            });
            let waiting = |ticket: &&LockTicket| {
                self.waiters.get(ticket).is_some_and(|waiter| of(&waiter.wanted.owner))
            };
            share.waits = locks.queue.iter().filter(waiting).count();
            share.locks = locks.held.iter().filter(|held| of(&held.owner)).count()
                + locks.used.iter().filter(|(owner, _)| of(owner)).count();
            if locks.held.is_empty() && locks.queue.is_empty() {
                self.places.remove(&place);
            }
        }
        if let Some(session) = self.sessions.get_mut(&number) {
            let before = session.places.remove(&place).unwrap_or_default();
            session.locks = session.locks + share.locks - before.locks;
            session.waits = session.waits + share.waits - before.waits;
            if share != Share::default() {
                session.places.insert(place, share);
            }
        }
        self.unsettled.insert(place);
    }
}

fn note_use(locks: &mut Locks, owner: Owner, state: StateId) {
    if !owner.is_posix() && !locks.used.contains(&(owner, state)) {
        locks.used.push((owner, state));
    }
}

#[cfg(test)]
mod tests;
