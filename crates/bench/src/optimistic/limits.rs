//! What limits the gain of reads without the server ([ODAFS] 4.2.2), as far as it is a matter of one file: a
//! server that caches less than is read, writes among the reads, and a network card that knows where few pages are.

use std::io;

use dafs_client::{File, OpenOptions};
use dafs_fabric::Buffer;

use super::Bench;
use super::place::{BLOCK, Reader, Way};
use super::row::{Row, Seen, rows_of};
use super::stretch::{Did, Time, stretch};
use super::translations::Translations;
use crate::offsets::Offsets;

/// Stretches of each way, by turns.
const ROUNDS: u32 = 4;
/// The file that is written to.
const WRITTEN_BYTES: u64 = 16 << 20;
/// The largest cache of which several times as much is written.
const CACHE_BYTES_MAX: u64 = 256 << 20;

struct Side {
    reader: Reader,
    file: File,
    block: Buffer,
    offsets: Offsets,
    dice: Offsets,
    is_there: bool,
    /// What the server's network card has, where one is emulated.
    translations: Option<Translations>,
}

impl Side {
    fn new(bench: &Bench<'_>, way: Way, bytes: u64, warm: bool) -> io::Result<Side> {
        let mut reader = Reader::new(bench.place, way, bench.wait(), BLOCK)?;
        let options = OpenOptions { write: true, ..OpenOptions::read() };
        let file = reader.session.open(&bench.place.path("file"), options)?;
        // One that is not cached as a whole is read as it is.
        let first = if warm { bytes } else { bytes.min(4 << 20) };
        let is_there = reader.warm(&[(&file, first / BLOCK as u64)], bench.stop)?;
        let block = reader.session.buffer(BLOCK).map_err(io::Error::other)?;
        let offsets = Offsets::new(bytes, BLOCK as u64, true);
        let dice = Offsets::new(100, 1, true).part(1, 2);
        Ok(Side { reader, file, block, offsets, dice, is_there, translations: None })
    }

    fn one(&mut self, writes: u64) -> io::Result<Did> {
        let (offset, is_write) = (self.offsets.next(), self.dice.next() < writes);
        if is_write {
            self.file.write_at(&self.block, offset)?;
        } else {
            if let Some(card) = &mut self.translations {
                card.load(offset / BLOCK as u64);
            }
            self.reader.read(&self.file, offset, Some(&mut self.block))?;
        }
        Ok(Did { bytes: BLOCK as u64, remote: !is_write })
    }

    fn measure(&mut self, writes: u64, time: Time<'_>) -> io::Result<Seen> {
        let session = self.reader.session.clone();
        let mut seen = stretch(&session, time, || self.one(writes))?;
        // All are remote; those that count are reads.
        seen.remote = seen.remote.max(1);
        Ok(seen)
    }
}

/// Rows of a place: both ways by turns, after a stretch each that is not counted.
fn rows(
    bench: &Bench<'_>,
    sides: &mut [Side],
    (experiment, percent, writes): (&'static str, u64, u64),
) -> io::Result<Vec<Row>> {
    let mut ways: Vec<(Way, Vec<Seen>)> = Way::TWO.map(|way| (way, Vec::new())).into();
    let time = bench.time(ROUNDS);
    for round in 0..=ROUNDS {
        for (side, (_, seen)) in sides.iter_mut().zip(&mut ways) {
            if side.is_there {
                let now = side.measure(writes, time)?;
                seen.extend((round > 0).then_some(now));
            }
        }
    }
    let base = Row {
        wait: Some(bench.wait()),
        server_wait: Some(bench.wait()),
        size: Some(BLOCK as u64),
        percent: Some(percent as f64),
        ..bench.row(experiment)
    };
    let mut rows = rows_of(&base, &ways);
    // What is not read from a server at all is of no cache here.
    rows.iter_mut().for_each(|row| row.client_hit_ratio = None);
    Ok(rows)
}

fn sides(bench: &Bench<'_>, bytes: u64, warm: bool) -> io::Result<Vec<Side>> {
    Way::TWO.into_iter().map(|way| Side::new(bench, way, bytes, warm)).collect()
}

/// Writes among the reads, in percent of all.
pub(super) fn writes(
    bench: &Bench<'_>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    const PERCENTS: [u64; 7] = [0, 1, 2, 5, 10, 25, 50];
    bench.place.make("file", WRITTEN_BYTES, bench.stop)?;
    let mut sides = sides(bench, WRITTEN_BYTES, true)?;
    for percent in PERCENTS {
        bench.say(&format!("limit-writes: {percent} %"));
        let rows = rows(bench, &mut sides, ("limit-writes", percent, percent))?;
        if bench.is_over() {
            return Ok(());
        }
        rows.into_iter().try_for_each(&mut *put)?;
    }
    bench.place.remove(&bench.place.path("file"))
}

/// A file that is larger than the server's cache, which is so many percent of it.
pub(super) fn server_cache(
    bench: &Bench<'_>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    const PERCENTS: [u64; 4] = [200, 90, 50, 25];
    let cache = bench.place.session(bench.wait(), false)?.stats()?.arena_bytes;
    if cache == 0 || cache > CACHE_BYTES_MAX {
        bench.note(&format!(
            "limit-server-cache is left out: the server caches {} bytes; serve with --arena 64m",
            cache
        ));
        return put(bench.row("limit-server-cache"));
    }
    for percent in PERCENTS {
        bench.say(&format!("limit-server-cache: {percent} % of the file are cached"));
        let bytes = (cache * 100 / percent).next_multiple_of(1 << 20);
        bench.place.make("file", bytes, bench.stop)?;
        let mut sides = sides(bench, bytes, percent > 100)?;
        let rows = rows(bench, &mut sides, ("limit-server-cache", percent, 0))?;
        drop(sides);
        bench.place.remove(&bench.place.path("file"))?;
        if bench.is_over() {
            return Ok(());
        }
        rows.into_iter().try_for_each(&mut *put)?;
    }
    Ok(())
}

/// A card of the server that has the translations of so many percent of the file's pages at a time. Who asks the
/// server needs none: that places data in buffers of the client, which are known to its own card.
pub(super) fn translation_cache(
    bench: &Bench<'_>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    const PERCENTS: [u64; 7] = [100, 99, 95, 90, 75, 50, 25];
    let pages = WRITTEN_BYTES / BLOCK as u64;
    bench.place.make("file", WRITTEN_BYTES, bench.stop)?;
    let mut sides = sides(bench, WRITTEN_BYTES, true)?;
    for percent in PERCENTS {
        bench.say(&format!("limit-translation-cache: {percent} % of the pages"));
        for side in sides.iter_mut().filter(|side| side.reader.way == Way::Optimistic) {
            let mut card = Translations::new((pages * percent / 100) as usize);
            for page in 0..pages {
                card.load(page);
            }
            side.translations = Some(card);
        }
        let rows = rows(bench, &mut sides, ("limit-translation-cache", percent, 0))?;
        if bench.is_over() {
            return Ok(());
        }
        rows.into_iter().try_for_each(&mut *put)?;
    }
    bench.place.remove(&bench.place.path("file"))
}
