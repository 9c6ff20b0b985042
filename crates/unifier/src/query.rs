//! What is cached of a file, and what its users say about it: prefetch, drop, wishes.

use std::sync::Arc;

use dafs_fabric::Arena;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::{CacheHint, CacheInfo, CachedRange};

use crate::blocks::BlockRange;
use crate::file::{CachedFile, Inner, Which};
use crate::fill::allocate_all;
use crate::planted::{Defect, planted};
use crate::pool::{FRAME_SLOTS, SLOT};
use crate::read::Plan;

/// Clusters that one query looks at: the file is locked meanwhile.
const QUERY_CLUSTERS_MAX: usize = 4096;
/// Bytes that one prefetch may begin to read.
const PREFETCH_BYTES_MAX: usize = 4 << 20;
/// Fills of one file under way, above which nothing is prefetched.
const PREFETCHES_MAX: usize = 8;

/// What [`CachedFile::query`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// In order; neighbours differ in whether they are dirty.
    pub ranges: Vec<CachedRange>,
    /// Sums over the ranges, and where to go on. `bytes` is 0: what the ranges take on the wire is
    /// the server's matter.
    pub info: CacheInfo,
}

impl CachedFile {
    /// What is cached of a range (`len` 0: to the end), as at most `most` ranges.
    pub fn query(&self, offset: u64, len: u64, most: usize) -> Cached {
        const CLUSTER_BYTES: u64 = SLOT * FRAME_SLOTS as u64;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let inner = &*self.lock();
        let mut found = Cached {
            ranges: Vec::new(),
            info: CacheInfo { size: inner.size, cache: self.hint(inner), ..CacheInfo::default() },
        };
        if end <= offset {
            return found;
        }
        let clusters =
            inner.blocks.clusters.range(offset / CLUSTER_BYTES..=(end - 1) / CLUSTER_BYTES);
        for (looked, (number, cluster)) in clusters.enumerate() {
            if looked == QUERY_CLUSTERS_MAX {
                found.info.next = Some(number * CLUSTER_BYTES);
                break;
            }
            let unwritten = cluster.dirty | cluster.writing;
            for (slot, _) in cluster.pages.iter().enumerate().filter(|(_, page)| !page.is_none()) {
                let start = number * CLUSTER_BYTES + slot as u64 * SLOT;
                let is_within = start + SLOT > offset && start < end;
                if is_within && !found.add(start, unwritten >> slot & 1 != 0, most) {
                    found.info.next = Some(start);
                    return found;
                }
            }
        }
        found
    }

    /// Where others read what each slot holds, of the cache in which the file is.
    pub fn entries(&self) -> Option<&Arc<Arena>> {
        self.core().config.entries.as_ref()
    }

    /// The slots of the arena that hold `count` blocks of 4 KiB from block `first` on, as far as there are some, and
    /// the file's number in their [entries](dafs_protocol::EntryWord). A moment later it may be otherwise, and
    /// also now not every one is for others to read: the entries say.
    pub fn slots(&self, first: u64, count: usize) -> (u64, Vec<Option<u32>>) {
        let inner = &*self.lock();
        let mut slots = Vec::new();
        let per_cluster = FRAME_SLOTS as u64;
        let end = first.saturating_add(count as u64);
        if end == first {
            return (self.number(), slots);
        }
        let clusters = first / per_cluster..=(end - 1) / per_cluster;
        for (number, cluster) in inner.blocks.clusters.range(clusters) {
            for (at, page) in (number * per_cluster..).zip(&cluster.pages) {
                if (first..end).contains(&at) && !page.is_none() {
                    slots.resize((at - first) as usize, None);
                    slots.push(u32::try_from(page.index()).ok());
                }
            }
        }
        (self.number(), slots)
    }

