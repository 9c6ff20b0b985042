//! What the requests of a session may take together, and those that wait for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use dafs_protocol::SlotId;

use crate::budget::{Needs, UserShare};
use crate::delayed::Delayed;

/// A part of a user's share.
pub(crate) struct Allowance {
    /// The most that requests under way may take.
    most: Needs,
    /// The share of its user, of which they take.
    pub user: Arc<UserShare>,
    /// What they took.
    taken: Cell<Needs>,
    /// Requests that wait for what they need, in order.
    delayed: RefCell<VecDeque<Delayed>>,
    /// The ticket of the first of them, if it waits for what others took; the next one's.
    in_line: Cell<Option<u64>>,
    next_ticket: Cell<u64>,
}

impl Allowance {
    /// Of a new session.
    pub(crate) fn new(user: Arc<UserShare>) -> Allowance {
        Allowance {
            most: user.of_session(),
            user,
            taken: Cell::default(),
            delayed: RefCell::default(),
            in_line: Cell::new(None),
            next_ticket: Cell::new(0),
        }
    }

    /// Whether so much more may be taken.
    pub(crate) fn leaves_room(&self, needs: Needs) -> bool {
        self.taken.get().leaves_room(needs, self.most)
    }

    /// It is taken.
    pub(crate) fn take(&self, needs: Needs) {
        let mut taken = self.taken.get();
        taken.add(needs);
        self.taken.set(taken);
    }

    /// It is given back.
    pub(crate) fn give_back(&self, needs: Needs) {
        self.taken.set(self.taken.get().minus(needs));
    }

    /// Requests wait.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.delayed.borrow().is_empty()
    }

    /// A request waits, behind the others.
    pub(crate) fn delay(&self, request: Delayed) {
        self.delayed.borrow_mut().push_back(request);
    }

    /// What the first one that waits needs.
    pub(crate) fn first_needs(&self) -> Option<Needs> {
        self.delayed.borrow().front().map(|first| first.needs)
    }

    /// The first one waits no more.
    pub(crate) fn take_first(&self) -> Option<Delayed> {
        self.delayed.borrow_mut().pop_front()
    }

    /// Where the request of a slot waits.
    pub(crate) fn place_of(&self, slot: SlotId) -> Option<usize> {
        self.delayed.borrow().iter().position(|delayed| delayed.head.slot == slot)
    }

    /// The one that waits there does no more.
    pub(crate) fn remove(&self, place: usize) -> Option<Delayed> {
        self.delayed.borrow_mut().remove(place)
    }

    /// None waits any more.
    pub(crate) fn take_all(&self) -> VecDeque<Delayed> {
        self.delayed.take()
    }

    /// A ticket for the line of those who wait for what others took.
    pub(crate) fn next_ticket(&self) -> u64 {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        ticket
    }

    /// The first request is in that line with this ticket, or not.
    pub(crate) fn set_in_line(&self, ticket: Option<u64>) {
        self.in_line.set(ticket);
    }

    /// The ticket of the first request there.
    pub(crate) fn in_line(&self) -> Option<u64> {
        self.in_line.get()
    }
}
