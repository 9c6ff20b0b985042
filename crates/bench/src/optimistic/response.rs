//! Table 3: how long a read of 4 KiB takes, to wherever it comes first, and to the client's block cache; and, of
//! the same reads, the counters that stand for Table 1.

use std::io;

use dafs_client::File;

use super::Bench;
use super::blocks::Blocks;
use super::place::{BLOCK, Reader, Way, open};
use super::row::{Row, Seen, rows_of};
use super::stretch::{Did, Time, stretch};
use crate::offsets::Offsets;
use crate::wait::Wait;

/// Blocks of the cache: few, so that none is found there.
const CACHE_BLOCKS: usize = 64;
/// Stretches of each way, by turns.
const ROUNDS: u32 = 4;

struct Side {
    reader: Reader,
    file: File,
    blocks: Blocks,
    offsets: Offsets,
    /// False: all is asked for, in whatever way.
    is_there: bool,
}

impl Side {
    fn new(bench: &Bench<'_>, way: Way, wait: Wait) -> io::Result<Side> {
        let mut reader = Reader::new(bench.place, way, wait, BLOCK)?;
        let file = open(&reader.session, &bench.place.path("file"))?;
        let bytes = bench.options.file_bytes;
        let is_there = reader.warm(&[(&file, bytes / BLOCK as u64)], bench.stop)?;
        let buffers = reader.session.buffers(CACHE_BLOCKS, BLOCK).map_err(io::Error::other)?;
        let offsets = Offsets::new(bytes, BLOCK as u64, false);
        Ok(Side { reader, file, blocks: Blocks::new(buffers), offsets, is_there })
    }

    fn read(&mut self, to_cache: bool) -> io::Result<Did> {
        let offset = self.offsets.next();
        if to_cache && self.blocks.find(offset).is_none() {
            let mut buffer = self.blocks.take().ok_or(io::ErrorKind::InvalidInput)?;
            self.reader.read(&self.file, offset, Some(&mut buffer))?;
            self.blocks.put(offset, buffer);
        } else {
            self.reader.read(&self.file, offset, None)?;
        }
        Ok(Did { bytes: BLOCK as u64, remote: true })
    }

    fn measure(&mut self, to_cache: bool, time: Time<'_>) -> io::Result<Seen> {
        let session = self.reader.session.clone();
        let mut seen = stretch(&session, time, || self.read(to_cache))?;
        if to_cache && self.reader.way == Way::Inline {
            seen.copied_once_more();
        }
        Ok(seen)
    }
}

pub(super) fn run(bench: &Bench<'_>, put: &mut dyn FnMut(Row) -> io::Result<()>) -> io::Result<()> {
    bench.say("table 3: writing the file");
    bench.place.make("file", bench.options.file_bytes, bench.stop)?;
    for &wait in &bench.options.waits {
        bench.say(&format!("table 3: {}: reading it once", wait.name()));
        let sides: io::Result<Vec<Side>> =
            Way::ALL.into_iter().map(|way| Side::new(bench, way, wait)).collect();
        let mut sides = sides?;
        for (to_cache, to) in [(false, "memory"), (true, "cache")] {
            bench.say(&format!("table 3: {}, to {to}", wait.name()));
            let mut ways: Vec<(Way, Vec<Seen>)> = Way::ALL.map(|way| (way, Vec::new())).into();
            let time = bench.time(ROUNDS);
            for round in 0..=ROUNDS {
                for (side, (_, seen)) in sides.iter_mut().zip(&mut ways) {
                    if side.is_there {
                        let now = side.measure(to_cache, time)?;
                        // The first warms up.
                        seen.extend((round > 0).then_some(now));
                    }
                }
            }
            if bench.is_over() {
                return Ok(());
            }
            let base = Row {
                to: Some(to),
                wait: Some(wait),
                server_wait: Some(wait),
                size: Some(BLOCK as u64),
                ..bench.row("table-3")
            };
            rows_of(&base, &ways).into_iter().try_for_each(&mut *put)?;
        }
    }
    bench.place.remove(&bench.place.path("file"))
}
