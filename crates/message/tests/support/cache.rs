//! Memory from which replies are taken.

use std::sync::Arc;

use dafs_fabric::{Arena, Domain, Readers, Span};
use dafs_message::ReferenceQuota;

use super::Plan;

/// Memory that peers may read, from which replies are taken. What is there when nobody is to look is garbage.
pub struct Cache {
    arena: Arc<Arena>,
    free: Vec<usize>,
    bytes: usize,
    pub quota: Arc<ReferenceQuota>,
}

/// Of all references of a side.
pub const QUOTA_BYTES: usize = 1 << 20;

impl Cache {
    pub fn new(domain: &Domain, plan: &Plan) -> Option<Cache> {
        let bytes = (plan.data_max.max(16384) + 5).next_multiple_of(4096);
        let arena =
            Arena::for_readers((plan.cached * bytes).max(1), 1 << 30, Readers::Own).unwrap();
        arena.span(0, arena.len()).write_message(0, &vec![0xee; arena.len()]);
        let is_there = plan.cached > 0;
        if is_there {
            domain.let_peers_read(&arena.span(0, arena.len())).unwrap();
        }
        let quota = ReferenceQuota::new(QUOTA_BYTES, QUOTA_BYTES);
        is_there.then(|| Cache { arena, free: (0..plan.cached).collect(), bytes, quota })
    }

    /// A reply in it, if there is room.
    pub fn put(&mut self, data: &[u8]) -> Option<(usize, Span)> {
        let place = self.free.pop()?;
        let span = self.arena.span(place * self.bytes, data.len());
        span.write_message(0, data);
        Some((place, span))
    }

    /// All of it.
    pub fn whole(&self) -> Span {
        self.arena.span(0, self.arena.len())
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn take(&mut self, place: usize) {
        let span = self.arena.span(place * self.bytes, self.bytes);
        span.write_message(0, &vec![0xee; self.bytes]);
        self.free.push(place);
    }
}
