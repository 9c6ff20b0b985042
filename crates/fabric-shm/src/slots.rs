//! Where the queue pairs of an engine are.

use std::sync::Arc;

use dafs_fabric::{ConnectError, PostError, QueuePair};

use crate::connection::Handshake;
use crate::peer::Peer;
use crate::queue_pair::Connection;

/// Queue pairs of an engine.
const QUEUE_PAIRS_MAX: usize = 65536;

/// What a slot holds.
pub enum Link {
    Free,
    Connecting(Box<Handshake>),
    Up(Box<Connection>),
    /// We left the peer's memory, and it may still be in ours.
    Closing(Arc<Peer>),
    /// It is quiescent, and its peer still reads what it was lent.
    Read(Arc<Peer>),
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
    pub live: usize,
    /// Slots of queue pairs whose handshake goes on.
    pub handshakes: Vec<u32>,
}

impl Slots {
    /// A number for a queue pair, which is to be put into its [slot](slot_of).
    pub fn take(&mut self) -> Result<QueuePair, ConnectError> {
        if self.live >= QUEUE_PAIRS_MAX {
            return Err(ConnectError::Resource("queue pairs of this engine"));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: Link::Free });
            (self.slots.len() - 1) as u32
        });
        self.live += 1;
        Ok(self.queue_pair(slot))
    }

    /// The slot's queue pair is gone for good.
    pub fn release(&mut self, slot: u32) -> Link {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return Link::Free };
        let link = std::mem::replace(&mut entry.link, Link::Free);
        // A slot whose generations are used up is never used again.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(slot);
        }
        self.live -= 1;
        self.handshakes.retain(|listed| *listed != slot);
        link
    }

    /// The number of a slot's queue pair.
    pub fn queue_pair(&self, slot: u32) -> QueuePair {
        let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
        QueuePair(u64::from(generation) << 32 | u64::from(slot))
    }

    /// What is in a slot.
    #[inline]
    pub fn link(&mut self, slot: u32) -> Option<&mut Link> {
        self.slots.get_mut(slot as usize).map(|slot| &mut slot.link)
    }

    /// Puts something into a slot, in place of what was there.
    pub fn put(&mut self, slot: u32, link: Link) -> Link {
        match self.link(slot) {
            Some(place) => std::mem::replace(place, link),
            None => Link::Free,
        }
    }

    /// What is connected there.
    #[inline]
    pub fn up(&mut self, slot: u32) -> Option<&mut Connection> {
        match self.link(slot) {
            Some(Link::Up(connection)) => Some(connection),
            _ => None,
        }
    }

    /// What is in the slot of a queue pair that has not ended.
    pub fn current(&self, queue_pair: QueuePair) -> Option<&Link> {
        let slot = self.slots.get(slot_of(queue_pair) as usize)?;
        (u64::from(slot.generation) == queue_pair.0 >> 32).then_some(&slot.link)
    }

    /// A queue pair that is connected.
    #[inline]
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

/// The slot of a queue pair.
#[inline]
pub fn slot_of(queue_pair: QueuePair) -> u32 {
    queue_pair.0 as u32
}
