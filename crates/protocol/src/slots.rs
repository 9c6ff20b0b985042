//! Slots: exactly-once over broken connections.
//!
//! A slot has one request at a time. A request names (slot, sequence); the next sequence on a
//! slot acknowledges the reply before. The server keeps the results of the last request of each
//! slot; a client that lost its connection resends the same (slot, sequence) on a new one.

use crate::codec::{KeptResults, keep_results};
use crate::handle::SlotId;
use crate::operation::OpResult;
use crate::status::Status;

/// What to do with a request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Execute it.
    New,
    /// It was executed: answer with these results; those that are `None` are repeatable and are
    /// executed again. It runs until [`ServerSlots::finish`], as a new one does: the next resend
    /// must not start it once more beside this one.
    Replay(Vec<Option<OpResult>>),
    /// It is being executed: the results go to the connection that asked last.
    Running,
    /// The peer's fault.
    Refuse(Status),
}

#[derive(Debug, Clone, Default)]
enum SlotState {
    #[default]
    Idle,
    Running,
    Done(KeptResults),
}

#[derive(Debug, Clone, Default)]
struct ServerSlot {
    sequence: u32,
    request_hash: u64,
    data_len: u32,
    state: SlotState,
}

/// The server's slots of one session.
#[derive(Debug)]
pub struct ServerSlots {
    slots: Vec<ServerSlot>,
    /// Where results are encoded before their length is known.
    encoded: Vec<u8>,
}

/// A slot on which a request of a sequence would be new.
#[derive(Debug)]
pub struct NextSlot<'a> {
    entry: &'a mut ServerSlot,
    sequence: u32,
}

impl NextSlot<'_> {
    /// The request, which has no data and is repeatable, was executed.
    #[inline(always)]
    pub fn passed(self, hash: u64) {
        let (sequence, state) = (self.sequence, SlotState::Done(KeptResults::default()));
        *self.entry = ServerSlot { sequence, request_hash: hash, data_len: 0, state };
    }
}

impl ServerSlots {
    /// `count` idle slots whose first request has sequence 1.
    pub fn new(count: u16) -> ServerSlots {
        let slots = vec![ServerSlot::default(); usize::from(count)];
        ServerSlots { slots, encoded: Vec::new() }
    }

    /// A request arrived, with `data_len` bytes of data. `hash` covers its operations (not data,
    /// not transport). A resend of another length is another request: who began with data would
    /// go on without.
    #[inline(always)]
    pub fn begin(&mut self, slot: SlotId, sequence: u32, hash: u64, data_len: u32) -> Verdict {
        let Some(entry) = self.slots.get_mut(usize::from(slot.0)) else {
            return Verdict::Refuse(Status::BadSlot);
        };
        if sequence == entry.sequence.wrapping_add(1) {
            if matches!(entry.state, SlotState::Running) {
                return Verdict::Refuse(Status::SeqMisordered);
            }
            let state = SlotState::Running;
            *entry = ServerSlot { sequence, request_hash: hash, data_len, state };
            return Verdict::New;
        }
        if sequence != entry.sequence || matches!(entry.state, SlotState::Idle) {
            return Verdict::Refuse(Status::SeqMisordered);
        }
        if hash != entry.request_hash || data_len != entry.data_len {
            return Verdict::Refuse(Status::SeqFalseRetry);
        }
        match std::mem::replace(&mut entry.state, SlotState::Running) {
            SlotState::Done(kept) => Verdict::Replay(kept.results()),
            _ => Verdict::Running,
        }
    }

    /// The slot, if a request with this sequence is [new](Verdict::New) there: it may be executed where it came.
    #[inline(always)]
    pub fn next(&mut self, slot: SlotId, sequence: u32) -> Option<NextSlot<'_>> {
        let entry = self.slots.get_mut(usize::from(slot.0))?;
        let is_next = sequence == entry.sequence.wrapping_add(1)
            && !matches!(entry.state, SlotState::Running);
        is_next.then_some(NextSlot { entry, sequence })
    }

    /// The request that runs on `slot` was executed; `results` are the cached ones, at most
    /// [`CHAIN_MAX`](crate::CHAIN_MAX). They are kept as bytes, no more than on the wire, and none
    /// of them takes no memory.
    pub fn finish<'a>(
        &mut self,
        slot: SlotId,
        results: impl IntoIterator<Item = Option<&'a OpResult>>,
    ) {
        if self.running_mut(slot).is_some() {
            let kept = keep_results(results, &mut self.encoded);
            if let Some(entry) = self.running_mut(slot) {
                entry.state = SlotState::Done(kept);
            }
        }
    }

    /// Bytes that the results of all slots take.
    pub fn kept_bytes(&self) -> usize {
        let bytes = |slot: &ServerSlot| match &slot.state {
            SlotState::Done(kept) => kept.bytes(),
            _ => 0,
        };
        self.slots.iter().map(bytes).sum()
    }

    /// The request that runs on `slot` could not start (its data never came): a resend is new
    /// again. The results before it are gone; by sending it the client acknowledged them.
    pub fn abandon(&mut self, slot: SlotId) {
        if let Some(entry) = self.running_mut(slot) {
            entry.sequence = entry.sequence.wrapping_sub(1);
            entry.state = SlotState::Idle;
        }
    }

    fn running_mut(&mut self, slot: SlotId) -> Option<&mut ServerSlot> {
        let entry = self.slots.get_mut(usize::from(slot.0))?;
        matches!(entry.state, SlotState::Running).then_some(entry)
    }

    /// Requests under way.
    pub fn running(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, SlotState::Running)).count()
    }
}

