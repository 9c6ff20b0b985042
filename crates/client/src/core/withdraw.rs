//! Calls whose caller gave up while the network may have memory that it lent.

use std::collections::VecDeque;

use dafs_fabric::Buffer;

use super::Core;
use super::call::{CallRec, Flight};
use super::work::{Memory, Owner};

impl Core {
    /// The owner waits no longer, and wants the memory back that it lent. True: it has it, and
    /// nothing here names it. Otherwise answers may come, and this is to be asked again after
    /// progress.
    pub fn withdraw(&mut self, owner: Owner) -> bool {
        self.drop_queued(owner);
        let mut waits = false;
        for slot in 0..self.flights.len() {
            let lends = |flight: &Flight| {
                flight.call.owner == Some(owner) && matches!(flight.call.memory, Memory::Span(_))
            };
            let Some(flight) = self.flights[slot].as_mut().filter(|flight| lends(flight)) else {
                continue;
            };
            flight.call.withdrawn = true;
            if flight.posted.is_some() {
                waits = true;
            } else {
                self.detach(slot);
            }
        }
        !waits
    }

    /// Ends the connections that have memory which calls of `owner` were lent.
    pub fn break_links_of(&mut self, owner: Owner) {
        for flight in self.flights.iter().flatten() {
            if let (Some(conn), true) = (flight.posted, flight.call.owner == Some(owner)) {
                self.node.disconnect(conn, "a call was interrupted");
            }
        }
        self.rung = false;
        self.wants_progress = true;
    }

    /// A withdrawn call that the network has left goes on in memory of its own: its slot needs
    /// an answer, and the server may want its data.
    pub(super) fn detach(&mut self, slot: usize) {
        let Some(flight) = self.flights[slot].as_mut() else { return };
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
        self.background += 1;
        if failed {
            // Without memory it cannot be asked again; the session is.
            self.lose_session();
        }
    }

    /// Calls of `owner` that did not leave end.
    pub(super) fn drop_queued(&mut self, owner: Owner) {
        for index in 0..self.queues.len() {
            if !self.queues[index].iter().any(|call| call.owner == Some(owner)) {
                continue;
            }
            let queue = std::mem::take(&mut self.queues[index]);
            let (dropped, kept): (VecDeque<CallRec>, _) =
                queue.into_iter().partition(|call| call.owner == Some(owner));
            self.queues[index] = kept;
            for mut call in dropped {
                call.owner = None;
                self.background += 1;
                self.finish(call, Err(crate::error::Error::Interrupted));
            }
        }
    }
}
