//! Memory that a device knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Span;
use crate::types::{RemoteSpan, Rkey};

static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// Memory regions registered by this process so far.
pub fn registrations() -> u64 {
    REGISTRATIONS.load(Ordering::Relaxed)
}

/// What a provider does when a region ends.
pub trait Deregister: Send + Sync {
    /// Ends all access by this key. Idempotent.
    fn deregister(&self, rkey: Rkey);
}

/// Registered memory: peers reach it by its key until it is dropped or invalidated.
pub struct MemoryRegion {
    span: Span,
    rkey: Rkey,
    owner: Arc<dyn Deregister>,
}

impl MemoryRegion {
    /// For providers: counts the registration.
    pub fn new(span: Span, rkey: Rkey, owner: Arc<dyn Deregister>) -> MemoryRegion {
        REGISTRATIONS.fetch_add(1, Ordering::Relaxed);
        MemoryRegion { span, rkey, owner }
    }

    /// The memory.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// What to tell a peer, for all of it.
    ///
    /// # Panics
    /// When the region has 4 GiB or more; ask for a [`part`](Self::part).
    pub fn remote(&self) -> RemoteSpan {
        self.part(0, self.span.len)
    }

    /// What to tell a peer, for a part.
    ///
    /// # Panics
    /// When the part is not inside, or has 4 GiB or more.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> RemoteSpan {
        assert!(offset <= self.span.len && len <= self.span.len - offset, "outside of the region");
        let len = u32::try_from(len).expect("a remote span is below 4 GiB");
        RemoteSpan { rkey: self.rkey, addr: self.span.addr() + offset as u64, len }
    }

    /// Ends remote access now: later requests by peers meet an access fault.
    pub fn invalidate(&self) {
        self.owner.deregister(self.rkey);
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.owner.deregister(self.rkey);
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegion").field("rkey", &self.rkey).finish_non_exhaustive()
    }
}
