//! What a policy would make of a trace: the same policies as in the cache, over units that are
//! read in, used and replaced as the cache does it, without memory, store or time.

use std::collections::HashMap;

use crate::policy::shares::{Search, Share, Shares};
use crate::policy::{Class, Key, Origin, Policy};
use crate::pool::{FRAME_SLOTS, SLOT};
use crate::trace::{Event, Record};

const CLUSTER_BYTES: u64 = SLOT * FRAME_SLOTS as u64;

/// A cache of one policy.
pub struct Simulator {
    shares: Shares,
    share: Share,
    slots: usize,
    used_slots: usize,
    units: Vec<Unit>,
    free: Vec<u32>,
    files: HashMap<u32, File>,
    /// Reads answered from the cache.
    pub hits: u64,
    /// Reads that were not.
    pub misses: u64,
}

#[derive(Clone, Copy, Default)]
struct Unit {
    file: u32,
    first: u64,
    slots: usize,
    /// Blocks that it still holds.
    mapped: usize,
    uses: u32,
}

#[derive(Default)]
struct File {
    size: u64,
    read_end: u64,
    /// The unit of each block.
    blocks: HashMap<u64, u32>,
}

/// Hits of all reads, in percent; 0 without reads.
pub fn percent(hits: u64, misses: u64) -> f64 {
    let all = hits + misses;
    if all == 0 { 0.0 } else { 100.0 * hits as f64 / all as f64 }
}

impl Simulator {
    /// An empty cache of so many bytes.
    pub fn new(policy: Policy, arena_bytes: usize) -> Simulator {
        let slots = arena_bytes / SLOT as usize / FRAME_SLOTS * FRAME_SLOTS;
        Simulator {
            shares: Shares::new(slots),
            share: Share::of(policy, Class::Normal),
            slots,
            used_slots: 0,
            units: vec![Unit::default(); slots],
            free: (0..slots as u32).rev().collect(),
            files: HashMap::new(),
            hits: 0,
            misses: 0,
        }
    }

    /// Hits of all reads, in percent.
    pub fn hit_percent(&self) -> f64 {
        percent(self.hits, self.misses)
    }

    /// The next record; for a read, whether it was a hit.
    pub fn step(&mut self, record: &Record) -> Option<bool> {
        let number = record.file;
        match record.event {
            Event::Read { offset, len } => {
                let hit = self.read(number, offset, len);
                self.hits += u64::from(hit);
                self.misses += u64::from(!hit);
                return Some(hit);
            }
            Event::Write { offset, len } => self.write(number, offset, len),
            Event::Size(size) => self.resize(number, size),
            Event::Gone => {
                self.resize(number, 0);
                self.files.remove(&number);
            }
        }
        None
    }

    fn unit_of(&self, file: u32, block: u64) -> Option<u32> {
        self.files.get(&file)?.blocks.get(&block).copied()
    }

    fn read(&mut self, number: u32, offset: u64, len: u64) -> bool {
        let read_max = (self.slots as u64 / 8).max(1) * SLOT;
        let file = self.files.entry(number).or_default();
        let end = offset.saturating_add(len.min(read_max)).min(file.size);
        if offset >= end {
            return true;
        }
        let size = file.size;
        let goes_on = std::mem::replace(&mut file.read_end, end) == offset;
        let is_hit = self.touch(number, offset, end, goes_on);
        if !is_hit {
            let room = self.slots >= 8 * FRAME_SLOTS;
            let by_clusters =
                goes_on || size <= CLUSTER_BYTES || len.min(read_max) >= CLUSTER_BYTES;
            let (from, to) = if room && by_clusters {
                let to = end.next_multiple_of(CLUSTER_BYTES).min(size);
                (offset / CLUSTER_BYTES * CLUSTER_BYTES, to)
            } else {
                (offset, end)
            };
            self.fill(number, from / SLOT, to.div_ceil(SLOT));
            self.touch(number, offset, end, goes_on);
        }
        is_hit
    }

