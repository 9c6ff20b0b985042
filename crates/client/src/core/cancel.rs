//! Calls whose caller gave up while the network may have memory that it lent.

use std::collections::VecDeque;

use dafs_fabric::{Buffer, Span};

use super::Core;
use super::call::CallRecord;
use super::ids::Owner;
use super::work::{Memory, Work};

/// What is left of calls that are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// Nothing that matters to the owner.
    Free,
    /// The end of a wait for a lock; what comes of it is given back when the owner is abandoned.
    Waiting,
    /// The network has memory that the owner lent.
    Lent,
}

impl Core {
    /// The owner waits no longer: wants the memory back that it lent, and no locks. Answers may
    /// still come; unless it is [`Cancelled::Free`] this is to be asked again after progress.
    pub fn cancel(&mut self, owner: Owner) -> Cancelled {
        self.drop_queued(owner);
        let mut cancelled = Cancelled::Free;
        if self.cancel_waits(owner, false) {
            cancelled = Cancelled::Waiting;
        }
        for slot in 0..self.requests.flights.slots() {
            let flight = self.requests.flights.all()[slot].as_mut();
            let Some(flight) = flight.filter(|flight| flight.call.owner == Some(owner)) else {
                continue;
            };
            let lent = matches!(flight.call.memory, Memory::Span(_));
            if matches!(flight.call.work, Work::Lock { .. }) {
                flight.call.cancelled = true;
                cancelled = Cancelled::Waiting;
            } else if lent && flight.posted.is_some() {
                flight.call.cancelled = true;
                cancelled = Cancelled::Lent;
            } else if lent {
                self.detach(slot);
            }
        }
        cancelled
    }

    /// Ends the calls of `owner` with this tag that are queued, as interrupted, but for closes: there is
    /// no other way to close the file. False: there are none.
    pub fn cancel_queued(&mut self, owner: Owner, tag: u64) -> bool {
        let mut any = false;
        for index in 0..self.requests.queues.len() {
            let is_meant = |call: &CallRecord| {
                let is_close = matches!(call.work, Work::Close { .. });
                call.owner == Some(owner) && call.tag == tag && !is_close
            };
            if !self.requests.queues[index].iter().any(|call| is_meant(call)) {
                continue;
            }
            let queue = std::mem::take(&mut self.requests.queues[index]);
            let (dropped, kept): (VecDeque<Box<CallRecord>>, _) =
                queue.into_iter().partition(|call| is_meant(call));
            self.requests.queues[index] = kept;
            for call in dropped {
                any = true;
                self.finish(call, Err(crate::error::Error::Interrupted));
            }
        }
        any
    }

    /// The owner of memory wants all of it back: see `Node::let_go`.
    pub fn let_go(&mut self, memory: &Span) {
        self.node.let_go(memory);
    }

    /// Ends the connections that have memory which calls of `owner` were lent.
    pub fn break_links_of(&mut self, owner: Owner) {
        for flight in self.requests.flights.all().iter().flatten() {
            if let (Some(conn), true) = (flight.posted, flight.call.owner == Some(owner)) {
                self.node.disconnect(conn, "a call was interrupted");
            }
        }
        self.requests.rung = false;
        self.wants_progress = true;
    }

    /// A withdrawn call that the network has left goes on in memory of its own: its slot needs
    /// an answer, and the server may want its data.
    pub(super) fn detach(&mut self, slot: usize) {
        let Some(Some(flight)) = self.requests.flights.other(slot) else { return };
        let Memory::Span(span) = &flight.call.memory else { return };
        let own = Buffer::new(span.len()).map(Buffer::post);
        let (memory, failed) = match own {
            Ok(own) => {
                if flight.call.work.request_bytes() > 0 {
                    own.span().copy_span(0, span);
                }
                (Memory::Buffer(own), false)
            }
            Err(_) => (Memory::None, true),
        };
        flight.call.memory = memory;
        flight.call.owner = None;
        self.requests.background += 1;
        if failed {
            // Without memory it cannot be asked again; the session is.
            self.lose_session();
        }
    }

    /// Calls of `owner` that did not leave end, but for closes: they go on, and nobody is told.
    pub(super) fn drop_queued(&mut self, owner: Owner) {
        self.drop_in_doubt(owner);
        for index in 0..self.requests.queues.len() {
            let is_close = |call: &&mut Box<CallRecord>| {
                call.owner == Some(owner) && matches!(call.work, Work::Close { .. })
            };
            for close in self.requests.queues[index].iter_mut().filter(is_close) {
                close.owner = None;
                self.requests.background += 1;
            }
            if !self.requests.queues[index].iter().any(|call| call.owner == Some(owner)) {
                continue;
            }
            let queue = std::mem::take(&mut self.requests.queues[index]);
            let (dropped, kept): (VecDeque<Box<CallRecord>>, _) =
                queue.into_iter().partition(|call| call.owner == Some(owner));
            self.requests.queues[index] = kept;
            for mut call in dropped {
                call.owner = None;
                self.requests.background += 1;
                self.finish(call, Err(crate::error::Error::Interrupted));
            }
        }
    }
}
