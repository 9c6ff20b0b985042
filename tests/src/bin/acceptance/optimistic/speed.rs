//! How long hits take, by turns with what they cannot do without: a copy of a random block, and two loads that
//! miss, of which the second depends on the first.

use std::sync::atomic::Ordering;
use std::time::Instant;

use dafs_client::{File, OpenOptions, Session};
use dafs_fabric::{Arena, Span, Words};
use dafs_tests::acceptance::median;
use dafs_tests::client::session_by_shm;
use dafs_tests::random::Random;
use dafs_tests::{Served, tree};

use crate::{Line, Mode};

const BLOCK: usize = 4096;
/// What is read, and copied from: what processors keep the pages' addresses of, and far more.
const SIZES: [usize; 2] = [64 << 20, 1 << 30];
/// Operations between two looks at the clock.
const BATCH: usize = 64;

/// Memory that is laid out as a cache with a directory and entries, with nothing of what these are for.
struct Bare {
    cache: Span,
    /// A line of eight words for each block: the first says where.
    directory: Words,
    /// Four words for each slot.
    entries: Words,
}

impl Bare {
    fn new(blocks: usize) -> Bare {
        let (bytes, huge) = (blocks * BLOCK, 2 << 20);
        let memory = |bytes| Arena::in_segments(bytes, huge).expect("memory");
        let (cache, directory, entries) = (memory(bytes), memory(blocks * 64), memory(blocks * 32));
        cache.populate_huge(0, bytes);
        entries.populate_huge(0, blocks * 32);
        let bare = Bare {
            cache: cache.span(0, bytes),
            directory: Words::new(&directory),
            entries: Words::new(&entries),
        };
        let mut places: Vec<usize> = (0..blocks).collect();
        let mut random = Random::new(5);
        (1..blocks).for_each(|at| places.swap(at, random.index(at + 1)));
        for (block, place) in places.into_iter().enumerate() {
            bare.directory.store(block * 8, place as u64, Ordering::Relaxed);
        }
        bare
    }

    fn copy(&self, block: usize, into: &mut [u8]) {
        let place = self.directory.load(block * 8, Ordering::Acquire) as usize;
        let entry = self.entries.load(place * 4, Ordering::Acquire) as usize;
        self.cache.copy_to((place + entry) * BLOCK, into);
    }
}

/// Of how many blocks one is chosen, and how often so many are.
#[derive(Clone, Copy)]
struct Work {
    blocks: usize,
    batches: usize,
}

/// Nanoseconds of an operation, the median over batches of random blocks.
fn time(random: &mut Random, of: Work, mut work: impl FnMut(usize, &mut [u8])) -> f64 {
    let mut into = vec![0; BLOCK];
    let one = |_| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| work(random.index(of.blocks), &mut into));
        start.elapsed().as_nanos() as f64 / BATCH as f64
    };
    median((0..of.batches).map(one).collect())
}

fn read(file: &File, block: usize, into: &mut [u8]) {
    let bytes = file.read_at(into, (block * BLOCK) as u64).expect("read");
    assert_eq!(bytes, BLOCK);
}

/// An open file of which all is read without the server.
fn warm(session: &Session, blocks: usize) -> File {
    let file = session.open(b"file", OpenOptions::read()).expect("open");
    let mut into = vec![0; BLOCK];
    for _ in 0..20 {
        let before = session.info().optimistic.hits;
        (0..blocks).for_each(|block| read(&file, block, &mut into));
        if session.info().optimistic.hits - before == blocks as u64 {
            break;
        }
    }
    file
}

