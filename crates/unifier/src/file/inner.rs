//! What the lock of a file protects.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_protocol::{Attr, Status, Timestamp};
use dafs_store::File;

use super::clusters::Clusters;
use super::sessions::Sessions;
use super::{Cluster, Fill, Filling, Writing, place};
use crate::blocks::{BlockRange, FILL_SLOTS_MAX};
use crate::job::Job;
use crate::pool::{FRAME_SLOTS, Page, SLOT};

/// What the store last said of a file after our own changes.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    pub(crate) change: u64,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
    pub(super) created: Option<Timestamp>,
}

impl Known {
    pub(crate) fn of(attr: &Attr) -> Known {
        Known {
            size: attr.size,
            allocated: attr.allocated,
            change: attr.change,
            modified: attr.modified,
            changed: attr.changed,
            created: attr.created,
        }
    }

    pub(super) fn says(&self, attr: &Attr) -> bool {
        self.size == attr.size
            && self.modified == attr.modified
            && self.changed == attr.changed
            && self.created == attr.created
    }
}

/// What is cached of the file.
#[derive(Default)]
pub(crate) struct Blocks {
    pub(crate) clusters: Clusters,
    /// Clusters with dirty blocks.
    pub(crate) dirty: BTreeSet<u64>,
    /// Blocks that are dirty or being written.
    pub(crate) unwritten: usize,
}

impl Blocks {
    #[inline(always)]
    pub(crate) fn page(&self, block: u64) -> Option<Page> {
        Some(self.cluster_with(block)?.pages[place(block).1])
    }

    /// The cluster of a block that is there.
    #[inline(always)]
    pub(crate) fn cluster_with(&self, block: u64) -> Option<&Cluster> {
        let (number, slot) = place(block);
        self.clusters.get(number).filter(|cluster| !cluster.pages[slot].is_none())
    }

    /// The last one that is dirty.
    fn last_dirty(&self) -> Option<u64> {
        self.dirty.last().map(|number| {
            let bits = self.clusters.get(*number).map_or(0, |cluster| cluster.dirty);
            number * FRAME_SLOTS as u64 + u64::from(bits.checked_ilog2().unwrap_or(0))
        })
    }
}

/// What is under way between the cache and the store.
#[derive(Default)]
pub(crate) struct Transfers {
    pub(crate) fills: Vec<Filling>,
    pub(crate) writes: Vec<Writing>,
    last_id: u64,
    /// How often a fill has begun, or pages have come: what lacked before may not any more.
    pub(crate) arrivals: u64,
}

impl Transfers {
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// It is under way from now on.
    #[inline(always)]
    pub(crate) fn begin_fill(&mut self, fill: &Arc<Fill>) {
        fill.place().store(self.fills.len(), Ordering::Relaxed);
        self.arrivals += 1;
        let BlockRange { first, count } = fill.blocks();
        let void = [0; FILL_SLOTS_MAX / 64];
        self.fills.push(Filling { first, count, void, fill: fill.clone() });
    }

    /// It is not any more; `None`: nor has it been, since the cache ended.
    pub(crate) fn end_fill(&mut self, fill: &Fill) -> Option<Filling> {
        let place = fill.place().load(Ordering::Relaxed);
        self.fills.get(place).filter(|filling| std::ptr::eq(&*filling.fill, fill))?;
        let ended = self.fills.swap_remove(place);
        if let Some(moved) = self.fills.get(place) {
            moved.fill.place().store(place, Ordering::Relaxed);
        }
        Some(ended)
    }

    /// Fills under way must not install these blocks.
    pub(crate) fn void_fills(&mut self, blocks: RangeInclusive<u64>) {
        for fill in &mut self.fills {
            let last = fill.first + fill.count as u64 - 1;
            for block in fill.first.max(*blocks.start())..=last.min(*blocks.end()) {
                let index = (block - fill.first) as usize;
                fill.void[index / 64] |= 1 << (index % 64);
            }
        }
    }

    /// All of it.
    fn all(&self) -> (Vec<Arc<Fill>>, Vec<Arc<Job>>) {
        let fills = self.fills.iter().map(|filling| filling.fill.clone());
        (fills.collect(), self.writes.iter().map(|write| write.job.clone()).collect())
    }
}

/// Syncs that are under way.
#[derive(Default)]
pub(crate) struct Syncs {
    pub(crate) now: Option<Arc<Job>>,
    /// The one after that, and whether data alone suffices.
    pub(crate) next: Option<(Arc<Job>, bool)>,
}

/// What is known of the store's file.
pub(crate) struct Stored {
    pub(crate) known: Known,
    /// When `known` was asked for, as [`Core::mark`](super::Core::mark) counts.
    pub(super) known_at: u64,
    /// We have changed the file since `known`.
    pub(crate) stale: bool,
    /// How long it is by `known` and our own changes since. `None`: one of them failed.
    pub(crate) size: Option<u64>,
    /// Others may change what was read lately without a trace in its times: by a mapping, in
    /// pages that the system has not written yet.
    pub(super) unsettled: bool,
    /// The system had written all of the file when we began to change it.
    pub(super) unwritten_is_ours: bool,
    /// A close could not write everything: the next open begins anew.
    pub(crate) unknown: bool,
}

impl Stored {
    /// Nothing was read of it, and nothing written.
    pub(super) fn of(attr: &Attr) -> Stored {
        Stored {
            known: Known::of(attr),
            known_at: 0,
            stale: false,
            size: Some(attr.size),
            unsettled: false,
            unwritten_is_ours: false,
            unknown: false,
        }
    }