/// The client's slots of one session. The slot used last is taken first: its entry at the server
/// is warm, and a server may shrink what is never used.
#[derive(Debug)]
pub struct ClientSlots {
    slots: Vec<ClientSlot>,
    free: Vec<SlotId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ClientSlot {
    sequence: u32,
    taken: bool,
}

impl ClientSlots {
    /// As granted.
    pub fn new(count: u16) -> ClientSlots {
        ClientSlots {
            slots: vec![ClientSlot::default(); usize::from(count)],
            free: (0..count).rev().map(SlotId).collect(),
        }
    }

    /// A free slot and the sequence to use on it.
    pub fn take(&mut self) -> Option<(SlotId, u32)> {
        let slot = self.free.pop()?;
        let entry = self.slots.get_mut(usize::from(slot.0))?;
        entry.sequence = entry.sequence.wrapping_add(1);
        entry.taken = true;
        Some((slot, entry.sequence))
    }

    /// The reply arrived.
    #[inline(always)]
    pub fn release(&mut self, slot: SlotId) {
        if self.taken_mut(slot).is_some() {
            self.free.push(slot);
        }
    }

    /// Nothing was sent on `slot` since it was taken: its sequence is used again. (The server
    /// would refuse a gap.)
    pub fn untake(&mut self, slot: SlotId) {
        if let Some(entry) = self.taken_mut(slot) {
            entry.sequence = entry.sequence.wrapping_sub(1);
            self.free.push(slot);
        }
    }

    fn taken_mut(&mut self, slot: SlotId) -> Option<&mut ClientSlot> {
        let entry = self.slots.get_mut(usize::from(slot.0))?;
        std::mem::take(&mut entry.taken).then_some(entry)
    }

    /// Slots free now.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{CHAIN_MAX, Outcome};

    const SLOT: SlotId = SlotId(0);
    const HASH: u64 = 7;
    const DATA: u32 = 4096;

    fn results() -> Vec<Option<OpResult>> {
        vec![Some(Ok(Outcome::Done)), None, Some(Err(Status::NoSpc))]
    }

    fn refused(status: Status) -> Verdict {
        Verdict::Refuse(status)
    }

