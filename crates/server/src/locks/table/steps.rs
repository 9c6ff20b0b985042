//! The steps that the table's calls are made of.

use dafs_protocol::{LockTicket, Locked, StateId, Status};
use rustc_hash::FxHashSet;

use super::types::Ended;
use super::{LockTable, Locks, Owner, Place, SessionNumber, Share, Waiter, Wanted};
use crate::planted::{Defect, planted};

impl LockTable {
    pub(super) fn waits_for_grace(&self) -> bool {
        self.stopped || (self.grace.is_on() && !planted(Defect::GraceGrants))
    }

    pub(super) fn check_room(&self, wanted: &Wanted) -> Result<(), Status> {
        let session = self.sessions.get(&wanted.owner.session).ok_or(Status::BadSession)?;
        // A lock may cut one into two, and one more open may have been used.
        let full = session.locks + 3 > self.limits.locks_per_session;
        let new = !self.places.contains_key(&wanted.place);
        if full || (new && self.places.len() >= self.limits.files) {
            return Err(Status::Resource);
        }
        Ok(())
    }

    pub(super) fn is_held_against(&self, wanted: &Wanted) -> bool {
        let Wanted { place, owner, range, exclusive, .. } = *wanted;
        let locks = self.places.get(&place);
        locks.is_some_and(|locks| locks.held.conflicts(owner, range, exclusive).next().is_some())
    }

    /// flock(2): another lock is given up first. True: it is held as wanted.
    pub(super) fn convert(&mut self, wanted: &Wanted) -> bool {
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

    pub(super) fn decide(&mut self, wanted: Wanted, wait: bool) -> Result<Locked, Status> {
        let ticket = LockTicket(self.next_ticket);
        let result = self.decide_as(ticket, wanted, wait);
        if matches!(result, Ok(Locked::Waiting(_))) {
            self.next_ticket += 1;
        }
        result
    }

    pub(super) fn decide_as(
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

    pub(super) fn enqueue(&mut self, wanted: Wanted, stays: bool) -> Result<Locked, Status> {
        let ticket = LockTicket(self.next_ticket);
        self.join(ticket, wanted, stays)?;
        self.next_ticket += 1;
        Ok(Locked::Waiting(ticket))
    }

    pub(super) fn queue(&self, place: Place) -> Vec<LockTicket> {
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

    pub(super) fn leave(&mut self, ticket: LockTicket) -> Option<Waiter> {
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
    pub(super) fn hold(&mut self, wanted: &Wanted) {
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
    pub(super) fn drop_owners(
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
    pub(super) fn note_freed(&mut self, place: Place, owner: Owner) {
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

    pub(super) fn tell(&mut self, ticket: LockTicket, wanted: &Wanted, result: Result<(), Status>) {
        let Wanted { place, owner, range, origin, .. } = *wanted;
        let Some(session) = self.sessions.get_mut(&owner.session) else { return };
        session.untold.insert(ticket, result.ok().map(|()| (place, owner, range)));
        let (worker, id) = (session.worker, session.id);
        self.ended.push(Ended { worker, session: id, ticket, result, origin });
    }

    /// Counts again what a session has in a place, and notes that others may go on there.
    pub(super) fn changed(&mut self, place: Place, number: SessionNumber) {
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
