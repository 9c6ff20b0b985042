//! Random changes of one file, done through a store and to a model.

#![allow(dead_code, reason = "each test program uses its part")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use dafs_fabric::{Buffer, PostedBuffer, SgList};
use dafs_store::{Answer, File};

const BLOCK: u64 = 4096;
/// No step makes the file longer.
pub const SIZE_MAX: u64 = 1 << 20;

pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// One change.
#[derive(Debug, Clone)]
pub enum Step {
    /// Writes of this fill at once, at ranges that share no block.
    Write(Vec<(u64, u64)>, u8),
    Truncate(u64),
    /// Makes a hole.
    Punch(u64, u64),
    /// Copies blocks within the file.
    Copy(u64, u64, u64),
    /// A program of this host writes through the page cache.
    Local(u64, u64, u8),
    /// A program of this host reads all through the page cache, and so fills it.
    LocalRead,
    Sync(bool),
}

impl Step {
    pub fn random(rng: &mut Rng, size: u64) -> Step {
        let fill = rng.below(255) as u8 + 1;
        match rng.below(16) {
            // As a cache writes back: from a block on, to the end of a block or of the file.
            0..5 => {
                let first = rng.below(SIZE_MAX / BLOCK - 64);
                let pieces = 1 + rng.below(6);
                let piece = |i: u64| ((first + i * 8) * BLOCK, (1 + (i + first) % 8) * BLOCK);
                Step::Write((0..pieces).map(piece).collect(), fill)
            }
            5..7 => Step::Write(vec![(size / BLOCK * BLOCK, 1 + rng.below(40_000))], fill),
            7..9 => Step::Write(vec![(rng.below(SIZE_MAX / 2), 1 + rng.below(200_000))], fill),
            9 => Step::Truncate(rng.below(SIZE_MAX)),
            10 => Step::Truncate(size / BLOCK * BLOCK),
            11 => Step::Punch(rng.below(SIZE_MAX / 2), 1 + rng.below(100_000)),
            12 => {
                let half = SIZE_MAX / 2 / BLOCK;
                let (from, to) = (rng.below(half) / 2, half + rng.below(half / 2));
                Step::Copy(from * BLOCK, to * BLOCK, (1 + rng.below(half / 4)) * BLOCK)
            }
            13 => Step::Local(rng.below(SIZE_MAX / 2), 1 + rng.below(50_000), fill),
            14 => Step::LocalRead,
            _ => Step::Sync(rng.below(2) == 0),
        }
    }

    /// To a model.
    pub fn change(&self, model: &mut Vec<u8>) {
        let mut put = |offset: u64, len: u64, fill: u8| {
            let (from, to) = (offset as usize, (offset + len) as usize);
            if model.len() < to {
                model.resize(to, 0);
            }
            model[from..to].fill(fill);
        };
        match self {
            Step::Write(ranges, fill) => {
                ranges.iter().for_each(|(offset, len)| put(*offset, *len, *fill));
            }
            Step::Local(offset, len, fill) => put(*offset, *len, *fill),
            Step::Truncate(size) => model.resize(*size as usize, 0),
            Step::Punch(offset, len) => {
                let end = ((offset + len) as usize).min(model.len());
                let from = (*offset as usize).min(end);
                model[from..end].fill(0);
            }
            Step::Copy(from, to, len) => {
                let end = ((from + len) as usize).min(model.len());
                let part = model[(*from as usize).min(end)..end].to_vec();
                if !part.is_empty() {
                    model.resize(model.len().max(*to as usize + part.len()), 0);
                    model[*to as usize..*to as usize + part.len()].copy_from_slice(&part);
                }
            }
            Step::LocalRead | Step::Sync(_) => {}
        }
    }

    /// To a file of a store, which is also at `path`.
    pub fn act(&self, file: &Arc<dyn File>, path: &Path) {
        match self {
            Step::Write(ranges, fill) => {
                let begun: Vec<_> = ranges
                    .iter()
                    .map(|(offset, len)| begin_write(&**file, *offset, *len, *fill))
                    .collect();
                for (_memory, answer) in begun {
                    answer.wait().expect("written");
                }
            }
            Step::Truncate(size) => file.truncate(*size, false).wait().expect("truncated"),
            Step::Punch(offset, len) => {
                // FALLOC_FL_PUNCH_HOLE with KEEP_SIZE.
                file.fallocate(3, *offset, *len, false).wait().expect("punched");
            }
            Step::Copy(from, to, len) => {
                let mut done = 0;
                while done < *len {
                    let answer = file.copy_range(from + done, file, to + done, len - done, false);
                    match answer.wait().expect("copied") {
                        0 => break,
                        more => done += more,
                    }
                }
            }
            Step::Local(offset, len, fill) => {
                let local = std::fs::OpenOptions::new().write(true).open(path).expect("open");
                local.write_all_at(&vec![*fill; *len as usize], *offset).expect("write");
            }
            Step::LocalRead => drop(std::fs::read(path).expect("read")),
            Step::Sync(data_only) => file.sync(*data_only).wait().expect("synced"),
        }
    }
}

pub fn begin_write(file: &dyn File, offset: u64, len: u64, fill: u8) -> (PostedBuffer, Answer<()>) {
    let mut buffer = Buffer::new(len as usize).expect("buffer");
    buffer.fill(fill);
    let posted = buffer.post();
    let list = SgList::from_iter([posted.span().clone()]);
    let answer = file.write_at(offset, list, false);
    (posted, answer)
}

/// All of a file in whole pages, as a cache reads it: the bytes that are there.
pub fn read_all(file: &dyn File) -> Vec<u8> {
    const PIECE: usize = 64 << 10;
    let begun: Vec<_> = (0..SIZE_MAX.div_ceil(PIECE as u64) + 4)
        .map(|i| {
            let posted = Buffer::new(PIECE).expect("buffer").post();
            let list = SgList::from_iter([posted.span().clone()]);
            let answer = file.read_at(i * PIECE as u64, list);
            (posted, answer)
        })
        .collect();
    let mut all = Vec::new();
    for (posted, answer) in begun {
        let bytes = answer.wait().expect("read");
        let buffer = posted.take_back().expect("the store is done with it");
        all.extend_from_slice(&buffer[..bytes]);
    }
    all
}
