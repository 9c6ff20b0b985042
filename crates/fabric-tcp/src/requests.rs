//! What was posted to send, and where it is kept.

use dafs_fabric::{Opcode, SgList, WrId};

use crate::scatter_gather::Cursor;

/// Sends, reads and writes under way; a peer that has more is not one of ours.
pub const SEND_QUEUE_DEPTH: usize = 1024;

/// Entries with stable numbers.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Without entries.
    pub fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Takes an entry in.
    pub fn insert(&mut self, entry: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = Some(entry);
            return slot;
        }
        let slot = u32::try_from(self.entries.len()).expect("fewer than 2^32 entries");
        self.entries.push(Some(entry));
        slot
    }

    /// Gives an entry out.
    pub fn remove(&mut self, slot: u32) -> T {
        self.free.push(slot);
        self.entries[slot as usize].take().expect("the slot is in use")
    }

    /// The entry of `slot`.
    pub fn at(&self, slot: u32) -> &T {
        self.entries[slot as usize].as_ref().expect("the slot is in use")
    }

    /// The entry of `slot`, if it is in use.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// Those in use, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    /// The entry of `slot`.
    pub fn at_mut(&mut self, slot: u32) -> &mut T {
        self.entries[slot as usize].as_mut().expect("the slot is in use")
    }

    /// Those in use.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }
}

/// A posted send, tagged send, RDMA write or read.
#[derive(Debug)]
pub struct Request {
    pub wr_id: WrId,
    pub opcode: Opcode,
    pub signaled: bool,
    /// Order of posting, over all that is posted to the engine.
    pub sequence: u64,
    /// Tag or region key.
    pub key: u64,
    /// The peer's address.
    pub addr: u64,
    pub header: Vec<u8>,
    pub data: SgList,
    /// Bytes of `data`.
    pub total: u32,
    /// Bytes of `data` that are cut into frames, or that a read received.
    pub done: u32,
    /// Where in `data` that is.
    pub cursor: Cursor,
    /// Number of a write or read.
    pub id: u32,
    /// Sends posted before: they go first.
    pub sends_before: u64,
    /// The last frame left: an answer may come.
    pub left: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again() {
        let mut slab = Slab::new();
        let a = slab.insert("a");
        let b = slab.insert("b");
        assert_eq!(slab.remove(a), "a");
        assert_eq!((slab.len(), slab.insert("c"), *slab.at(b)), (1, a, "b"));
    }
}