    #[test]
    fn sequences_start_at_one() {
        let mut slots = ServerSlots::new(1);
        assert_eq!(slots.begin(SLOT, 0, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 2, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::New);
    }

    #[test]
    fn unknown_slots_are_refused() {
        let mut slots = ServerSlots::new(2);
        assert_eq!(slots.begin(SlotId(2), 1, HASH, DATA), refused(Status::BadSlot));
        slots.finish(SlotId(2), []);
        slots.abandon(SlotId(2));
        assert_eq!(slots.running(), 0);
    }

    #[test]
    fn a_resend_is_answered_from_the_slot() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        for _ in 0..3 {
            assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Replay(results()));
            assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Running);
            assert_eq!(slots.begin(SLOT, 2, HASH, DATA), refused(Status::SeqMisordered));
            slots.finish(SLOT, results().iter().map(Option::as_ref));
        }
        assert_eq!(slots.begin(SLOT, 2, HASH, DATA), Verdict::New);
    }

    #[test]
    fn results_take_no_more_than_their_bytes() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        slots.finish(SLOT, [None; CHAIN_MAX]);
        assert_eq!(slots.kept_bytes(), 0);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Replay(vec![None; CHAIN_MAX]));
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        let each = slots.kept_bytes() / 2;
        assert!((1..16).contains(&each), "{each}");
        slots.begin(SLOT, 2, HASH, DATA);
        slots.finish(SLOT, []);
        assert_eq!(slots.begin(SLOT, 2, HASH, DATA), Verdict::Replay(vec![]));
    }

    #[test]
    fn a_resend_while_it_runs_does_not_start_it_again() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Running);
        assert_eq!(slots.running(), 1);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.running(), 0);
    }

    #[test]
    fn another_request_under_an_old_sequence_is_a_false_retry() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        assert_eq!(slots.begin(SLOT, 1, HASH + 1, DATA), refused(Status::SeqFalseRetry));
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.begin(SLOT, 1, HASH + 1, DATA), refused(Status::SeqFalseRetry));
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Replay(results()));
    }

    #[test]
    fn a_resend_with_another_length_of_data_is_a_false_retry() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        for len in [0, DATA - 1, DATA + 1] {
            assert_eq!(slots.begin(SLOT, 1, HASH, len), refused(Status::SeqFalseRetry));
        }
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Running);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.begin(SLOT, 1, HASH, 0), refused(Status::SeqFalseRetry));
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Replay(results()));
    }

    #[test]
    fn what_was_executed_where_it_came_is_as_if_it_had_run() {
        let mut slots = ServerSlots::new(1);
        assert!(slots.next(SLOT, 2).is_none() && slots.next(SlotId(1), 1).is_none());
        slots.next(SLOT, 1).expect("new").passed(HASH);
        assert!(slots.next(SLOT, 2).is_some() && slots.next(SLOT, 1).is_none());
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), refused(Status::SeqFalseRetry));
        assert_eq!(slots.begin(SLOT, 1, HASH, 0), Verdict::Replay(vec![]));
        assert!(slots.next(SLOT, 2).is_none(), "it runs again");
        slots.finish(SLOT, []);
        assert_eq!(slots.begin(SLOT, 2, HASH, 0), Verdict::New);
        assert!(slots.next(SLOT, 3).is_none(), "it runs");
    }

    #[test]
    fn gaps_past_sequences_and_overtaking_are_misordered() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        assert_eq!(slots.begin(SLOT, 2, HASH, DATA), refused(Status::SeqMisordered));
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        slots.begin(SLOT, 2, HASH, DATA);
        slots.finish(SLOT, []);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 4, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 3, HASH, DATA), Verdict::New);
    }

    #[test]
    fn sequences_wrap_around() {
        let mut slots = ServerSlots::new(1);
        let kept = keep_results(results().iter().map(Option::as_ref), &mut Vec::new());
        if let Some(slot) = slots.slots.first_mut() {
            *slot = ServerSlot {
                sequence: u32::MAX,
                request_hash: HASH,
                data_len: DATA,
                state: SlotState::Done(kept),
            };
        }
        assert_eq!(slots.begin(SLOT, u32::MAX, HASH, DATA), Verdict::Replay(results()));
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.begin(SLOT, 0, HASH + 1, DATA), Verdict::New);
        assert_eq!(slots.begin(SLOT, u32::MAX, HASH, DATA), refused(Status::SeqMisordered));
        slots.abandon(SLOT);
        assert_eq!(slots.begin(SLOT, 0, HASH, DATA), Verdict::New);
        slots.finish(SLOT, []);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::New);
    }

    #[test]
    fn an_abandoned_request_is_new_when_it_comes_again() {
        let mut slots = ServerSlots::new(1);
        slots.begin(SLOT, 1, HASH, DATA);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        slots.begin(SLOT, 2, HASH, DATA);
        slots.abandon(SLOT);
        assert_eq!(slots.running(), 0);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 3, HASH, DATA), refused(Status::SeqMisordered));
        assert_eq!(slots.begin(SLOT, 2, HASH + 1, DATA), Verdict::New);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.begin(SLOT, 2, HASH + 1, DATA), Verdict::Replay(results()));
    }

    #[test]
    fn only_what_runs_is_finished_or_abandoned() {
        let mut slots = ServerSlots::new(1);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        assert_eq!(slots.begin(SLOT, 0, 0, DATA), refused(Status::SeqMisordered));
        slots.begin(SLOT, 1, HASH, DATA);
        slots.finish(SLOT, results().iter().map(Option::as_ref));
        slots.abandon(SLOT);
        slots.finish(SLOT, []);
        assert_eq!(slots.begin(SLOT, 1, HASH, DATA), Verdict::Replay(results()));
    }

    #[test]
    fn a_client_counts_each_slot_alone() {
        let mut slots = ClientSlots::new(2);
        let (first, second) = (slots.take(), slots.take());
        assert_eq!((first, second), (Some((SlotId(0), 1)), Some((SlotId(1), 1))));
        assert_eq!(slots.take(), None);
        slots.release(SlotId(1));
        assert_eq!(slots.take(), Some((SlotId(1), 2)));
        slots.release(SlotId(0));
        assert_eq!(slots.take(), Some((SlotId(0), 2)));
    }

    #[test]
    fn a_slot_is_free_once_however_often_it_is_released() {
        let mut slots = ClientSlots::new(1);
        slots.take();
        slots.release(SLOT);
        slots.release(SLOT);
        slots.untake(SLOT);
        slots.release(SlotId(9));
        assert_eq!(slots.free(), 1);
        assert_eq!(slots.take(), Some((SLOT, 2)));
    }

    #[test]
    fn a_request_never_sent_leaves_no_gap() {
        let (mut client, mut server) = (ClientSlots::new(1), ServerSlots::new(1));
        let (slot, _) = client.take().unwrap();
        client.untake(slot);
        let (slot, sequence) = client.take().unwrap();
        assert_eq!(server.begin(slot, sequence, HASH, DATA), Verdict::New);
    }

    #[test]
    fn both_ends_agree_over_the_wrap() {
        let (mut client, mut server) = (ClientSlots::new(1), ServerSlots::new(1));
        for (slot, peer) in client.slots.iter_mut().zip(&mut server.slots) {
            (slot.sequence, peer.sequence) = (u32::MAX - 2, u32::MAX - 2);
        }
        for _ in 0..5 {
            let (slot, sequence) = client.take().unwrap();
            assert_eq!(server.begin(slot, sequence, HASH, DATA), Verdict::New);
            server.finish(slot, []);
            client.release(slot);
        }
    }
}
