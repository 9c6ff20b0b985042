//! Who goes on, who stands behind whom, and who would wait for ever.

use std::collections::BTreeSet;

use dafs_protocol::LockTicket;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{LockTable, Locks, Owner, Place, Waiter, Wanted};

/// What one call may look at, in held locks, to find who waits for whom. Where that is not enough,
/// nobody passes those before it, and a deadlock is not seen.
pub(super) const STEPS_MAX: usize = 1 << 20;
/// A waiter counts as so many.
pub(super) const WAITER_STEPS: usize = 16;

/// Waiters of each place that a walk has not met yet, in their order.
#[derive(Debug, Default)]
struct Unseen(FxHashMap<Place, Vec<LockTicket>>);

impl Unseen {
    fn of(&mut self, place: Place, locks: &Locks) -> &mut Vec<LockTicket> {
        self.0.entry(place).or_insert_with(|| locks.queue.clone())
    }
}

impl LockTable {
    /// Gives everybody what they may have now. What is left, since enough was looked at, is for
    /// the next call.
    pub(super) fn settle(&mut self) {
        if self.waits_for_grace() {
            self.unsettled.clear();
            return;
        }
        self.begin();
        while self.steps.get() <= self.steps_max
            && let Some(place) = self.unsettled.pop_first()
        {
            self.settle_place(place);
        }
    }

    fn settle_place(&mut self, place: Place) {
        let mut before = Vec::new();
        let mut changed = BTreeSet::new();
        for (ticket, wanted) in self.queue(place) {
            if self.is_held_against(&wanted) || self.stands_behind(&wanted, &before) {
                before.push((ticket, wanted));
                continue;
            }
            self.leave(ticket);
            let result = self.check_room(&wanted);
            if result.is_ok() {
                self.take_hold(&wanted);
                self.look_for_passers(wanted.owner);
            }
            self.report(ticket, &wanted, result);
            changed.insert(wanted.owner.session);
        }
        // Counting takes as long for one grant as for all.
        for session in changed {
            self.changed(place, session);
        }
    }

    /// Somebody among those before it stands against it and does not wait for its owner.
    pub(super) fn stands_behind(&self, wanted: &Wanted, before: &[(LockTicket, Wanted)]) -> bool {
        self.look(before.len(), 0);
        let mut against = before.iter().filter(|(_, other)| other.is_against(wanted)).peekable();
        let waits_twice = |tickets: &Vec<LockTicket>| tickets.len() > 1;
        let is_waited_for = self.holds_in.contains_key(&wanted.owner)
            || self.of_owner.get(&wanted.owner).is_some_and(waits_twice);
        against.peek().is_some()
            && !(is_waited_for && self.all_wait_for(wanted.owner, against.map(|one| one.0)))
    }

    /// Whether all of these waiters wait for an owner, directly or over others: one walk, from
    /// the owner to those who wait for it.
    fn all_wait_for(&self, owner: Owner, these: impl Iterator<Item = LockTicket>) -> bool {
        if self.steps.get() > self.steps_max {
            return false;
        }
        let mut these: FxHashSet<_> = these.collect();
        let (mut owners, mut unseen) = (FxHashSet::from_iter([owner]), Unseen::default());
        let mut todo = vec![owner];
        while let Some(owner) = todo.pop() {
            for place in self.places_of(owner) {
                let Some(found) = self.wait_for(owner, place, &mut unseen) else { return false };
                for (ticket, other) in found {
                    these.remove(&ticket);
                    if owners.insert(other) {
                        todo.push(other);
                    }
                }
                if these.is_empty() {
                    return true;
                }
            }
        }
        false
    }

    /// Where an owner holds something or waits.
    fn places_of(&self, owner: Owner) -> BTreeSet<Place> {
        let holds_in = self.holds_in.get(&owner).into_iter().flatten().copied();
        holds_in.chain(self.waits_of(owner).map(|(_, wanted)| wanted.place)).collect()
    }