/// How much faster two threads are than one.
fn scaling(work: impl Fn(usize, &mut [u8]) + Sync, of: Work) -> f64 {
    let alone = time(&mut Random::new(1), of, &work);
    let both: Vec<f64> = std::thread::scope(|scope| {
        let thread = |seed| {
            let work = &work;
            scope.spawn(move || time(&mut Random::new(seed), of, work))
        };
        let threads = [2, 3].map(thread);
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    both.into_iter().map(|time| alone / time).sum()
}

pub(crate) fn hits(mode: Mode) -> Vec<Line> {
    let sizes = &SIZES[..mode.pick(1, SIZES.len())];
    sizes.iter().flat_map(|bytes| hits_in(mode, *bytes)).collect()
}

fn hits_in(mode: Mode, size: usize) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("file"), tree::pattern(1, size)).expect("write");
    dafs_tests::served::as_in_use(true);
    let mib = size >> 20;
    let arena = format!("{}m", (mib + mib / 4).max(256));
    let server = Served::start(dir.path(), &["--arena", &arena]);
    let line = |what: &str, required: &str| {
        Line::new("optimistic", &format!("{what}, of {mib} MiB"), required)
    };
    let session = match session_by_shm(&server.at(""), |_| {}) {
        Ok(session) => session,
        Err(error) => return vec![line("hits", "a session").skipped(error.to_string())],
    };
    let asking = session_by_shm(&server.at(""), |options| options.optimistic = false);
    let asking = asking.expect("another session");
    let (file, asked) = (warm(&session, size / BLOCK), warm(&asking, size / BLOCK));
    let of = Work { blocks: size / BLOCK, batches: mode.pick(200, 5000) };
    let bare = Bare::new(of.blocks);
    let (mut hit, mut floor, mut rpc) = (Vec::new(), Vec::new(), Vec::new());
    // Who asks for counters waits, and looks around meanwhile: that is not of the reads.
    let (stats, before) = (session.stats().expect("counters"), session.info());
    let mut reads = 0;
    for round in 0..mode.pick(5, 21) {
        let mut random = Random::new(round);
        floor.push(time(&mut random, of, |block, into| bare.copy(block, into)));
        hit.push(time(&mut random, of, |block, into| read(&file, block, into)));
        reads += (of.batches * BATCH) as u64;
    }
    let (after, stats_after) = (session.info(), session.stats().expect("counters"));
    for round in 0..mode.pick(2, 5) {
        let mut random = Random::new(round);
        let of = Work { batches: of.batches / 4, ..of };
        rpc.push(time(&mut random, of, |block, into| read(&asked, block, into)));
    }
    let quotients: Vec<f64> = hit.iter().zip(&floor).map(|(hit, floor)| hit / floor).collect();
    let (ratio, hit, floor, rpc) = (median(quotients), median(hit), median(floor), median(rpc));
    let bare_scales = scaling(|block, into| bare.copy(block, into), of);
    let scales = scaling(|block, into| read(&file, block, into), of);
    let part = scales / bare_scales;
    let hits = after.optimistic.hits - before.optimistic.hits;
    let trips = after.round_trips - before.round_trips;
    let calls = after.system_calls - before.system_calls;
    let cpu_ns = stats_after.cpu_ns.saturating_sub(stats.cpu_ns) as f64 / reads as f64;
    vec![
        line("random 4 KiB hit", "≤ 1.2 × copy and two loads that miss")
            .timing()
            .measured(format!("{ratio:.2} × ({hit:.0} ns, bare {floor:.0})"), ratio <= 1.2),
        line("hits per second, one thread", "≥ 0.80 of that loop's")
            .timing()
            .measured(format!("{:.2} of it ({:.2} M)", 1.0 / ratio, 1e3 / hit), ratio <= 1.25),
        line("two threads of one session", "≥ 0.85 of two bare copiers' gain").timing().measured(
            format!("{part:.2} of it ({scales:.2} ×, bare {bare_scales:.2})"),
            part >= 0.85,
        ),
        line("beside a read by the server", "≥ 36 % less time").timing().measured(
            format!("{:.0} % less (it takes {rpc:.0} ns)", 100.0 * (1.0 - hit / rpc)),
            hit <= 0.64 * rpc,
        ),
        line("messages", "none").measured(
            format!("{trips} of {reads} reads, {hits} hits"),
            trips <= 1 && hits == reads,
        ),
        line("system calls of the session", "fewer than 64, of its keeper")
            .measured(format!("{calls} of {reads} reads"), calls < 64),
        line("the server's processor", "≤ 20 ns a read")
            .timing()
            .measured(format!("{cpu_ns:.1} ns a read"), cpu_ns <= 20.0),
    ]
}
