//! Figure 6: PostMark, read-only: whole files of a block, in a client whose block cache finds a part of them; and
//! what limits the gain ([ODAFS] 4.2.2): few remote reads, and files that are not exported.

use std::collections::HashMap;
use std::io;

use dafs_client::{Call, File, Group};
use dafs_fabric::Buffer;

use super::Bench;
use super::blocks::Blocks;
use super::place::{BLOCK, Reader, Way, open, reads_by_itself};
use super::row::{Row, Seen, rows_of};
use super::stretch::{Did, Time, stretch};
use crate::offsets::Offsets;
use crate::wait::Wait;

/// Stretches of each way, by turns.
const ROUNDS: u32 = 5;
/// Transactions before it is measured, for each file.
const WARM_UP: usize = 3;

/// The files of the benchmark, by name.
struct Pool {
    names: Vec<Vec<u8>>,
    /// Who has a delegation of a file opens and closes it so: by a look at what is open.
    open: HashMap<Vec<u8>, usize>,
}

impl Pool {
    fn make(bench: &Bench<'_>) -> io::Result<Pool> {
        bench.say("postmark: making files");
        let names = bench.place.make_small(bench.options.files, bench.stop)?;
        let open = names.iter().cloned().enumerate().map(|(at, name)| (name, at)).collect();
        Ok(Pool { names, open })
    }

    fn remove(&self, bench: &Bench<'_>) -> io::Result<()> {
        let session = bench.place.session(Wait::Adaptive, false)?;
        self.names.iter().try_for_each(|name| session.remove(name))?;
        Ok(())
    }
}

/// A client.
struct Side<'p> {
    pool: &'p Pool,
    reader: Reader,
    /// Its calls ask the server, whatever the reader does.
    group: Group,
    /// Each with whether it is exported.
    files: Vec<(File, bool)>,
    blocks: Blocks,
    dice: Offsets,
    application: Vec<u8>,
    is_there: bool,
}

impl<'p> Side<'p> {
    /// Of `hidden` percent of the files nothing is read without the server.
    fn new(
        bench: &Bench<'_>,
        pool: &'p Pool,
        (way, wait): (Way, Wait),
        hidden: u64,
    ) -> io::Result<Side<'p>> {
        let mut reader = Reader::new(bench.place, way, wait, BLOCK)?;
        let is_exported = |at: usize| at as u64 * 61 % 100 >= hidden;
        let opened = pool.names.iter().enumerate();
        let opened = opened.map(|(at, name)| Ok((open(&reader.session, name)?, is_exported(at))));
        let files: Vec<(File, bool)> = opened.collect::<io::Result<_>>()?;
        let own = files.iter().filter(|(_, is_exported)| *is_exported);
        let own: Vec<(&File, u64)> = own.map(|(file, _)| (file, 1)).collect();
        let is_there = own.is_empty() || reader.warm(&own, bench.stop)?;
        let dice = Offsets::new(pool.names.len() as u64, 1, true);
        let (blocks, application) = (Blocks::new(Vec::new()), vec![0; BLOCK]);
        let group = reader.session.group();
        Ok(Side { pool, reader, group, files, blocks, dice, application, is_there })
    }

    /// With a cache that finds so many percent, full.
    fn fit(&mut self, percent: u64) -> io::Result<()> {
        let count = (self.files.len() as u64 * percent / 100).max(1) as usize;
        let session = &self.reader.session;
        self.blocks = Blocks::new(session.buffers(count, BLOCK).map_err(io::Error::other)?);
        (0..self.files.len() * WARM_UP).try_for_each(|_| self.transaction().map(drop))
    }

    /// Opens a file, reads it, closes it.
    fn transaction(&mut self) -> io::Result<Did> {
        let name = &self.pool.names[self.dice.next() as usize];
        let number = *self.pool.open.get(name).ok_or(io::ErrorKind::NotFound)?;
        let did = |remote| Did { bytes: BLOCK as u64, remote };
        if let Some(block) = self.blocks.find(number as u64) {
            self.application.copy_from_slice(block);
            return Ok(did(false));
        }
        let (file, is_exported) = &self.files[number];
        let mut block = self.blocks.take().ok_or(io::ErrorKind::InvalidInput)?;
        match is_exported {
            true => self.reader.read(file, 0, Some(&mut block))?,
            false => block = ask(&self.group, file, block)?,
        }
        self.application.copy_from_slice(self.blocks.put(number as u64, block));
        Ok(did(true))
    }

    /// The same with an open and a close that the server is asked for.
    fn asking_transaction(&mut self) -> io::Result<Did> {
        let number = self.dice.next() as usize;
        let name = &self.pool.names[number];
        let file = open(&self.reader.session, name)?;
        let mut remote = false;
        if let Some(block) = self.blocks.find(number as u64) {
            self.application.copy_from_slice(block);
        } else {
            remote = true;
            let mut block = self.blocks.take().ok_or(io::ErrorKind::InvalidInput)?;
            self.reader.read(&file, 0, Some(&mut block))?;
            self.application.copy_from_slice(self.blocks.put(number as u64, block));
        }
        file.close()?;
        Ok(Did { bytes: BLOCK as u64, remote })
    }

    fn measure(&mut self, asks: bool, time: Time<'_>) -> io::Result<Seen> {
        let session = self.reader.session.clone();
        stretch(
            &session,
            time,
            || {
                if asks { self.asking_transaction() } else { self.transaction() }
            },
        )
    }
}

