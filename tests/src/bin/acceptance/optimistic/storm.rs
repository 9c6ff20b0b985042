//! Reads without the server while others write, cut and evict: each sees what was acknowledged before it began, or
//! something newer, whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{File, OpenOptions, Session};
use dafs_tests::client::{session, session_by_shm};
use dafs_tests::random::Random;
use dafs_tests::{Served, by_tcp, tree};

use crate::{Line, Mode};

const BLOCK: usize = 4096;
const WORDS: usize = BLOCK / 8;
/// Blocks of the file: most of them are cached at a time.
const BLOCKS: u64 = 2048;
const ARENA: &str = "16m";
/// Of what evicts: more than the cache takes, now and then.
const SCAN_BYTES: usize = 24 << 20;
/// Between two changes: so that most reads need no server.
const PAUSE: Duration = Duration::from_millis(1);

/// What happened to each block: changes have numbers, from one on.
struct Model {
    /// The last change that was acknowledged.
    acknowledged: Vec<AtomicU64>,
    /// The last cut that was begun.
    cut: Vec<AtomicU64>,
    over: AtomicBool,
}

/// A block that says what it is.
fn block(number: u64, version: u64, into: &mut [u8]) {
    let mut sum = number.rotate_left(32) ^ version;
    for (word, bytes) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = match word {
            0 => number,
            1 => version,
            _ if word == WORDS - 1 => sum,
            _ => version.wrapping_mul(word as u64 | 1),
        };
        sum = sum.wrapping_add(value);
        *bytes = value.to_le_bytes();
    }
}

/// The version of a block; 0: all is zeros. Or what is wrong.
fn version(number: u64, bytes: &[u8]) -> Result<u64, String> {
    let word = |at: usize| u64::from_le_bytes(bytes.as_chunks().0[at]);
    let version = word(1);
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let mut expected = [0; BLOCK];
    block(number, version, &mut expected);
    match expected == bytes {
        true => Ok(version),
        false => Err(format!("block {number} is torn: version {version}, of block {}", word(0))),
    }
}

/// Reads blocks at random until so many needed no server, or time is over; what is wrong, or how many reads there were.
fn read(
    session: &Session,
    file: &File,
    model: &Model,
    (hits, time): (u64, Duration),
) -> Result<u64, String> {
    let (mut random, mut into, mut reads) = (Random::new(11), vec![0; 2 * BLOCK], 0u64);
    let start = Instant::now();
    loop {
        let is_enough = || session.info().optimistic.hits >= hits || start.elapsed() > time;
        if reads.is_multiple_of(4096) && is_enough() {
            return Ok(reads);
        }
        reads += 1;
        // Now and then two at once.
        let count = 1 + u64::from(random.percent(10));
        let first = random.below(BLOCKS - count + 1);
        let blocks = first..first + count;
        let before: Vec<u64> = blocks
            .clone()
            .map(|number| model.acknowledged[number as usize].load(Ordering::Acquire))
            .collect();
        let wanted = count as usize * BLOCK;
        let bytes = file.read_at(&mut into[..wanted], first * BLOCK as u64);
        let bytes = bytes.map_err(|error| error.to_string())?;
        // What the file does not have is as good as zeros.
        into[bytes..wanted].fill(0);
        for ((number, bytes), acknowledged) in blocks.zip(into.chunks(BLOCK)).zip(before) {
            let found = version(number, bytes)?;
            let cut = model.cut[number as usize].load(Ordering::SeqCst);
            let newest = if found == 0 { cut } else { found };
            if newest < acknowledged {
                return Err(format!(
                    "block {number} is of {found} (cut by {cut}), and {acknowledged} was acknowledged"
                ));
            }
        }
    }
}

/// Writes blocks, and now and then cuts the file, until it is over.
fn write(file: &File, model: &Model) -> Result<u64, String> {
    let (mut random, mut bytes, mut changes) = (Random::new(12), vec![0; 4 * BLOCK], 0);
    let failed = |error: dafs_client::Error| error.to_string();
    while !model.over.load(Ordering::Relaxed) {
        changes += 1;
        std::thread::sleep(PAUSE);
        if random.below(200) == 0 {
            let first = BLOCKS - 1 - random.below(16);
            let gone = first as usize..BLOCKS as usize;
            model.cut[gone.clone()].iter().for_each(|cut| cut.store(changes, Ordering::SeqCst));
            file.set_len(first * BLOCK as u64).map_err(failed)?;
            let all = &model.acknowledged[gone];
            all.iter().for_each(|it| it.store(changes, Ordering::Release));
            continue;
        }
        let count = 1 + random.below(4);
        let first = random.below(BLOCKS - count + 1);
        let bytes = &mut bytes[..count as usize * BLOCK];
        for (number, part) in (first..).zip(bytes.chunks_mut(BLOCK)) {
            block(number, changes, part);
        }
        file.write_at(bytes, first * BLOCK as u64).map_err(failed)?;
        let all = &model.acknowledged[first as usize..(first + count) as usize];
        all.iter().for_each(|it| it.store(changes, Ordering::Release));
        if random.below(64) == 0 {
            file.flush().map_err(failed)?;
        }
    }
    Ok(changes)
}

