//! Where the queue pairs of an engine are.

use std::ops::{Index, IndexMut};

use dafs_fabric::{ConnectError, PostError, QueuePair};

use crate::connection::Handshake;
use crate::queue_pair::Connection;

/// Queue pairs of an engine.
const QUEUE_PAIRS_MAX: usize = 65536;

/// What a slot holds.
pub enum Link {
    Free,
    Connecting(Box<Handshake>),
    Up(Box<Connection>),
}

/// A place for a queue pair; its number is the slot and the generation.
struct Slot {
    generation: u32,
    link: Link,
}

/// All places.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// In use.
    live: Vec<u32>,
    /// Queue pairs whose handshake goes on.
    pub handshakes: usize,
}

impl Slots {
    /// A number for a queue pair, which is to be put into its [slot](slot_of).
    pub fn take(&mut self) -> Result<QueuePair, ConnectError> {
        if self.live.len() >= QUEUE_PAIRS_MAX {
            return Err(ConnectError::Resource("queue pairs of this engine"));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: Link::Free });
            (self.slots.len() - 1) as u32
        });
        self.live.push(slot);
        Ok(self.queue_pair(slot))
    }

    /// The slot's queue pair is gone for good.
    pub fn release(&mut self, slot: u32) -> Link {
        let entry = &mut self.slots[slot as usize];
        let link = std::mem::replace(&mut entry.link, Link::Free);
        // A slot whose generations are used up is never used again.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(slot);
        }
        self.live.retain(|live| *live != slot);
        link
    }

    /// The slots in use.
    pub fn live(&self) -> &[u32] {
        &self.live
    }

    /// There is such a slot.
    pub fn has(&self, slot: u32) -> bool {
        (slot as usize) < self.slots.len()
    }

    /// The number of a slot's queue pair.
    pub fn queue_pair(&self, slot: u32) -> QueuePair {
        let generation = self.slots[slot as usize].generation;
        QueuePair(u64::from(generation) << 32 | u64::from(slot))
    }

    /// The queue pair has not ended.
    pub fn is_current(&self, queue_pair: QueuePair) -> bool {
        self.current(queue_pair).is_some()
    }

    /// What is in the slot of a queue pair that has not ended.
    pub fn current(&self, queue_pair: QueuePair) -> Option<&Link> {
        let slot = self.slots.get(slot_of(queue_pair) as usize)?;
        (u64::from(slot.generation) == queue_pair.0 >> 32).then_some(&slot.link)
    }

    /// A queue pair that is connected.
    pub fn connection(&mut self, queue_pair: QueuePair) -> Result<&mut Connection, PostError> {
        match self.slots.get_mut(slot_of(queue_pair) as usize) {
            Some(Slot { generation, link: Link::Up(connection) })
                if u64::from(*generation) == queue_pair.0 >> 32 =>
            {
                Ok(connection)
            }
            _ => Err(PostError::NotConnected),
        }
    }
}

impl Index<u32> for Slots {
    type Output = Link;

    fn index(&self, slot: u32) -> &Link {
        &self.slots[slot as usize].link
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Link {
        &mut self.slots[slot as usize].link
    }
}

/// The slot of a queue pair.
pub fn slot_of(queue_pair: QueuePair) -> u32 {
    queue_pair.0 as u32
}