    fn waits_of(&self, owner: Owner) -> impl Iterator<Item = (LockTicket, Wanted)> + '_ {
        let tickets = self.of_owner.get(&owner).into_iter().flatten();
        tickets.filter_map(|ticket| Some((*ticket, self.waiters.get(ticket)?.wanted)))
    }

    /// Waiters of a place, not seen before, that stand behind an owner: what it holds, or its
    /// earlier waits. `None`: enough was looked at.
    fn wait_for(
        &self,
        owner: Owner,
        place: Place,
        unseen: &mut Unseen,
    ) -> Option<Vec<(LockTicket, Owner)>> {
        let Some(locks) = self.places.get(&place) else { return Some(Vec::new()) };
        let rest = unseen.of(place, locks);
        if !self.look(locks.held.len(), rest.len()) {
            return None;
        }
        let held: Vec<_> = locks.held.iter().filter(|held| held.owner == owner).collect();
        let waits: Vec<_> = self.waits_of(owner).filter(|(_, w)| w.place == place).collect();
        if !self.look(rest.len() * (held.len() + waits.len()), 0) {
            return None;
        }
        let mut found = Vec::new();
        rest.retain(|ticket| {
            let Some(Waiter { wanted, .. }) = self.waiters.get(ticket) else { return false };
            let stands = wanted.owner != owner
                && (held.iter().any(|held| wanted.is_against_held(held))
                    || waits.iter().any(|(own, wait)| own < ticket && wait.is_against(wanted)));
            if stands {
                found.push((*ticket, wanted.owner));
            }
            !stands
        });
        Some(found)
    }

    /// Owners that a waiter waits for, beside those whose waits were seen before.
    fn stand_against(&self, ticket: LockTicket, unseen: &mut Unseen) -> Option<Vec<Owner>> {
        let Some(Waiter { wanted, .. }) = self.waiters.get(&ticket) else {
            return Some(Vec::new());
        };
        let Some(locks) = self.places.get(&wanted.place) else { return Some(Vec::new()) };
        let rest = unseen.of(wanted.place, locks);
        if !self.look(locks.held.len(), rest.len()) {
            return None;
        }
        let held = locks.held.conflicts(wanted.owner, wanted.range, wanted.exclusive);
        let mut owners: Vec<_> = held.map(|held| held.owner).collect();
        rest.retain(|other| {
            let Some(waiter) = self.waiters.get(other) else { return false };
            let stands = *other < ticket && waiter.wanted.is_against(wanted);
            if stands {
                owners.push(waiter.wanted.owner);
            }
            !stands
        });
        Some(owners)
    }

    /// All whom waiters wait for, directly or over others, and where. `None`: enough was looked
    /// at.
    fn waited_for(&self, waiters: &[LockTicket]) -> Option<(FxHashSet<Owner>, BTreeSet<Place>)> {
        let (mut owners, mut places) = (FxHashSet::default(), BTreeSet::new());
        let mut unseen = Unseen::default();
        let mut todo = waiters.to_vec(); // not payload: tickets
        while let Some(ticket) = todo.pop() {
            places.extend(self.waiters.get(&ticket).map(|waiter| waiter.wanted.place));
            for owner in self.stand_against(ticket, &mut unseen)? {
                if owners.insert(owner)
                    && let Some(tickets) = self.of_owner.get(&owner)
                {
                    todo.extend(tickets);
                }
            }
        }
        Some((owners, places))
    }

    /// Counts what is to be looked at. False: that is too much for this call.
    fn look(&self, locks: usize, waiters: usize) -> bool {
        let steps = self.steps.get().saturating_add(locks + waiters * WAITER_STEPS);
        self.steps.set(steps);
        steps <= self.steps_max
    }

    /// A call begins: it may look at so much again.
    pub(super) fn begin(&self) {
        self.steps.set(0);
    }

    /// An owner that waits stands now against more than before. If it waits for itself, somebody
    /// in that circle may pass.
    pub(super) fn look_for_passers(&mut self, owner: Owner) {
        let Some(tickets) = self.of_owner.get(&owner) else { return };
        if self.waits_for_grace() || (tickets.len() == 1 && !self.holds_in.contains_key(&owner)) {
            return;
        }
        let Some((owners, places)) = self.waited_for(tickets) else { return };
        if owners.contains(&owner) {
            self.unsettled.extend(places);
        }
    }

    /// As Linux finds deadlocks: of POSIX owners that wait for what POSIX owners hold, and not
    /// where they would have to be looked for too long.
    pub(super) fn closes_cycle(&self, wanted: &Wanted) -> bool {
        let mut seen = FxHashSet::default();
        let mut todo = vec![*wanted];
        while let Some(Wanted { place, owner, range, exclusive, .. }) = todo.pop() {
            let Some(locks) = self.places.get(&place) else { continue };
            if !self.look(locks.held.len(), 1) {
                return false;
            }
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
