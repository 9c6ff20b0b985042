//! What this side uses of a server's cache without a word: a bit for each slot, in memory that the server reads and
//! clears, so that what is read often stays there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_fabric::{Arena, ArenaError, MemoryRegion, Rkey, Span, Words};

const BITS: usize = u64::BITS as usize;

/// The bits of a cache. Their memory is used for nothing else: the server may clear some in it later than it is told
/// that they are gone.
#[derive(Debug)]
pub(crate) struct Accessed {
    words: Words,
    memory: Span,
    is_offered: AtomicBool,
    /// By which the server reaches it.
    region: OnceLock<MemoryRegion>,
}

impl Accessed {
    /// Of so many slots.
    pub(super) fn new(slots: usize) -> Result<Accessed, ArenaError> {
        let arena = Arena::shared(slots.div_ceil(BITS).max(1) * size_of::<u64>())?;
        Ok(Accessed {
            words: Words::new(&arena),
            memory: arena.span(0, arena.len()),
            is_offered: AtomicBool::new(false),
            region: OnceLock::new(),
        })
    }

    /// A slot was read.
    #[inline(always)]
    pub(super) fn note(&self, slot: usize) {
        self.words.set_bits(slot / BITS, 1 << (slot % BITS));
    }

    /// Whether the server knows of them, or will; from now on it does.
    pub(super) fn is_offered(&self) -> bool {
        self.is_offered.swap(true, Ordering::Relaxed)
    }

    /// The key by which the server reaches them, where it can.
    pub(crate) fn offer(&self, share: impl FnOnce(&Span) -> Option<MemoryRegion>) -> Option<Rkey> {
        let region = share(&self.memory)?;
        Some(self.region.get_or_init(|| region).remote().rkey)
    }

    /// Some slot was read since the server looked.
    #[cfg(test)]
    pub(super) fn take(&self, slot: usize) -> bool {
        self.words.take_bits(slot / BITS, 1 << (slot % BITS))
    }
}
