//! Figure 7: two clients on one processor read a large file by large requests, which their cache cuts into blocks.
//! They sleep while they wait. The server has the other processor for itself, sleeps or polls.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Call, Done, File, Group, Session};
use dafs_fabric::Buffer;

use super::Bench;
use super::place::{BLOCK, Place, Reader, Way, open, reads_by_itself};
use super::row::{Row, Seen};
use crate::sys;
use crate::target::Costs;
use crate::wait::Wait;

/// What the application asks for at a time.
const REQUEST: usize = 256 << 10;
/// The cache's blocks.
const UNITS: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Stretches of each kind, by turns.
const ROUNDS: u32 = 3;
/// Between two signs of life of the session that has the server poll: it forgets who polls in a second.
const PACE: Duration = Duration::from_millis(200);

/// After that, until the server has noticed.
const REST: Duration = Duration::from_millis(300);

/// A link that all clients share: what is read has to pass it, one after the other.
struct Link {
    bytes_per_s: u64,
    free_at: Mutex<Instant>,
}

impl Link {
    /// Waits until so many bytes have passed.
    fn pass(&self, bytes: usize) {
        let taken = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let end = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(Instant::now()) + taken;
            *free_at
        };
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

/// One client, in one way.
struct Client {
    session: Session,
    group: Group,
    file: File,
    /// Blocks are copied one after the other; else all of a request are under way.
    by_itself: bool,
    bytes: u64,
    is_there: bool,
}

impl Client {
    fn new(bench: &Bench<'_>, way: Way) -> io::Result<Client> {
        let mut reader = Reader::new(bench.place, way, Wait::Sleeping, BLOCK)?;
        let file = open(&reader.session, &bench.place.path("file"))?;
        let bytes = bench.options.file_bytes / REQUEST as u64 * REQUEST as u64;
        let is_there = reader.warm(&[(&file, bytes / BLOCK as u64)], bench.stop)?;
        let session = reader.session.clone();
        let by_itself = way == Way::Optimistic && reads_by_itself(&file)?;
        Ok(Client { group: session.group(), session, file, by_itself, bytes, is_there })
    }

    /// Reads from the beginning to the end, again and again; how many blocks.
    fn run(&self, run: &Run<'_>, start: Instant) -> io::Result<u64> {
        let count = REQUEST / run.unit;
        let buffers = self.session.buffers(count, run.unit).map_err(io::Error::other)?;
        let mut blocks: Vec<Option<Buffer>> = buffers.into_iter().map(Some).collect();
        let (mut done, mut offset, mut read) = (Vec::with_capacity(count), 0, 0);
        while start.elapsed() < run.time && !run.stop.load(Ordering::Relaxed) {
            match self.by_itself {
                true => self.request_by_itself(&mut blocks, offset)?,
                false => self.request(&mut blocks, &mut done, offset)?,
            }
            if let Some(link) = run.link {
                link.pass(REQUEST);
            }
            offset = (offset + REQUEST as u64) % self.bytes;
            read += count as u64;
        }
        Ok(read)
    }

    fn request_by_itself(&self, blocks: &mut [Option<Buffer>], mut offset: u64) -> io::Result<()> {
        for block in blocks.iter_mut().flatten() {
            self.file.read_at(block, offset)?;
            offset += block.len() as u64;
        }
        Ok(())
    }

    /// All blocks at once, as a cache that reads ahead to the end of a request.
    fn request(
        &self,
        blocks: &mut [Option<Buffer>],
        done: &mut Vec<Done>,
        mut offset: u64,
    ) -> io::Result<()> {
        for (tag, block) in (0..).zip(blocks.iter_mut()) {
            let buffer = block.take().ok_or(io::ErrorKind::InvalidInput)?;
            let bytes = buffer.len();
            let len = u32::try_from(bytes).unwrap_or(u32::MAX);
            let call = Call::Read { file: self.file.clone(), offset, buffer, len };
            self.group.submit(tag, call).map_err(|_| io::Error::other("no room for a request"))?;
            offset += bytes as u64;
        }
        let mut left = blocks.len();
        while left > 0 {
            self.group.wait_into(done, left, None);
            for done in done.drain(..) {
                left -= 1;
                done.result?;
                if let Some(block) = blocks.get_mut(done.tag as usize) {
                    *block = done.buffer;
                }
            }
        }
        Ok(())
    }
}

/// One stretch.
struct Run<'a> {
    unit: usize,
    time: Duration,
    cpu: usize,
    link: Option<&'a Link>,
    stop: &'a AtomicBool,
}

