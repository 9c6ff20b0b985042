//! Ranges of blocks that are read in together.

use std::ops::Range;

use smallvec::SmallVec;

/// Blocks that one fill may cover.
pub(crate) const FILL_SLOTS_MAX: usize = 256;

/// A hole between two pieces of a list that is rather read than left out (data sieving).
const HOLE_SLOTS_MAX: u64 = 3;

/// Consecutive blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockRange {
    pub(crate) first: u64,
    pub(crate) count: usize,
}

/// Blocks to read in, in order.
#[derive(Default)]
pub(crate) struct BlockRanges(pub(crate) SmallVec<[BlockRange; 4]>);

impl BlockRanges {
    /// More blocks, joined to the last ones where `fills` says of all blocks of a small hole
    /// between them that they can be read in as well.
    pub(crate) fn add(&mut self, mut blocks: Range<u64>, fills: impl Fn(u64) -> bool) {
        while !blocks.is_empty() {
            let left = (blocks.end - blocks.start) as usize;
            let place = self.0.last_mut().and_then(|last| {
                let end = last.first + last.count as u64;
                let hole = blocks.start.checked_sub(end)?;
                let joins = hole <= HOLE_SLOTS_MAX && (end..blocks.start).all(&fills);
                let room = FILL_SLOTS_MAX.saturating_sub(last.count + hole as usize);
                (joins && room > 0).then_some((last, hole as usize, room))
            });
            let count = match place {
                Some((last, hole, room)) => {
                    let count = left.min(room);
                    last.count += hole + count;
                    count
                }
                None => {
                    let count = left.min(FILL_SLOTS_MAX);
                    self.0.push(BlockRange { first: blocks.start, count });
                    count
                }
            };
            blocks.start += count as u64;
        }
    }
}