    /// Uses what is there, up to the first block that is not.
    fn touch(&mut self, number: u32, offset: u64, end: u64, goes_on: bool) -> bool {
        let mut last = None;
        for block in offset / SLOT..end.div_ceil(SLOT) {
            let Some(unit) = self.unit_of(number, block) else { return false };
            if last == Some(unit) {
                continue;
            }
            let used = &mut self.units[unit as usize];
            let bytes = used.slots as u64 * SLOT;
            let is_rest = last.is_none() && goes_on && !offset.is_multiple_of(bytes);
            used.uses = used.uses.wrapping_add(u32::from(!is_rest));
            last = Some(unit);
        }
        true
    }

    /// Reads in what is missing of these blocks.
    fn fill(&mut self, number: u32, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let missing = (at..to).take_while(|block| self.unit_of(number, *block).is_none());
            let count = missing.count() as u64;
            self.bring(number, at, count, Origin::ByRead);
            at += count.max(1);
        }
    }

    /// New units for blocks that have none, read in to be used or written.
    fn bring(&mut self, number: u32, first: u64, count: u64, origin: Origin) {
        let frame = FRAME_SLOTS as u64;
        let mut at = first;
        let end = first + count;
        while at < end {
            let whole = at.is_multiple_of(frame) && end - at >= frame;
            let slots = if whole { FRAME_SLOTS } else { 1 };
            self.make_room(slots);
            let unit = self.free.pop().expect("no more units than slots");
            self.used_slots += slots;
            let key = Key { file: u64::from(number), block: at };
            let uses = self.shares.insert(unit, slots, self.share, (key, origin));
            if origin == Origin::ByRead {
                self.shares.expect_use(unit);
            }
            self.units[unit as usize] =
                Unit { file: number, first: at, slots, mapped: slots, uses };
            let file = self.files.entry(number).or_default();
            for block in at..at + slots as u64 {
                file.blocks.insert(block, unit);
            }
            at += slots as u64;
        }
    }

    fn make_room(&mut self, slots: usize) {
        let mut search = Search::default();
        while self.used_slots + slots > self.slots {
            let Some(victim) = self.shares.next(&mut search) else { return };
            let unit = self.units[victim as usize];
            if self.shares.tell(victim, unit.uses) {
                continue;
            }
            self.shares.pass(victim);
            for block in unit.first..unit.first + unit.slots as u64 {
                if self.unit_of(unit.file, block) == Some(victim) {
                    self.unmap(unit.file, block);
                }
            }
        }
    }

    /// A block is not cached any more; its unit goes with its last one.
    fn unmap(&mut self, number: u32, block: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        let Some(number) = file.blocks.remove(&block) else { return };
        let unit = &mut self.units[number as usize];
        unit.mapped -= 1;
        if unit.mapped == 0 {
            self.used_slots -= unit.slots;
            self.shares.remove(number, unit.slots, unit.uses);
            self.free.push(number);
        }
    }

    fn write(&mut self, number: u32, offset: u64, len: u64) {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else { return };
        let size = self.files.entry(number).or_default().size;
        let (first, last) = (offset / SLOT, (end - 1) / SLOT);
        // A block of which a part is written is read in first.
        let needs_head = !offset.is_multiple_of(SLOT) && first * SLOT < size;
        let needs_tail = !end.is_multiple_of(SLOT) && end < size;
        for (needed, block) in [(needs_head, first), (needs_tail, last)] {
            if needed && self.unit_of(number, block).is_none() {
                self.step(&Record { file: number, event: edge(block) });
            }
        }
        for block in first..=last {
            self.unmap(number, block);
        }
        self.bring(number, first, last + 1 - first, Origin::ByWrite);
        let file = self.files.entry(number).or_default();
        file.size = file.size.max(end);
    }

    fn resize(&mut self, number: u32, size: u64) {
        let file = self.files.entry(number).or_default();
        let shrinks = size < file.size;
        file.size = size;
        if shrinks {
            let first = size / SLOT;
            let mut gone: Vec<u64> =
                file.blocks.keys().copied().filter(|block| *block >= first).collect();
            gone.sort_unstable();
            gone.into_iter().for_each(|block| self.unmap(number, block));
        }
    }
}

fn edge(block: u64) -> Event {
    Event::Read { offset: block * SLOT, len: SLOT }
}
