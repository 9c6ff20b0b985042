//! Who goes on, who stands behind whom, and who would wait for ever.

use std::collections::BTreeSet;

use dafs_protocol::LockTicket;
use rustc_hash::FxHashSet;

use super::{LockTable, Owner, Place, Waiter, Wanted};

impl LockTable {
    /// Gives everybody what they may have now.
    pub(super) fn settle(&mut self) {
        if self.waits_for_grace() {
            self.unsettled.clear();
            return;
        }
        while let Some(place) = self.unsettled.pop_first() {
            self.settle_place(place);
        }
    }

    fn settle_place(&mut self, place: Place) {
        let mut before = Vec::new();
        for ticket in self.queue(place) {
            let Some(Waiter { wanted, .. }) = self.waiters.get(&ticket).copied() else { continue };
            if self.is_held_against(&wanted) || self.stands_behind(&wanted, &before) {
                before.push(ticket);
                continue;
            }
            self.leave(ticket);
            let result = self.check_room(&wanted);
            if result.is_ok() {
                self.hold(&wanted);
            }
            self.tell(ticket, &wanted, result);
            self.changed(place, wanted.owner.session);
        }
    }

    /// Somebody among those before it stands against it and does not wait for its owner.
    pub(super) fn stands_behind(&self, wanted: &Wanted, before: &[LockTicket]) -> bool {
        let waits_twice = |tickets: &Vec<LockTicket>| tickets.len() > 1;
        let is_waited_for = self.holds_in.contains_key(&wanted.owner)
            || self.of_owner.get(&wanted.owner).is_some_and(waits_twice);
        before.iter().any(|ticket| {
            let waiter = self.waiters.get(ticket);
            waiter.is_some_and(|waiter| waiter.wanted.is_against(wanted))
                && !(is_waited_for && self.waited_for(&[*ticket]).0.contains(&wanted.owner))
        })
    }

    /// Owners that a waiter waits for.
    fn stand_against(&self, ticket: LockTicket) -> Vec<Owner> {
        let Some(Waiter { wanted, .. }) = self.waiters.get(&ticket) else { return Vec::new() };
        let Some(locks) = self.places.get(&wanted.place) else { return Vec::new() };
        let held = locks.held.conflicts(wanted.owner, wanted.range, wanted.exclusive);
        let before = locks.queue.iter().take_while(|other| **other != ticket);
        let before = before.filter_map(|other| self.waiters.get(other));
        let before = before.filter(|waiter| waiter.wanted.is_against(wanted));
        held.map(|held| held.owner).chain(before.map(|waiter| waiter.wanted.owner)).collect()
    }

    /// All whom waiters wait for, directly or over others, and where.
    fn waited_for(&self, waiters: &[LockTicket]) -> (FxHashSet<Owner>, BTreeSet<Place>) {
        let (mut owners, mut places) = (FxHashSet::default(), BTreeSet::new());
        let mut todo = waiters.to_vec(); // not payload: tickets
        while let Some(ticket) = todo.pop() {
            places.extend(self.waiters.get(&ticket).map(|waiter| waiter.wanted.place));
            for owner in self.stand_against(ticket) {
                if owners.insert(owner)
                    && let Some(tickets) = self.of_owner.get(&owner)
                {
                    todo.extend(tickets);
                }
            }
        }
        (owners, places)
    }

    /// An owner that waits stands now against more than before. If it waits for itself, somebody
    /// in that circle may pass.
    pub(super) fn look_for_passers(&mut self, owner: Owner) {
        let Some(tickets) = self.of_owner.get(&owner) else { return };
        if self.waits_for_grace() || (tickets.len() == 1 && !self.holds_in.contains_key(&owner)) {
            return;
        }
        let (owners, places) = self.waited_for(tickets);
        if owners.contains(&owner) {
            self.unsettled.extend(places);
        }
    }

    /// As Linux finds deadlocks: of POSIX owners that wait for what POSIX owners hold.
    pub(super) fn closes_cycle(&self, wanted: &Wanted) -> bool {
        let mut seen = FxHashSet::default();
        let mut todo = vec![*wanted];
        while let Some(Wanted { place, owner, range, exclusive, .. }) = todo.pop() {
            let Some(locks) = self.places.get(&place) else { continue };
            for held in locks.held.conflicts(owner, range, exclusive) {
                if held.owner == wanted.owner {
                    return true;
                }
                if held.owner.is_posix()
                    && seen.insert(held.owner)
                    && let Some(tickets) = self.of_owner.get(&held.owner)
                {
                    let waiters = tickets.iter().filter_map(|ticket| self.waiters.get(ticket));
                    todo.extend(waiters.map(|waiter| waiter.wanted));
                }
            }
        }
        false
    }
}