/// Reads another file from end to end, again and again: what is clean goes.
fn scan(session: &Session, model: &Model) -> Result<(), String> {
    let failed = |error: dafs_client::Error| error.to_string();
    let file = session.open(b"scanned", OpenOptions::read()).map_err(failed)?;
    let mut into = vec![0; 1 << 20];
    while !model.over.load(Ordering::Relaxed) {
        for piece in 0..SCAN_BYTES >> 20 {
            file.read_at(&mut into, (piece << 20) as u64).map_err(failed)?;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
    Ok(())
}

/// By shared memory, where the client reads the cache by itself, and by tcp, where it has references that are checked.
pub(crate) fn storm(mode: Mode) -> Vec<Line> {
    let shm = Wanted {
        what: "reads without the server beside writes, cuts, evictions",
        optimistic: "trusted",
        hits: mode.pick(10_000_000, 1_000_000_000),
        time: Duration::from_secs(mode.pick(40, 2400)),
    };
    let tcp = Wanted {
        what: "the same by tcp, by a reference",
        optimistic: "checked",
        hits: mode.pick(200_000, 100_000_000),
        time: Duration::from_secs(mode.pick(20, 3600)),
    };
    let mut lines = storm_of(&shm, |url| session_by_shm(url, |_| {}));
    lines.extend(storm_of(&tcp, |url| Ok(session(&by_tcp(url)))));
    lines
}

/// So many hits, unless that takes too long.
struct Wanted {
    what: &'static str,
    optimistic: &'static str,
    hits: u64,
    time: Duration,
}

fn storm_of(
    wanted: &Wanted,
    connect: impl FnOnce(&str) -> dafs_client::Result<Session>,
) -> Vec<Line> {
    let line = Line::new("storm", wanted.what, "none torn or stale");
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("scanned"), tree::pattern(3, SCAN_BYTES)).expect("write");
    std::fs::write(dir.path().join("file"), vec![0; BLOCKS as usize * BLOCK]).expect("write");
    dafs_tests::served::as_in_use(true);
    let options = ["--arena", ARENA, "--optimistic", wanted.optimistic];
    let server = Served::start(dir.path(), &options);
    let reader = match connect(&server.at("")) {
        Ok(session) => session,
        Err(error) => return vec![line.skipped(error.to_string())],
    };
    let zeros = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let model = Model { acknowledged: zeros(), cut: zeros(), over: AtomicBool::new(false) };
    let (writer, scanner) = (session(&server.at("")), session(&server.at("")));
    let options = OpenOptions { write: true, ..OpenOptions::read() };
    let open = |session: &Session| session.open(b"file", options).expect("open");
    let (read_file, write_file) = (open(&reader), open(&writer));
    let (reads, changes, scanned) = std::thread::scope(|scope| {
        let changes = scope.spawn(|| write(&write_file, &model));
        let scanned = scope.spawn(|| scan(&scanner, &model));
        let reads = read(&reader, &read_file, &model, (wanted.hits, wanted.time));
        model.over.store(true, Ordering::Relaxed);
        (reads, changes.join().expect("no panic"), scanned.join().expect("no panic"))
    });
    let (seen, by) = (reader.info().optimistic, reader.info().transport);
    let told = scanned.and(changes).and_then(|changes| {
        let reads = reads?;
        let (hits, missed) = (seen.hits, seen.stale + seen.refused);
        Ok(format!(
            "none in {hits} hits of {reads} reads by {by}, {missed} stale or refused; {changes} changes"
        ))
    });
    let enough = Line::new("storm", "how many of them", &format!("{}", wanted.hits)).timing();
    vec![line.result(told), enough.measured(seen.hits.to_string(), seen.hits >= wanted.hits)]
}
