//! A sparse file's bytes: blocks that exist, and holes that read as zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use dafs_fabric::Span;
use dafs_protocol::FileExtent;

use crate::{Extents, SeekKind};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = BLOCK as usize;

type Block = [u8; BLOCK_BYTES];

static ZERO: Block = [0; BLOCK_BYTES];

/// A file's contents. Cloning is a snapshot: blocks are shared until one side writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Data {
    blocks: BTreeMap<u64, Arc<Block>>,
    pub(super) size: u64,
}

/// The piece of `len` bytes at `offset` that lies in one block: block, start in it, bytes.
fn piece(offset: u64, len: usize) -> (u64, usize, usize) {
    let start = (offset % BLOCK) as usize;
    (offset / BLOCK, start, len.min(BLOCK_BYTES - start))
}

impl Data {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many blocks a write to this range would add.
    pub(super) fn blocks_missing(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / BLOCK, (offset + len - 1) / BLOCK);
        last - first + 1 - self.blocks.range(first..=last).count() as u64
    }

    /// Fills the spans; answers the bytes that were there.
    pub(super) fn read(&self, offset: u64, into: &[Span]) -> usize {
        let mut at = offset;
        for span in into {
            let there = self.size.saturating_sub(at);
            let len = span.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            let mut done = 0;
            while done < len {
                let (block, start, bytes) = piece(at, len - done);
                match self.blocks.get(&block) {
                    Some(block) => span.copy_from(done, &block[start..start + bytes]),
                    None => span.part(done, bytes).zero(),
                }
                done += bytes;
                at += bytes as u64;
            }
        }
        usize::try_from(at - offset).expect("no more than the spans hold")
    }

    /// Writes at most `limit` bytes of the spans.
    pub(super) fn write(&mut self, offset: u64, from: &[Span], limit: usize) {
        let (mut at, mut left) = (offset, limit);
        for span in from {
            let len = span.len().min(left);
            let mut done = 0;
            while done < len {
                let (block, start, bytes) = piece(at, len - done);
                let block = self.blocks.entry(block).or_insert_with(|| Arc::new(ZERO));
                span.part(done, bytes).copy_to(0, &mut Arc::make_mut(block)[start..start + bytes]);
                done += bytes;
                at += bytes as u64;
            }
            left -= len;
        }
        if limit != 0 {
            self.size = self.size.max(at);
        }
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            let first_gone = size.div_ceil(BLOCK);
            drop(self.blocks.split_off(&first_gone));
            self.zero_in_block(size, BLOCK_BYTES);
        }
        self.size = size;
    }

    /// Makes the range read as zero; whole blocks of it become holes.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        if first > last {
            self.zero_in_block(offset, (end - offset) as usize);
            return;
        }
        let mut rest = self.blocks.split_off(&first);
        self.blocks.append(&mut rest.split_off(&last));
        if offset < first * BLOCK {
            self.zero_in_block(offset, BLOCK_BYTES);
        }
        let tail = end - last * BLOCK;
        if tail != 0 {
            self.zero_in_block(last * BLOCK, tail as usize);
        }
    }

    /// Gives every hole of the range a block; the size stays.
    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        let zero = Arc::new(ZERO);
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            self.blocks.entry(block).or_insert_with(|| zero.clone());
        }
    }

    /// Takes whole blocks out; what follows moves down.
    pub(super) fn collapse(&mut self, offset: u64, len: u64) {
        let (first, count) = (offset / BLOCK, len / BLOCK);
        let mut moved = self.blocks.split_off(&first).split_off(&(first + count));
        while let Some((block, bytes)) = moved.pop_first() {
            self.blocks.insert(block - count, bytes);
        }
        self.size -= len;
    }

    /// Puts a hole of whole blocks in; what follows moves up.
    pub(super) fn insert(&mut self, offset: u64, len: u64) {
        let (first, count) = (offset / BLOCK, len / BLOCK);
        let mut moved = self.blocks.split_off(&first);
        while let Some((block, bytes)) = moved.pop_first() {
            self.blocks.insert(block + count, bytes);
        }
        self.size += len;
    }

    /// Copies a range that lies within `source`, which has other bytes or other places.
    pub(super) fn copy_from(&mut self, source: &Data, offset: u64, to_offset: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let left = usize::try_from(len - done).unwrap_or(BLOCK_BYTES);
            let (from, start, bytes) = piece(offset + done, left);
            let (to, to_start, bytes) = piece(to_offset + done, bytes);
            match source.blocks.get(&from) {
                Some(whole) if bytes == BLOCK_BYTES => {
                    self.blocks.insert(to, whole.clone());
                }
                None if bytes == BLOCK_BYTES => {
                    self.blocks.remove(&to);
                }
                there => {
                    let block = self.blocks.entry(to).or_insert_with(|| Arc::new(ZERO));
                    let bytes_to = &mut Arc::make_mut(block)[to_start..to_start + bytes];
                    let zero = ZERO.as_slice();
                    let from = there.map_or(zero, |block| block.as_slice());
                    // not payload: the disk copies within itself
                    bytes_to.copy_from_slice(&from[start..start + bytes]);
                }
            }
            done += bytes as u64;
        }
        self.size = self.size.max(to_offset + len);
    }

    pub(super) fn extents(&self, offset: u64, len: u64, most: usize) -> Extents {
        let last = offset.saturating_add(len.saturating_sub(1)) / BLOCK;
        let mut extents = Extents { list: Vec::new(), end: true };
        if len == 0 {
            return extents;
        }
        for block in self.blocks.range(offset / BLOCK..=last).map(|(block, _)| *block) {
            let full = extents.list.len() == most;
            match extents.list.last_mut() {
                Some(extent) if extent.offset + extent.len == block * BLOCK => extent.len += BLOCK,
                _ if full => {
                    extents.end = false;
                    break;
                }
                _ => {
                    let extent = FileExtent { offset: block * BLOCK, len: BLOCK, ..<_>::default() };
                    extents.list.push(extent);
                }
            }
        }
        extents
    }

    pub(super) fn seek(&self, offset: u64, kind: SeekKind) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let found = match kind {
            SeekKind::Data => {
                self.blocks.range(offset / BLOCK..).next().map(|(block, _)| *block)?
            }
            SeekKind::Hole => {
                let mut block = offset / BLOCK;
                while self.blocks.contains_key(&block) {
                    block += 1;
                }
                return Some((block * BLOCK).clamp(offset, self.size));
            }
        };
        Some((found * BLOCK).max(offset)).filter(|at| *at < self.size)
    }

    /// Zeroes up to `len` bytes from `offset` on within that block, if it exists.
    fn zero_in_block(&mut self, offset: u64, len: usize) {
        let (block, start, bytes) = piece(offset, len);
        if start == 0 && bytes == BLOCK_BYTES {
            return; // a whole block: the caller made it a hole
        }
        if let Some(block) = self.blocks.get_mut(&block) {
            Arc::make_mut(block)[start..start + bytes].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_fabric::mem;

    fn write(data: &mut Data, offset: u64, bytes: &[u8]) {
        mem::lend(bytes, |span| data.write(offset, std::slice::from_ref(span), bytes.len()));
    }

    fn read(data: &Data, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        let bytes = mem::lend_mut(&mut out, |span| data.read(offset, std::slice::from_ref(span)));
        out.truncate(bytes);
        out
    }

    /// Compares with an array over a few thousand pseudo-random steps.
    #[test]
    fn behaves_as_an_array() {
        let mut data = Data::default();
        let mut model: Vec<u8> = Vec::new();
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..4000u64 {
            let (offset, len) = (next(40_000), next(9000));
            let end = (offset + len) as usize;
            match next(4) {
                0 | 1 => {
                    let bytes = vec![step as u8 | 1; len as usize];
                    write(&mut data, offset, &bytes);
                    if len != 0 {
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                2 => {
                    data.set_size(offset);
                    model.resize(offset as usize, 0);
                }
                _ => {
                    data.punch(offset, len);
                    let to = end.min(model.len());
                    let from = (offset as usize).min(to);
                    model[from..to].fill(0);
                }
            }
            assert_eq!(data.size, model.len() as u64);
            if step % 16 == 0 {
                assert_eq!(read(&data, 0, 60_000), model, "step {step}");
            }
        }
    }

    #[test]
    fn holes_are_found() {
        let mut data = Data::default();
        write(&mut data, 3 * BLOCK + 10, b"x");
        data.set_size(10 * BLOCK);
        assert_eq!(data.seek(0, SeekKind::Data), Some(3 * BLOCK));
        assert_eq!(data.seek(3 * BLOCK + 5, SeekKind::Data), Some(3 * BLOCK + 5));
        assert_eq!(data.seek(4 * BLOCK, SeekKind::Data), None);
        assert_eq!(data.seek(3 * BLOCK, SeekKind::Hole), Some(4 * BLOCK));
        assert_eq!(data.seek(10 * BLOCK, SeekKind::Hole), None);
        assert_eq!(data.blocks_missing(2 * BLOCK, 3 * BLOCK), 2);
        assert_eq!(data.blocks(), 1);
    }
}
