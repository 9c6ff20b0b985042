//! Figures 3 and 4: one client reads a large file with eight blocks under way, by the size of a block: bandwidth,
//! and what of the client's processor that takes. Inline, what came is copied once more.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dafs_client::{Call, Done, File, Group, Session};
use dafs_fabric::Buffer;

use super::Bench;
use super::place::{BLOCK, Reader, Way, open};
use super::row::{Row, Seen, rows_of};
use super::stretch::Time;
use crate::offsets::Offsets;
use crate::target::Costs;
use crate::wait::Wait;

const SIZES: [usize; 8] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// Blocks under way.
const DEPTH: usize = 8;
/// Stretches of each way, by turns.
const ROUNDS: u32 = 3;
/// The server reads for none of these without being asked: the paper has them for throughput of large blocks.
const WAYS: [Way; 2] = [Way::Inline, Way::Direct];

struct Side {
    session: Session,
    group: Group,
    file: File,
    way: Way,
    done: Vec<Done>,
}

impl Side {
    fn new(bench: &Bench<'_>, way: Way) -> io::Result<Side> {
        let reader = Reader::new(bench.place, way, Wait::Sleeping, BLOCK)?;
        let session = reader.session;
        let file = open(&session, &bench.place.path("file"))?;
        Ok(Side { group: session.group(), session, file, way, done: Vec::with_capacity(DEPTH) })
    }

    fn submit(&self, tag: u64, buffer: Buffer, offset: u64, size: usize) -> io::Result<()> {
        let len = u32::try_from(size).unwrap_or(u32::MAX);
        let call = Call::Read { file: self.file.clone(), offset, buffer, len };
        self.group.submit(tag, call).map_err(|_| io::Error::other("no room for a request"))
    }

    fn measure(&mut self, bytes: u64, size: usize, time: Time<'_>) -> io::Result<Seen> {
        let mut offsets = Offsets::new(bytes, size as u64, false);
        let buffers = self.session.buffers(DEPTH, size).map_err(io::Error::other)?;
        let mut application = vec![0; size * DEPTH];
        let mut seen = Seen::default();
        let costs = Costs::begin(&self.session)?;
        let started = Instant::now();
        let mut sent = [started; DEPTH];
        for (tag, buffer) in (0..).zip(buffers) {
            self.submit(tag, buffer, offsets.next(), size)?;
        }
        while self.group.outstanding() > 0 {
            let mut done = std::mem::take(&mut self.done);
            self.group.wait_into(&mut done, 1, None);
            let now = Instant::now();
            let goes_on = now - started < time.time && !time.stop.load(Ordering::Relaxed);
            for done in done.drain(..) {
                done.result?;
                let (Some(buffer), at) = (done.buffer, done.tag as usize) else { continue };
                if self.way == Way::Inline {
                    application[at * size..][..size].copy_from_slice(&buffer);
                }
                seen.slice.latency.record(now - sent[at]);
                seen.slice.ops += 1;
                if goes_on {
                    sent[at] = now;
                    self.submit(done.tag, buffer, offsets.next(), size)?;
                }
            }
            self.done = done;
        }
        seen.slice.seconds = started.elapsed().as_secs_f64();
        seen.slice.bytes = seen.slice.ops * size as u64;
        seen.remote = seen.slice.ops;
        costs.end(&self.session, &mut seen.slice)?;
        if self.way == Way::Inline {
            seen.copied_once_more();
        }
        Ok(seen)
    }
}

pub(super) fn run(bench: &Bench<'_>, put: &mut dyn FnMut(Row) -> io::Result<()>) -> io::Result<()> {
    bench.say("figure 3: writing the file");
    let bytes = bench.options.file_bytes;
    bench.place.make("file", bytes, bench.stop)?;
    let sides: io::Result<Vec<Side>> = WAYS.into_iter().map(|way| Side::new(bench, way)).collect();
    let mut sides = sides?;
    for size in SIZES {
        bench.say(&format!("figure 3: blocks of {}", crate::size_text(size as u64)));
        let mut ways: Vec<(Way, Vec<Seen>)> = WAYS.map(|way| (way, Vec::new())).into();
        let time = bench.time(ROUNDS);
        for round in 0..=ROUNDS {
            for (side, (_, seen)) in sides.iter_mut().zip(&mut ways) {
                let now = side.measure(bytes, size, time)?;
                // The first warms up.
                seen.extend((round > 0).then_some(now));
            }
        }
        if bench.is_over() {
            return Ok(());
        }
        let base = Row {
            wait: Some(Wait::Sleeping),
            server_wait: Some(Wait::Sleeping),
            size: Some(size as u64),
            ..bench.row("figure-3")
        };
        rows_of(&base, &ways).into_iter().try_for_each(&mut *put)?;
    }
    bench.place.remove(&bench.place.path("file"))
}
