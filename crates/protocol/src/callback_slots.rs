//! Callback slots of a session, at the server.

use std::collections::VecDeque;

use crate::callback::{CALLBACK_SLOTS, Callback, CallbackReply, CallbackRequest};
use crate::handle::SlotId;

/// Callbacks of one session, sent over connections `C`: each is sent again after a break until it
/// is answered. What finds no slot waits in order.
#[derive(Debug)]
pub struct CallbackSlots<C> {
    slots: [CallbackSlot<C>; CALLBACK_SLOTS as usize],
    waiting: VecDeque<(Callback, Option<(SlotId, u32)>)>,
    /// Slots whose callback is not under way.
    unsent: usize,
}

#[derive(Debug)]
struct CallbackSlot<C> {
    sequence: u32,
    request: Option<CallbackRequest>,
    sent_on: Option<C>,
}

impl<C> Default for CallbackSlots<C> {
    fn default() -> Self {
        let slot = || CallbackSlot { sequence: 0, request: None, sent_on: None };
        CallbackSlots {
            slots: std::array::from_fn(|_| slot()),
            waiting: VecDeque::new(),
            unsent: 0,
        }
    }
}

impl<C: Copy + Eq> CallbackSlots<C> {
    /// A callback is wanted, after the reply to the request that it refers to.
    pub fn push(&mut self, what: Callback, referring: Option<(SlotId, u32)>) {
        self.waiting.push_back((what, referring));
        self.fill();
    }

    fn fill(&mut self) {
        for (slot, number) in self.slots.iter_mut().zip(0..) {
            if slot.request.is_some() {
                continue;
            }
            let Some((what, referring)) = self.waiting.pop_front() else { return };
            slot.sequence = slot.sequence.wrapping_add(1);
            let sequence = slot.sequence;
            slot.request =
                Some(CallbackRequest { slot: SlotId(number), sequence, referring, what });
            self.unsent += 1;
        }
    }

    /// There is one that is not under way.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// One that is not under way.
    pub fn unsent(&self) -> Option<CallbackRequest> {
        self.slots.iter().find(|slot| slot.sent_on.is_none() && slot.request.is_some())?.request
    }

    /// It was sent on a connection.
    pub fn sent(&mut self, slot: SlotId, on: C) {
        let Some(slot) = self.slots.get_mut(usize::from(slot.0)) else { return };
        let was_unsent = slot.request.is_some() && slot.sent_on.is_none();
        slot.sent_on = Some(on);
        self.unsent -= usize::from(was_unsent);
    }

    /// A connection broke: what went over it is to be sent again.
    pub fn broken(&mut self, on: C) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sent_on == Some(on)) {
            slot.sent_on = None;
            self.unsent += usize::from(slot.request.is_some());
        }
    }

    /// An answer came over a connection: what it answers. `None`: nothing that was asked there.
    pub fn answered(&mut self, reply: &CallbackReply, on: C) -> Option<Callback> {
        let slot = self.slots.get_mut(usize::from(reply.slot.0))?;
        if slot.sent_on != Some(on) || slot.sequence != reply.sequence {
            return None;
        }
        let what = slot.request.take()?.what;
        slot.sent_on = None;
        self.fill();
        Some(what)
    }

    /// Those without an answer.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.slots.iter().filter(|slot| slot.request.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockTicket;

    fn lock(ticket: u64) -> Callback {
        Callback::Lock { ticket: LockTicket(ticket), result: Ok(()) }
    }

    fn reply(slot: u16, sequence: u32) -> CallbackReply {
        CallbackReply { slot: SlotId(slot), sequence, result: Ok(()) }
    }

    fn send_all(slots: &mut CallbackSlots<u8>, on: u8) -> Vec<(u16, u32, Callback)> {
        let mut sent = Vec::new();
        assert_eq!(slots.has_unsent(), slots.unsent().is_some());
        while let Some(request) = slots.unsent() {
            slots.sent(request.slot, on);
            sent.push((request.slot.0, request.sequence, request.what));
        }
        assert!(!slots.has_unsent());
        sent
    }

    #[test]
    fn more_callbacks_than_slots_wait_in_order() {
        let mut slots = CallbackSlots::default();
        (1..=6).for_each(|ticket| slots.push(lock(ticket), None));
        let first: Vec<_> = (0..4).map(|slot| (slot, 1, lock(u64::from(slot) + 1))).collect();
        assert_eq!(send_all(&mut slots, 0), first);
        assert_eq!(slots.answered(&reply(2, 1), 0), Some(lock(3)));
        assert_eq!(send_all(&mut slots, 0), [(2, 2, lock(5))]);
        assert_eq!(slots.outstanding(), 5);
    }

    #[test]
    fn it_is_sent_again_after_a_break_until_it_is_answered() {
        let mut slots = CallbackSlots::default();
        slots.push(lock(1), Some((SlotId(3), 9)));
        for connection in 0..3 {
            assert_eq!(slots.unsent().and_then(|request| request.referring), Some((SlotId(3), 9)));
            assert_eq!(send_all(&mut slots, connection), [(0, 1, lock(1))]);
            assert_eq!(send_all(&mut slots, connection), []);
            slots.broken(connection);
        }
        send_all(&mut slots, 3);
        assert_eq!(slots.answered(&reply(0, 1), 3), Some(lock(1)));
        slots.broken(3);
        assert_eq!((slots.unsent(), slots.outstanding()), (None, 0));
    }

    #[test]
    fn only_what_was_asked_there_is_answered_once() {
        let mut slots = CallbackSlots::default();
        assert_eq!(slots.answered(&reply(0, 0), 0), None);
        slots.push(lock(1), None);
        assert_eq!(slots.answered(&reply(0, 1), 0), None, "not sent");
        send_all(&mut slots, 0);
        for (wrong, on) in [(reply(0, 2), 0), (reply(1, 1), 0), (reply(4, 1), 0), (reply(0, 1), 1)]
        {
            assert_eq!(slots.answered(&wrong, on), None);
        }
        assert_eq!(slots.answered(&reply(0, 1), 0), Some(lock(1)));
        assert_eq!(slots.answered(&reply(0, 1), 0), None, "twice");
    }
}
