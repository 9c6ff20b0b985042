//! Reads without the server while others write, cut and evict: each sees what was acknowledged before it began, or
//! something newer, whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{Call, File, OpenOptions, Session};
use dafs_tests::client::{session, session_by_shm};
use dafs_tests::random::Random;
use dafs_tests::{Served, by_tcp, tree};

use crate::{Line, Mode};

const BLOCK: usize = 4096;
const WORDS: usize = BLOCK / 8;
/// Blocks of the file: most of them are cached at a time.
const BLOCKS: u64 = 2048;
/// A session may have a quarter of a quarter of it under way, in units of 64 KiB: more than [`DEPTH`] of these.
const ARENA: &str = "64m";
/// Of what evicts: more than the cache takes, now and then.
const SCAN_BYTES: usize = 96 << 20;
/// Reads under way where many are.
const DEPTH: usize = 32;
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

/// Who reads blocks at random, and what each of them may be by then.
struct Reader<'a> {
    session: &'a Session,
    file: &'a File,
    model: &'a Model,
    random: Random,
    reads: u64,
}

/// A read that is about to begin: of one block, or now and then of two.
struct Begun {
    first: u64,
    count: usize,
    acknowledged: [u64; 2],
}

impl Reader<'_> {
    fn begin(&mut self) -> Begun {
        self.reads += 1;
        let count = 1 + usize::from(self.random.percent(10));
        let first = self.random.below(BLOCKS - count as u64 + 1);
        let mut acknowledged = [0; 2];
        let of_all = self.model.acknowledged[first as usize..].iter();
        for (at, of_block) in acknowledged.iter_mut().zip(of_all).take(count) {
            *at = of_block.load(Ordering::Acquire);
        }
        Begun { first, count, acknowledged }
    }

    /// `bytes` are what the read has; what the file does not have is as good as zeros.
    fn check(&self, begun: &Begun, bytes: &[u8]) -> Result<(), String> {
        for (number, acknowledged) in (begun.first..).zip(&begun.acknowledged[..begun.count]) {
            let at = (number - begun.first) as usize * BLOCK;
            let bytes = bytes.get(at..).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(BLOCK)];
            let found =
                if bytes.len() == BLOCK { version(number, bytes)? } else { nothing(bytes)? };
            let cut = self.model.cut[number as usize].load(Ordering::SeqCst);
            let newest = if found == 0 { cut } else { found };
            if newest < *acknowledged {
                return Err(format!(
                    "block {number} is of {found} (cut by {cut}), and {acknowledged} was acknowledged"
                ));
            }
        }
        Ok(())
    }

    fn is_enough(&self, (hits, until): (u64, Instant)) -> bool {
        self.session.info().optimistic.hits >= hits || Instant::now() > until
    }

    /// One at a time, until so many needed no server, or it is that late.
    fn one_by_one(&mut self, enough: (u64, Instant)) -> Result<(), String> {
        let mut into = vec![0; 2 * BLOCK];
        while !self.reads.is_multiple_of(4096) || !self.is_enough(enough) {
            let begun = self.begin();
            let into = &mut into[..begun.count * BLOCK];
            let bytes = self.file.read_at(into, begun.first * BLOCK as u64);
            let bytes = bytes.map_err(|error| error.to_string())?;
            self.check(&begun, &into[..bytes])?;
        }
        Ok(())
    }

    /// As [`one_by_one`](Self::one_by_one), many under way.
    fn many_at_once(&mut self, enough: (u64, Instant)) -> Result<(), String> {
        let failed = |error: dafs_client::Error| error.to_string();
        let group = self.session.group();
        let mut under_way: Vec<Begun> = Vec::new();
        let mut ended = Vec::new();
        loop {
            let (tag, buffer) = if under_way.len() < DEPTH {
                under_way.push(Begun { first: 0, count: 0, acknowledged: [0; 2] });
                let buffer = self.session.buffer(2 * BLOCK).map_err(|error| error.to_string())?;
                (under_way.len() as u64 - 1, buffer)
            } else {
                if ended.is_empty() {
                    group.wait_into(&mut ended, 1, None);
                }
                let Some(done) = ended.pop() else { return Err("no read is under way".into()) };
                let bytes = done.bytes().map_err(failed)?;
                let buffer = done.buffer.ok_or("a read keeps its buffer")?;
                self.check(&under_way[done.tag as usize], &buffer[..bytes])?;
                (done.tag, buffer)
            };
            if self.reads.is_multiple_of(4096) && self.reads > 0 && self.is_enough(enough) {
                return Ok(());
            }
            let begun = self.begin();
            let (offset, len) = (begun.first * BLOCK as u64, (begun.count * BLOCK) as u32);
            under_way[tag as usize] = begun;
            let call = Call::Read { file: self.file.clone(), offset, buffer, len };
            group.submit(tag, call).map_err(|_| "no room for a read")?;
        }
    }
}

/// What the file has of a block of which it does not have all: zeros.
fn nothing(bytes: &[u8]) -> Result<u64, String> {
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(0),
        false => Err(format!("{} bytes of a block that was cut are not zeros", bytes.len())),
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

/// By shared memory, where the client reads the cache by itself.
pub(crate) fn storm(mode: Mode) -> Vec<Line> {
    let shm = Wanted {
        what: "reads without the server beside writes, cuts, evictions",
        optimistic: "trusted",
        hits: mode.pick(10_000_000, 1_000_000_000),
        time: Duration::from_secs(mode.pick(40, 2400)),
        read: |reader, enough| reader.one_by_one(enough),
    };
    storm_of(&shm, |url| session_by_shm(url, |_| {}))
}

/// By tcp, where it has references that are checked.
pub(crate) fn storm_by_tcp(mode: Mode) -> Vec<Line> {
    let tcp = Wanted {
        what: "the same by tcp, by a reference, 32 at a time",
        optimistic: "checked",
        hits: mode.pick(2_000_000, 100_000_000),
        time: Duration::from_secs(mode.pick(20, 3600)),
        read: |reader, enough| reader.many_at_once(enough),
    };
    storm_of(&tcp, |url| Ok(session(&by_tcp(url))))
}

/// So many hits, unless that takes too long.
struct Wanted {
    what: &'static str,
    optimistic: &'static str,
    hits: u64,
    time: Duration,
    read: fn(&mut Reader<'_>, (u64, Instant)) -> Result<(), String>,
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
        let (session, file) = (&reader, &read_file);
        let mut all = Reader { session, file, model: &model, random: Random::new(11), reads: 0 };
        let outcome = (wanted.read)(&mut all, (wanted.hits, Instant::now() + wanted.time));
        let reads = outcome.map(|()| all.reads);
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