    /// Begins to read a range in (`len` 0: to the end), as far as there is room that nobody has
    /// to wait for. The bytes from `offset` on that are cached now, or being read in.
    pub fn prefetch(self: &Arc<Self>, offset: u64, len: u64) -> u64 {
        let len = if len == 0 { u64::MAX } else { len };
        let most = self.read_bytes_max().min(PREFETCH_BYTES_MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(most);
        self.begin_prefetch(offset, len);
        self.lock().coming(offset, len as u64)
    }

    /// All of a range is cached, or being read in, as far as the file goes.
    pub fn is_coming(&self, offset: u64, len: usize) -> bool {
        let inner = &*self.lock();
        let wanted = (len as u64).min(inner.size.saturating_sub(offset));
        inner.coming(offset, wanted) == wanted
    }

    fn begin_prefetch(self: &Arc<Self>, offset: u64, len: usize) {
        if self.lock().transfers.fills.len() >= PREFETCHES_MAX {
            return;
        }
        if let Plan::Fill(ranges, ..) = self.plan(offset, len, false) {
            self.begin_fills(&ranges);
        }
    }

    /// Begins to read in what is missing of these pieces, each (offset, bytes), in order: all of
    /// them at the same time, small holes between them too. As far as there is room that nobody
    /// has to wait for.
    pub fn prefetch_list(self: &Arc<Self>, pieces: &[(u64, usize)]) {
        let ranges = self.missing(pieces);
        if !ranges.is_empty() {
            self.begin_fills(&ranges);
        }
    }

    /// Bytes of the cache.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.core().pool.slot_count() as u64 * SLOT
    }

    fn begin_fills(self: &Arc<Self>, ranges: &[BlockRange]) {
        let core = self.core();
        if !core.fill_queue.is_empty() {
            return;
        }
        let slots = ranges.iter().map(|range| range.count).sum();
        if !core.take_prefetch(slots) {
            return;
        }
        let Some(mut pages) = allocate_all(core, ranges) else {
            return core.end_prefetch(slots);
        };
        pages.iter_mut().for_each(|pages| pages.prefetched = true);
        // Who reads there waits for it and is told; nobody else does.
        let _ = self.start_fills(ranges, pages);
    }

    /// Drops clean pages that lie within a range (`len` 0: to the end). The bytes dropped.
    pub fn drop_clean(&self, offset: u64, len: u64) -> u64 {
        let inner = &mut *self.lock();
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let first = offset.div_ceil(SLOT);
        let last = if end >= inner.size { u64::MAX } else { end / SLOT };
        let which = if planted(Defect::DirtyBlockDropped) { Which::All } else { Which::Clean };
        match last.checked_sub(1) {
            Some(last) if first <= last => {
                (self.drop_range(inner, first..=last, which) * PAGE_BYTES) as u64
            }
            _ => 0,
        }
    }

    /// Takes the wishes of a user: what is not 0 in them, as far as it can be done. What holds
    /// then, for all users, until the file is forgotten.
    pub fn wish(&self, hint: CacheHint) -> CacheHint {
        let inner = &mut *self.lock();
        if hint.unit != 0 {
            let [least, most] = CacheHint::UNIT_BYTES;
            let unit = hint.unit.clamp(least, most).next_power_of_two();
            inner.reads.unit_bytes = u64::from(unit);
        }
        self.wish_keeping(inner, hint);
        self.hint(inner)
    }

    fn hint(&self, inner: &Inner) -> CacheHint {
        let unit = u32::try_from(inner.reads.unit_bytes).unwrap_or(0);
        CacheHint { unit, policy: self.policy().number(), class: self.class().number() }
    }
}

impl Cached {
    /// False when there is no room for it.
    fn add(&mut self, start: u64, dirty: bool, most: usize) -> bool {
        let is_full = self.ranges.len() >= most;
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.len == start && last.dirty == dirty => {
                last.len += SLOT;
            }
            _ if is_full => return false,
            _ => self.ranges.push(CachedRange { offset: start, len: SLOT, dirty }),
        }
        match dirty {
            true => self.info.dirty_bytes += SLOT,
            false => self.info.clean_bytes += SLOT,
        }
        true
    }
}

impl Inner {
    /// Bytes from `offset` on, at most `len`, that are cached or being read in.
    fn coming(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len).min(self.size);
        let mut at = offset;
        while at < end {
            let block = at / SLOT;
            if self.page(block).is_none() && self.filling(block).is_none() {
                break;
            }
            at = (block + 1) * SLOT;
        }
        at.min(end).saturating_sub(offset)
    }
}