/// Both clients at once.
fn measure(clients: &[Client], run: &Run<'_>) -> io::Result<Seen> {
    let observer = &clients[0].session;
    let infos = || -> (u64, u64) {
        let infos = clients.iter().map(|client| client.session.info());
        infos.fold((0, 0), |(trips, hits), info| {
            (trips + info.round_trips, hits + info.optimistic.hits)
        })
    };
    let costs = Costs::begin(observer)?;
    let (trips, hits) = infos();
    let (barrier, started) = (Barrier::new(clients.len()), Instant::now());
    let read: io::Result<Vec<u64>> = std::thread::scope(|scope| {
        let one = |client| {
            let barrier = &barrier;
            scope.spawn(move || {
                let pinned = sys::pin_to_cpu(run.cpu);
                barrier.wait();
                pinned?;
                Client::run(client, run, Instant::now())
            })
        };
        let threads: Vec<_> = clients.iter().map(one).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked")))
        });
        ended.collect()
    });
    let mut seen = Seen::default();
    seen.slice.seconds = started.elapsed().as_secs_f64();
    seen.slice.ops = read?.iter().sum();
    seen.slice.bytes = seen.slice.ops * run.unit as u64;
    let (trips_now, hits_now) = infos();
    costs.end(observer, &mut seen.slice)?;
    // The observer's alone.
    (seen.slice.system_calls, seen.slice.client_copied_bytes) = (None, None);
    (seen.slice.server_copied_bytes, seen.slice.registrations) = (None, None);
    seen.slice.round_trips = Some(trips_now - trips);
    seen.remote = seen.slice.ops;
    seen.optimistic = hits_now - hits;
    Ok(seen)
}

/// Has the server poll, until it is dropped.
struct Pacer {
    over: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pacer {
    fn start(place: &Place) -> io::Result<Pacer> {
        let session = place.session(Wait::Polled, false)?;
        let (over, told) = std::sync::mpsc::channel::<()>();
        let go_on = move || {
            while told.recv_timeout(PACE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if session.stats().is_err() {
                    return;
                }
            }
        };
        Ok(Pacer { over, thread: Some(std::thread::spawn(go_on)) })
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        let _ = self.over.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        std::thread::sleep(REST);
    }
}

/// What is compared.
const KINDS: [(Way, Wait); 3] =
    [(Way::Direct, Wait::Sleeping), (Way::Optimistic, Wait::Sleeping), (Way::Direct, Wait::Polled)];
/// Of [`KINDS`], what the last row is beside.
const POLLED: usize = 2;

/// Two clients of each way. Their threads keep to the clients' processor, as who starts them does.
fn clients(bench: &Bench<'_>, cpu: usize) -> io::Result<[Vec<Client>; 2]> {
    let two = |way| (0..2).map(|_| Client::new(bench, way)).collect::<io::Result<Vec<_>>>();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            sys::pin_to_cpu(cpu)?;
            Ok([two(Way::Direct)?, two(Way::Optimistic)?])
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked")))
    })
}

fn rows(bench: &Bench<'_>, unit: usize, link: Option<u64>, all: &[Vec<Seen>]) -> Vec<Row> {
    let experiment = if link.is_some() { "figure-7-link" } else { "figure-7" };
    let polled = all.get(POLLED).map_or(&[][..], Vec::as_slice);
    let row = |((way, server_wait), seen): (&(Way, Wait), &Vec<Seen>)| {
        let row = Row {
            path: way.name(),
            wait: Some(Wait::Sleeping),
            server_wait: Some(*server_wait),
            size: Some(unit as u64),
            link_bytes_per_s: link,
            ..bench.row(experiment)
        };
        let row = row.with(seen);
        if *way == Way::Optimistic { row.beside(seen, polled) } else { row }
    };
    KINDS.iter().zip(all).map(row).collect()
}

pub(super) fn run(bench: &Bench<'_>, put: &mut dyn FnMut(Row) -> io::Result<()>) -> io::Result<()> {
    bench.say("figure 7: writing the file, and reading it once");
    bench.place.make("file", bench.options.file_bytes, bench.stop)?;
    let cpu = match bench.options.cpu {
        Some(cpu) => cpu,
        None => sys::allowed_cpus()?.first().copied().unwrap_or(0),
    };
    let [direct, optimistic] = clients(bench, cpu)?;
    let links = [None, bench.options.link_bytes_per_s];
    let with = if links[1].is_some() { &links[..] } else { &links[..1] };
    for &link in with {
        for unit in UNITS {
            let name = if link.is_some() { "figure 7, by a link" } else { "figure 7" };
            bench.say(&format!("{name}: blocks of {}", crate::size_text(unit as u64)));
            let link_now = link
                .map(|rate| Link { bytes_per_s: rate.max(1), free_at: Mutex::new(Instant::now()) });
            let time = bench.time(ROUNDS);
            let run = Run { unit, time: time.time, cpu, link: link_now.as_ref(), stop: time.stop };
            let mut all: Vec<Vec<Seen>> = KINDS.map(|_| Vec::new()).into();
            for _ in 0..ROUNDS {
                for ((way, server_wait), seen) in KINDS.iter().zip(&mut all) {
                    let clients = if *way == Way::Direct { &direct } else { &optimistic };
                    if !clients.iter().all(|client| client.is_there) {
                        continue;
                    }
                    let polls = *server_wait == Wait::Polled;
                    let _pacer = polls.then(|| Pacer::start(bench.place)).transpose()?;
                    seen.push(measure(clients, &run)?);
                }
            }
            if bench.is_over() {
                return Ok(());
            }
            rows(bench, unit, link, &all).into_iter().try_for_each(&mut *put)?;
        }
    }
    bench.place.remove(&bench.place.path("file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_lets_no_more_pass_than_it_can() {
        let link = Link { bytes_per_s: 1 << 20, free_at: Mutex::new(Instant::now()) };
        let start = Instant::now();
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| (0..2).for_each(|_| link.pass(8 << 10)))));
        });
        assert!(start.elapsed() >= Duration::from_millis(31), "{:?}", start.elapsed());
    }
}