    /// It is as `known` and our own changes since have left it, as far as its attributes tell: what
    /// others changed between our own changes is told by the size alone.
    pub(super) fn explains(&self, attr: &Attr) -> bool {
        if self.stale { self.size == Some(attr.size) } else { self.known.says(attr) }
    }

    /// Attributes that were asked for at `mark`, when nothing of our own was under way.
    pub(crate) fn learn(&mut self, mark: u64, attr: &Attr) {
        (self.known, self.known_at) = (Known::of(attr), mark);
        self.size = Some(attr.size);
        (self.stale, self.unknown) = (false, false);
    }
}

/// When it was changed.
pub(crate) struct Changed {
    /// By us last, as [`Core::change`](super::Core::change) counts.
    pub(crate) last: u64,
    /// When it was written last.
    pub(crate) modified: Timestamp,
    /// When it was changed here last, as attributes tell changes; 0: not yet.
    pub(super) here: u64,
}

impl Changed {
    /// It is changed here, now.
    pub(crate) fn changes(&mut self, now: Timestamp) {
        self.modified = now;
        self.looks_changed(now);
    }

    /// Clients that keep data of it must ask again: the store's times do not tell.
    pub(super) fn looks_changed(&mut self, now: Timestamp) {
        let nanos = now.seconds.saturating_mul(1_000_000_000);
        let nanos = nanos.saturating_add(i64::from(now.nanoseconds));
        self.here = u64::try_from(nanos).unwrap_or(0);
    }
}

/// How it is read.
#[derive(Default)]
pub(crate) struct Reads {
    /// Where the last read ended: the next one there is sequential.
    pub(crate) end: u64,
    /// Bytes that are read in at once, aligned to as many; 0: as the reads are.
    pub(crate) unit_bytes: u64,
}

/// In which lists of the core it is.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) dirty: bool,
    pub(crate) failed: bool,
    pub(super) closed: bool,
}

/// What the file's lock protects. Never held across I/O.
pub(crate) struct Inner {
    /// While open.
    pub(crate) handle: Option<Arc<dyn File>>,
    /// Of the store's file when it was opened last.
    pub(super) generation: Option<u64>,
    pub(crate) opens: usize,
    /// For readers; the store's may be smaller while data is dirty.
    pub(crate) size: u64,
    pub(crate) blocks: Blocks,
    pub(crate) transfers: Transfers,
    /// A change of size or the like is under way: no fill, write-back or commit begins.
    pub(crate) exclusive: Option<Arc<Job>>,
    pub(crate) syncs: Syncs,
    pub(crate) stored: Stored,
    pub(crate) changed: Changed,
    pub(crate) reads: Reads,
    pub(crate) clear_privileges: bool,
    pub(crate) sessions: Sessions,
    pub(crate) listed: Listed,
    /// How the last write-back failed, until one succeeds.
    pub(crate) failed: Option<Status>,
}

impl Inner {
    /// Nobody has it open.
    pub(super) fn of(attr: &Attr) -> Inner {
        Inner {
            handle: None,
            generation: None,
            opens: 0,
            size: attr.size,
            blocks: Blocks::default(),
            transfers: Transfers::default(),
            exclusive: None,
            syncs: Syncs::default(),
            stored: Stored::of(attr),
            changed: Changed { last: 0, modified: attr.modified, here: 0 },
            reads: Reads::default(),
            clear_privileges: false,
            sessions: Sessions::default(),
            listed: Listed::default(),
            failed: None,
        }
    }

    #[inline]
    pub(crate) fn page(&self, block: u64) -> Option<Page> {
        self.blocks.page(block)
    }

    /// To put pages there.
    pub(crate) fn cluster(&mut self, number: u64) -> &mut Cluster {
        self.transfers.arrivals += 1;
        self.blocks.clusters.get_or_add(number)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.blocks.dirty.is_empty() && self.transfers.writes.is_empty()
    }

    /// Nothing of it is cached, on its way, or to be written.
    pub(crate) fn is_bare(&self) -> bool {
        self.is_clean()
            && self.transfers.fills.is_empty()
            && self.blocks.clusters.iter().next().is_none()
    }

    /// Our own changes may be newer than attributes that were asked for after `mark`.
    pub(crate) fn overtakes(&self, mark: u64) -> bool {
        self.overtakes_alone(mark) || self.exclusive.is_some()
    }

    /// As `overtakes`, asked by the change that has the file alone, before it begins.
    pub(super) fn overtakes_alone(&self, mark: u64) -> bool {
        self.changed.last > mark || !self.transfers.writes.is_empty()
    }

    /// Jobs that end when nothing is between the cache and the store.
    pub(crate) fn traffic(&self) -> (Vec<Arc<Fill>>, Vec<Arc<Job>>) {
        self.transfers.all()
    }

    /// The file is at least so long.
    pub(crate) fn dirty_end(&self) -> u64 {
        self.last_dirty().map_or(0, |block| (block + 1) * SLOT).min(self.size)
    }

    /// The last block that is dirty or being written.
    pub(super) fn last_dirty(&self) -> Option<u64> {
        let writes = self.transfers.writes.iter();
        let writing = writes.map(|write| write.first + write.count as u64 - 1).max();
        writing.max(self.blocks.last_dirty())
    }
}
