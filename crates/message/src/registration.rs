//! Memory regions that stay registered, so that no operation registers.
//!
//! A region covers the whole memory of a span's owner (an arena, a buffer), keeps the mapping
//! alive and is found by address. It does not keep a buffer's owner from getting it back. Lent
//! memory has no such owner and is never registered.

use std::sync::Arc;

use dafs_fabric::{Access, Device, MemoryRegion, ProtectionDomain, RemoteSpan, Span};
use smallvec::SmallVec;

use crate::header::REMOTE_SPANS_MAX;

/// Regions in the cache; the least recently used one goes first.
const REGIONS_MAX: usize = 64;

/// Keep memory registered while they are held.
pub type Regions = SmallVec<[Arc<MemoryRegion>; 2]>;

/// What a peer is told of memory.
pub type RemoteSpans = SmallVec<[RemoteSpan; 2]>;

/// The regions that a request relies on, and what its peer is told.
#[derive(Default)]
pub struct Registered {
    /// Alive until the request ends.
    pub regions: Regions,
    /// In the order of the list.
    pub remotes: RemoteSpans,
}

struct Entry {
    region: Arc<MemoryRegion>,
    access: Access,
    used: u64,
    /// Holders of the memory that are the region's own.
    holders: usize,
}

impl Entry {
    /// Nobody but the cache has the memory.
    fn is_left(&self) -> bool {
        let holders = self.region.span().holders().unwrap_or(0);
        Arc::strong_count(&self.region) == 1 && holders <= self.holders
    }
}

/// The regions of a node.
#[derive(Default)]
pub struct RegistrationCache {
    entries: Vec<Entry>,
    uses: u64,
    registrations: u64,
}

impl RegistrationCache {
    /// Regions now.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Regions made so far.
    pub fn registrations(&self) -> u64 {
        self.registrations
    }

    /// What to tell a peer of all of `list`; `None` when something of it cannot be registered
    /// or it has too many pieces.
    pub fn list(
        &mut self,
        device: &dyn Device,
        list: &[Span],
        access: Access,
    ) -> Option<Registered> {
        let mut registered = Registered::default();
        if list.len() > REMOTE_SPANS_MAX {
            return None;
        }
        for span in list {
            let region = self.region(device, span, access)?;
            let offset = usize::try_from(span.addr() - region.span().addr()).ok()?;
            registered.remotes.push(region.part(offset, span.len()));
            if registered.regions.last().is_none_or(|last| !Arc::ptr_eq(last, &region)) {
                registered.regions.push(region);
            }
        }
        Some(registered)
    }

    /// What to tell a peer of the first `len` bytes of memory that is registered already, and what keeps it so.
    #[inline(always)]
    pub fn known(
        &mut self,
        (span, len): (&Span, usize),
        access: Access,
    ) -> Option<(Arc<MemoryRegion>, RemoteSpan)> {
        let region = self.hit(span, access)?;
        let offset = usize::try_from(span.addr() - region.span().addr()).ok()?;
        let remote = region.part(offset, len);
        Some((region, remote))
    }

    /// The regions by which the device knows all of `list` as local memory; `None` when it does not
    /// and something of it cannot be registered.
    pub fn local(&mut self, domain: &ProtectionDomain, list: &[Span]) -> Option<Regions> {
        let none = Access { remote_read: false, remote_write: false };
        let mut regions = Regions::new();
        for span in list {
            let is_in = |region: &Arc<MemoryRegion>| region.span().contains(span);
            if regions.last().is_some_and(is_in) {
                continue;
            }
            let region = match domain.find(span) {
                None if domain.is_refused(span) => None,
                None => self.region(domain.device(), span, none),
                known => known,
            };
            regions.push(region?);
        }
        Some(regions)
    }

    /// Takes regions of this memory out of the cache: its owner wants it back. What requests rely on
    /// stays registered until they end.
    pub fn let_go(&mut self, memory: &Span) {
        self.entries.retain(|entry| !memory.contains(entry.region.span()));
    }

    /// Takes regions out of the cache: a connection that relied on them broke, perhaps since the
    /// device had ended them.
    pub fn forget(&mut self, regions: &[Arc<MemoryRegion>]) {
        self.entries.retain(|entry| !regions.iter().any(|of| Arc::ptr_eq(of, &entry.region)));
    }

    #[inline(always)]
    fn hit(&mut self, span: &Span, access: Access) -> Option<Arc<MemoryRegion>> {
        self.uses += 1;
        let is_hit =
            |entry: &&mut Entry| entry.access == access && entry.region.span().contains(span);
        let entry = self.entries.iter_mut().find(is_hit)?;
        entry.used = self.uses;
        Some(entry.region.clone())
    }

    fn region(
        &mut self,
        device: &dyn Device,
        span: &Span,
        access: Access,
    ) -> Option<Arc<MemoryRegion>> {
        if let Some(region) = self.hit(span, access) {
            return Some(region);
        }
        // What is gone elsewhere shall not stay for the cache's sake.
        self.entries.retain(|entry| !entry.is_left());
        let holders = span.holders()?;
        let region = Arc::new(device.register(span.owner()?, access).ok()?);
        let holders = region.span().holders()?.saturating_sub(holders);
        self.registrations += 1;
        if self.entries.len() == REGIONS_MAX {
            let oldest = (0..self.entries.len()).min_by_key(|i| self.entries[*i].used)?;
            self.entries.swap_remove(oldest);
        }
        self.entries.push(Entry { region: region.clone(), access, used: self.uses, holders });
        Some(region)
    }
}
