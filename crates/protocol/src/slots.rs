//! Slots: exactly-once over broken connections.
//!
//! A slot has one request at a time. A request names (slot, sequence); the next sequence on a
//! slot acknowledges the reply before. The server keeps the results of the last request of each
//! slot; a client that lost its connection resends the same (slot, sequence) on a new one.

use std::collections::VecDeque;

use crate::handle::SlotId;
use crate::operation::OpResult;
use crate::status::Status;

/// What to do with a request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Execute it.
    New,
    /// It was executed: answer with these results; those that are `None` are repeatable and are
    /// executed again.
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
    Done(Vec<Option<OpResult>>),
}

#[derive(Debug, Clone, Default)]
struct ServerSlot {
    sequence: u32,
    request_hash: u64,
    state: SlotState,
}

/// The server's slots of one session.
#[derive(Debug)]
pub struct ServerSlots {
    slots: Vec<ServerSlot>,
}

impl ServerSlots {
    /// `count` idle slots whose first request has sequence 1.
    pub fn new(count: u16) -> ServerSlots {
        ServerSlots { slots: vec![ServerSlot::default(); usize::from(count)] }
    }

    /// A request arrived. `hash` covers its operations (not data, not transport).
    pub fn begin(&mut self, slot: SlotId, sequence: u32, hash: u64) -> Verdict {
        let Some(entry) = self.slots.get_mut(usize::from(slot.0)) else {
            return Verdict::Refuse(Status::BadSlot);
        };
        if sequence == entry.sequence.wrapping_add(1) {
            if matches!(entry.state, SlotState::Running) {
                return Verdict::Refuse(Status::SeqMisordered);
            }
            *entry = ServerSlot { sequence, request_hash: hash, state: SlotState::Running };
            return Verdict::New;
        }
        if sequence != entry.sequence || matches!(entry.state, SlotState::Idle) {
            return Verdict::Refuse(Status::SeqMisordered);
        }
        if hash != entry.request_hash {
            return Verdict::Refuse(Status::SeqFalseRetry);
        }
        match &entry.state {
            SlotState::Done(results) => Verdict::Replay(results.clone()),
            _ => Verdict::Running,
        }
    }

    /// The request of `slot` was executed; `results` holds the cached ones.
    pub fn finish(&mut self, slot: SlotId, results: Vec<Option<OpResult>>) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot.0)) {
            entry.state = SlotState::Done(results);
        }
    }

    /// The request of `slot` could not start (its data never came): a resend is new again.
    pub fn abandon(&mut self, slot: SlotId) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot.0)) {
            entry.sequence = entry.sequence.wrapping_sub(1);
            entry.state = SlotState::Idle;
        }
    }

    /// Requests under way.
    pub fn running(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, SlotState::Running)).count()
    }
}

/// The client's slots of one session.
#[derive(Debug)]
pub struct ClientSlots {
    sequences: Vec<u32>,
    free: VecDeque<SlotId>,
}

impl ClientSlots {
    /// As granted.
    pub fn new(count: u16) -> ClientSlots {
        ClientSlots {
            sequences: vec![0; usize::from(count)],
            free: (0..count).map(SlotId).collect(),
        }
    }

    /// A free slot and the sequence to use on it.
    pub fn take(&mut self) -> Option<(SlotId, u32)> {
        let slot = self.free.pop_back()?;
        let sequence = self.sequences.get_mut(usize::from(slot.0))?;
        *sequence = sequence.wrapping_add(1);
        Some((slot, *sequence))
    }

    /// The reply arrived.
    pub fn release(&mut self, slot: SlotId) {
        self.free.push_back(slot);
    }

    /// Slots free now.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}