/// Reads a block of a file that is not exported.
fn ask(group: &Group, file: &File, buffer: Buffer) -> io::Result<Buffer> {
    let call = Call::Read { file: file.clone(), offset: 0, buffer, len: BLOCK as u32 };
    group.submit(0, call).map_err(|_| io::Error::other("no room for a request"))?;
    let done = group.wait(1, None).pop().ok_or_else(|| io::Error::other("no answer"))?;
    done.result?;
    done.buffer.ok_or_else(|| io::Error::other("a read lost its buffer"))
}

/// Measures all sides by turns; no figures of those that are not there.
fn turns(
    bench: &Bench<'_>,
    sides: &mut [Side<'_>],
    asks: bool,
) -> io::Result<Vec<(Way, Vec<Seen>)>> {
    let mut ways: Vec<(Way, Vec<Seen>)> = Way::TWO.map(|way| (way, Vec::new())).into();
    let time = bench.time(ROUNDS);
    for _ in 0..ROUNDS {
        for (side, (_, seen)) in sides.iter_mut().zip(&mut ways) {
            if side.is_there {
                seen.push(side.measure(asks, time)?);
            }
        }
    }
    Ok(ways)
}

fn sides<'p>(bench: &Bench<'_>, pool: &'p Pool, wait: Wait) -> io::Result<Vec<Side<'p>>> {
    Way::TWO.into_iter().map(|way| Side::new(bench, pool, (way, wait), 0)).collect()
}

/// Rows of one experiment: one for each hit ratio, in percent, and way.
fn ratios(
    bench: &Bench<'_>,
    pool: &Pool,
    (experiment, wait, asks): (&'static str, Wait, bool),
    percents: &[u64],
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    let mut sides = sides(bench, pool, wait)?;
    for &percent in percents {
        bench.say(&format!("{experiment}: {}, {percent} % found at the client", wait.name()));
        sides.iter_mut().try_for_each(|side| side.fit(percent))?;
        let ways = turns(bench, &mut sides, asks)?;
        if bench.is_over() {
            return Ok(());
        }
        let base = base(bench, experiment, wait, percent);
        rows_of(&base, &ways).into_iter().try_for_each(&mut *put)?;
    }
    Ok(())
}

fn base(bench: &Bench<'_>, experiment: &'static str, wait: Wait, percent: u64) -> Row {
    Row {
        wait: Some(wait),
        server_wait: Some(wait),
        size: Some(BLOCK as u64),
        percent: Some(percent as f64),
        ..bench.row(experiment)
    }
}

/// `asks`: the server, for each open and close.
pub(super) fn figure(
    bench: &Bench<'_>,
    asks: bool,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    let pool = Pool::make(bench)?;
    let percents = &bench.options.percents;
    for &wait in &bench.options.waits {
        let name = if asks { "figure-6-opens" } else { "figure-6" };
        ratios(bench, &pool, (name, wait, asks), percents, put)?;
    }
    pool.remove(bench)
}

/// Few remote reads: the client finds most by itself.
pub(super) fn few_remote(
    bench: &Bench<'_>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    const PERCENTS: [u64; 6] = [0, 25, 50, 75, 90, 97];
    let pool = Pool::make(bench)?;
    let wait = bench.wait();
    ratios(bench, &pool, ("limit-client-cache", wait, false), &PERCENTS, put)?;
    pool.remove(bench)
}

/// Files that are not exported: a part of what is read must be asked for.
pub(super) fn not_exported(
    bench: &Bench<'_>,
    put: &mut dyn FnMut(Row) -> io::Result<()>,
) -> io::Result<()> {
    const PERCENTS: [u64; 6] = [0, 10, 25, 50, 75, 100];
    /// That the client's cache finds.
    const FOUND: u64 = 25;
    let pool = Pool::make(bench)?;
    let wait = bench.wait();
    for percent in PERCENTS {
        bench.say(&format!("limit-not-exported: {percent} %"));
        // This one last: an open of a file that was just changed has the server read it anew, to other places.
        let direct = Side::new(bench, &pool, (Way::Direct, wait), 0)?;
        let mut own = Side::new(bench, &pool, (Way::Optimistic, wait), percent)?;
        // By other networks what is asked beside others goes by a reference, too: nothing of it can be hidden.
        if let Some((file, _)) = own.files.first() {
            own.is_there &= reads_by_itself(file)?;
        }
        let mut sides = vec![direct, own];
        sides.iter_mut().try_for_each(|side| side.fit(FOUND))?;
        let ways = turns(bench, &mut sides, false)?;
        if bench.is_over() {
            return Ok(());
        }
        let base = base(bench, "limit-not-exported", wait, percent);
        rows_of(&base, &ways).into_iter().try_for_each(&mut *put)?;
    }
    pool.remove(bench)
}
