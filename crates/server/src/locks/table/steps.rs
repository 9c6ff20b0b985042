//! The steps that the table's calls are made of.

use dafs_protocol::{LockTicket, Locked, StateId, Status};
use rustc_hash::{FxHashMap, FxHashSet};

use super::types::Ended;
use super::{LockTable, Locks, Owner, Place, SessionLocks, SessionNumber, Share, Waiter, Wanted};
use crate::planted::{Defect, planted};

/// What one more may count: it cuts another into two, and uses one more open.
const LOCKS_OF_ONE: usize = 3;

impl LockTable {
    pub(super) fn waits_for_grace(&self) -> bool {
        self.stopped || (self.grace.is_on() && !planted(Defect::GraceGrants))
    }

    pub(super) fn check_room(&self, wanted: &Wanted) -> Result<(), Status> {
        let session = self.sessions.get(&wanted.owner.session).ok_or(Status::BadSession)?;
        let full = session.locks + LOCKS_OF_ONE > self.limits.locks_per_session;
        let new = !self.places.contains_key(&wanted.place);
        if full || (new && self.places.len() >= self.limits.files) {
            return Err(Status::Resource);
        }
        let of_user = self.places_of.get(&session.uid).copied().unwrap_or(0);
        if !session.places.contains_key(&wanted.place) && of_user >= session.files_max {
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

    /// Who waits, in order.
    pub(super) fn queue(&self, place: Place) -> Vec<(LockTicket, Wanted)> {
        let queue = self.places.get(&place).into_iter().flat_map(|locks| &locks.queue);
        queue.filter_map(|ticket| Some((*ticket, self.waiters.get(ticket)?.wanted))).collect()
    }

    fn join(&mut self, ticket: LockTicket, wanted: Wanted, stays: bool) -> Result<(), Status> {
        let Wanted { place, owner, state, .. } = wanted;
        let session = self.sessions.get(&owner.session).ok_or(Status::BadSession)?;
        let locks = self.places.entry(place).or_default();
        let full = session.waits + session.unreported.len() >= self.limits.waits_per_session
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
        self.take_hold(wanted);
        self.changed(wanted.place, wanted.owner.session);
        self.look_for_passers(wanted.owner);
    }

    /// As `hold`; `changed` is to follow, and counts exactly.
    pub(super) fn take_hold(&mut self, wanted: &Wanted) {
        let Wanted { place, owner, range, exclusive, pid, state, .. } = *wanted;
        let locks = self.places.entry(place).or_default();
        locks.held.set(owner, range, exclusive, pid);
        note_use(locks, owner, state);
        self.holds_in.entry(owner).or_default().insert(place);
        self.grants += 1;
        if let Some(session) = self.sessions.get_mut(&owner.session) {
            let before = session.places.get(&place).copied().unwrap_or_default();
            let share = Share { locks: before.locks + LOCKS_OF_ONE, ..before };
            set_share(session, &mut self.places_of, place, share);
        }
    }

    /// Ends what owners of a session have in a place; their waits with `status`, or unreported.
    pub(super) fn drop_owners(
        &mut self,
        place: Place,
        session: SessionNumber,
        is: impl Fn(Owner) -> bool,
        status: Option<Status>,
    ) {
        for (ticket, wanted) in self.queue(place) {
            if !is(wanted.owner) {
                continue;
            }
            self.leave(ticket);
            if let Some(status) = status {
                self.report(ticket, &wanted, Err(status));
            }
        }
        let Some(locks) = self.places.get_mut(&place) else { return };
        let owners = locks.held.iter().map(|held| held.owner).filter(|owner| is(*owner));
        let owners: FxHashSet<Owner> = owners.collect();
        locks.held.clear_owners(&is);
        locks.used.retain(|(owner, _)| !is(*owner));
        for owner in owners {
            self.holds_no_more(place, owner);
        }
        self.changed(place, session);
    }

    /// Some of what an owner held in a place is free.
    pub(super) fn note_freed(&mut self, place: Place, owner: Owner) {
        let holds = |locks: &Locks| locks.held.iter().any(|held| held.owner == owner);
        if self.places.get(&place).is_some_and(holds) {
            return;
        }
        self.holds_no_more(place, owner);
    }

    fn holds_no_more(&mut self, place: Place, owner: Owner) {
        if let Some(places) = self.holds_in.get_mut(&owner) {
            places.remove(&place);
            if places.is_empty() {
                self.holds_in.remove(&owner);
            }
        }
    }

    pub(super) fn report(
        &mut self,
        ticket: LockTicket,
        wanted: &Wanted,
        result: Result<(), Status>,
    ) {
        let Wanted { place, owner, range, origin, .. } = *wanted;
        let Some(session) = self.sessions.get_mut(&owner.session) else { return };
        session.unreported.insert(ticket, result.ok().map(|()| (place, owner, range)));
        let (worker, id) = (session.worker, session.id);
        self.ended.push(Ended { worker, session: id, ticket, result, origin });
    }

    /// Counts again what a session has in a place, and notes that others may go on there.
    pub(super) fn changed(&mut self, place: Place, number: SessionNumber) {
        let mut share = Share::default();
        if let Some(locks) = self.places.get_mut(&place) {
            let of = |owner: &Owner| owner.session == number;
            let owner_of = |ticket: &LockTicket| Some(self.waiters.get(ticket)?.wanted.owner);
            let (queue, held) = (&locks.queue, &locks.held);
            let waiting = || queue.iter().filter_map(owner_of).filter(of);
            let held = || held.iter().map(|held| held.owner).filter(of);
            if locks.used.iter().any(|(owner, _)| of(owner)) {
                let there: FxHashSet<Owner> = held().chain(waiting()).collect();
                locks.used.retain(|(owner, _)| !of(owner) || there.contains(owner));
            }
            share.waits = waiting().count();
            share.locks = held().count() + locks.used.iter().filter(|(owner, _)| of(owner)).count();
            if locks.held.is_empty() && locks.queue.is_empty() {
                self.places.remove(&place);
            }
        }
        if let Some(session) = self.sessions.get_mut(&number) {
            set_share(session, &mut self.places_of, place, share);
        }
        self.unsettled.insert(place);
    }
}

/// A session has this in a place from now on.
fn set_share(
    session: &mut SessionLocks,
    places_of: &mut FxHashMap<u32, usize>,
    place: Place,
    share: Share,
) {
    let removed = session.places.remove(&place);
    let of_user = places_of.entry(session.uid).or_default();
    *of_user -= usize::from(removed.is_some());
    let before = removed.unwrap_or_default();
    session.locks = session.locks + share.locks - before.locks;
    session.waits = session.waits + share.waits - before.waits;
    if share != Share::default() {
        session.places.insert(place, share);
        *of_user += 1;
    }
    if *of_user == 0 {
        places_of.remove(&session.uid);
    }
}

fn note_use(locks: &mut Locks, owner: Owner, state: StateId) {
    if !owner.is_posix() && !locks.used.contains(&(owner, state)) {
        locks.used.push((owner, state));
    }
}
