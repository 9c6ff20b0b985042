//! Requests under way, by slot.

use std::sync::Arc;

use dafs_message::ConnId;
use dafs_protocol::{CredHandle, Identity, PlainRead, SlotId};

use super::call::{CallRecord, Flight};
use super::ids::{FileKey, Owner};
use super::work::{Memory, Work};

/// A read of one piece that a connection has: what its answer needs, and what a [`Flight`] is made of where
/// something else comes than its answer.
#[derive(Debug)]
pub(super) struct ReadFlight {
    /// The connection that may still have its memory.
    pub(super) conn: ConnId,
    pub(super) link: usize,
    pub(super) owner: Owner,
    pub(super) tag: u64,
    /// As in [`CallRecord`].
    pub(super) user: Option<Arc<Identity>>,
    pub(super) file: FileKey,
    pub(super) request: PlainRead,
    pub(super) memory: Memory,
}

impl ReadFlight {
    /// As what all other requests are.
    fn into_flight(self) -> Flight {
        let PlainRead { head, offset, len, .. } = self.request;
        let mut call = CallRecord::internal(Work::Read { file: self.file, offset, len });
        (call.owner, call.tag, call.user) = (Some(self.owner), self.tag, self.user);
        call.memory = self.memory;
        let mut flight = Flight::new(call, head, self.link);
        (flight.posted, flight.sent) = (Some(self.conn), true);
        flight
    }
}

/// All of them. Plain reads are kept apart, in places that are used again, until somebody wants to see
/// [all](Self::all).
#[derive(Debug, Default)]
pub(super) struct Flights {
    others: Vec<Option<Flight>>,
    /// The encoded request of each slot, for sending it again; not of plain reads.
    headers: Vec<Vec<u8>>,
    reads: Vec<Option<ReadFlight>>,
}

impl Flights {
    /// None, in so many slots.
    pub(super) fn in_slots(slots: usize) -> Flights {
        Flights {
            others: (0..slots).map(|_| None).collect(),
            headers: vec![Vec::new(); slots],
            reads: (0..slots).map(|_| None).collect(),
        }
    }

    /// All, by slot.
    pub(super) fn all(&mut self) -> &mut [Option<Flight>] {
        for slot in 0..self.reads.len() {
            if let Some(read) = self.reads.get_mut(slot).and_then(Option::take) {
                if let Ok(bytes) = read.request.encode() {
                    self.set_header(slot, bytes.to_vec());
                }
                self.others[slot] = Some(read.into_flight());
            }
        }
        &mut self.others
    }

    /// All, by slot; none is left.
    pub(super) fn take_all(&mut self) -> Vec<Option<Flight>> {
        self.all();
        std::mem::take(self).others
    }

    /// All but plain reads.
    pub(super) fn others(&self) -> impl Iterator<Item = &Flight> {
        self.others.iter().flatten()
    }

    /// The place of one that is no plain read.
    pub(super) fn other(&mut self, slot: usize) -> Option<&mut Option<Flight>> {
        self.others.get_mut(slot)
    }

    pub(super) fn slots(&self) -> usize {
        self.others.len()
    }

    pub(super) fn put(&mut self, flight: Flight, header: Vec<u8>) {
        let slot = usize::from(flight.slot.0);
        self.set_header(slot, header);
        self.put_again(flight);
    }

    /// One whose encoded request is there.
    pub(super) fn put_again(&mut self, flight: Flight) {
        let slot = usize::from(flight.slot.0);
        self.others[slot] = Some(flight);
    }

    /// Puts a plain read into the slot that was taken for it.
    #[inline(always)]
    pub(super) fn put_read(&mut self, slot: SlotId, read: ReadFlight) {
        if let Some(place) = self.reads.get_mut(usize::from(slot.0)) {
            debug_assert!(place.is_none(), "a slot has one request at a time");
            // There was none, which is not known where it would be dropped.
            std::mem::forget(place.replace(read));
        }
    }

    /// The plain read in this slot, if the connection has it and `is_meant` agrees.
    #[inline(always)]
    pub(super) fn find_read(
        &mut self,
        (conn, slot): (ConnId, u32),
        is_meant: impl FnOnce(&ReadFlight) -> bool,
    ) -> Option<&mut ReadFlight> {
        let read = self.reads.get_mut(slot as usize)?.as_mut()?;
        (read.conn == conn && is_meant(read)).then_some(read)
    }

    /// It has ended: its place is free.
    #[inline(always)]
    pub(super) fn end_read(&mut self, slot: SlotId) {
        if let Some(place) = self.reads.get_mut(usize::from(slot.0)) {
            *place = None;
        }
    }

    /// The memory of the encoded request of a slot.
    pub(super) fn take_header(&mut self, slot: usize) -> Vec<u8> {
        self.headers.get_mut(slot).map(std::mem::take).unwrap_or_default()
    }

    fn set_header(&mut self, slot: usize, header: Vec<u8>) {
        if let Some(place) = self.headers.get_mut(slot) {
            *place = header;
        }
    }

    /// A request of this slot and sequence is under way.
    pub(super) fn is_under_way(&self, slot: SlotId, sequence: u32) -> bool {
        let slot = usize::from(slot.0);
        let other = self.others.get(slot).and_then(Option::as_ref).map(|flight| flight.sequence);
        let read = || self.reads.get(slot)?.as_ref().map(|read| read.request.head.sequence);
        other.or_else(read) == Some(sequence)
    }

    /// A request under way names this credential.
    pub(super) fn names(&self, cred: CredHandle) -> bool {
        let mut reads = self.reads.iter().flatten();
        self.others().any(|flight| flight.cred == cred)
            || reads.any(|read| read.request.head.cred == cred)
    }
}
