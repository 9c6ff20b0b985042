//! What is read without the server, while others write, kill the server, and change its files behind its back.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

use common::cached::{Dice, PAGE, open};
use common::{Mounted, Server, program};
use dafs_client::{File, OpenOptions};

const O_DIRECT: i32 = 0x4000;
const PATIENCE: Duration = Duration::from_secs(60);

/// More of it in the long run of all tests.
fn amount(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

const UNITS: usize = 64;
/// A unit begins in the middle of a page, and lies in three.
const UNIT: usize = 2 * PAGE;
const FIRST: usize = PAGE / 2;

/// What is written as a whole, and read so.
#[derive(Default)]
struct Unit {
    /// The newest version of which a write has begun.
    begun: AtomicU64,
    /// That has been acknowledged, or seen by a read that has ended.
    seen: AtomicU64,
}

struct History {
    units: Vec<Unit>,
    is_over: AtomicBool,
    reads: AtomicU64,
}

/// Reads without the server, of all clients.
#[derive(Default)]
struct Hits {
    sum: Mutex<u64>,
    more: Condvar,
}

impl Hits {
    fn add(&self, more: u64) {
        if more > 0 {
            *self.sum.lock().expect("no panic") += more;
            self.more.notify_all();
        }
    }

    fn so_far(&self) -> u64 {
        *self.sum.lock().expect("no panic")
    }

    /// Until there were so many, as long as there are more.
    fn wait_for(&self, wanted: u64, what: &str) {
        let mut sum = self.sum.lock().expect("no panic");
        while *sum < wanted {
            let had = *sum;
            let none = |sum: &mut u64| *sum == had;
            sum = self.more.wait_timeout_while(sum, PATIENCE, none).expect("no panic").0;
            assert!(*sum > had, "no more than {had} {what}");
        }
    }
}

fn at(unit: usize) -> u64 {
    (FIRST + unit * UNIT) as u64
}

fn stamped(unit: usize, version: u64) -> Vec<u8> {
    (version << 16 | unit as u64).to_le_bytes().repeat(UNIT / 8)
}

impl History {
    fn new() -> History {
        let units = (0..UNITS).map(|_| Unit::default()).collect();
        History { units, is_over: AtomicBool::new(false), reads: AtomicU64::new(0) }
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// One more version; nobody else writes the unit.
    fn write(&self, unit: usize, write: impl FnOnce(&[u8], u64)) {
        let of = &self.units[unit];
        let version = of.begun.fetch_add(1, Ordering::SeqCst) + 1;
        write(&stamped(unit, version), at(unit));
        of.seen.fetch_max(version, Ordering::SeqCst);
    }

    /// What is read is whole, not older than what was there when the read began, nor from the future.
    fn read(&self, unit: usize, who: &str, read: impl FnOnce(&mut [u8], u64) -> usize) {
        let of = &self.units[unit];
        let least = of.seen.load(Ordering::SeqCst);
        let mut bytes = vec![0xee; UNIT];
        assert_eq!(read(&mut bytes, at(unit)), UNIT, "{who}");
        let most = of.begun.load(Ordering::SeqCst);
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
        let version = word >> 16;
        assert!(bytes == stamped(unit, version), "{who} reads a torn unit {unit}, or another");
        assert!((least..=most).contains(&version), "{who} reads {version} of {least} to {most}");
        of.seen.fetch_max(version, Ordering::SeqCst);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    fn contents() -> Vec<u8> {
        let units = (0..UNITS).flat_map(|unit| stamped(unit, 0));
        [0; FIRST].into_iter().chain(units).chain([0; FIRST]).collect()
    }
}

fn serving() -> Server {
    let server = Server::start(&["--arena", "64m"]);
    fs::write(server.file("file"), History::contents()).expect("written");
    server
}

/// Ten clients of all kinds. A write that was acknowledged, or that one of them has seen, is seen by all that
/// begin to read then.
#[test]
fn ten_clients_see_what_was_acknowledged_and_what_others_have_seen() {
    let server = serving();
    let mounted = Mounted::new(&server, &[]);
    let (history, hits) = (History::new(), Hits::default());
    let (writers, mut readers) = (3, vec!["transport=shm"; 4]);
    readers.extend(["transport=tcp", "transport=shm&optimistic=off"]);
    std::thread::scope(|scope| {
        let (history, hits, server, mounted) = (&history, &hits, &server, &mounted);
        let through_mount = || {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).custom_flags(O_DIRECT);
            let path = mounted.as_ref().map(|mounted| mounted.join("file"));
            path.map(|path| options.open(path).expect("opens"))
        };
        for writer in 0..writers {
            let by_mount = if writer == 2 { through_mount() } else { None };
            scope.spawn(move || {
                let options = ["transport=shm", "transport=tcp"][writer % 2];
                let (_session, file) = open(server, options);
                let mut dice = Dice(writer as u64);
                while history.goes_on() {
                    let unit = dice.below(UNITS / writers) * writers + writer;
                    history.write(unit, |bytes, at| match &by_mount {
                        Some(mounted) => mounted.write_all_at(bytes, at).expect("written"),
                        None => assert_eq!(file.write_at(bytes, at).expect("written"), UNIT),
                    });
                }
            });
        }
        for (number, options) in readers.iter().enumerate() {
            scope.spawn(move || {
                let (session, file) = open(server, options);
                let (mut dice, mut had) = (Dice(100 + number as u64), 0);
                while history.goes_on() {
                    history.read(dice.below(UNITS), options, |into, at| {
                        file.read_at(into, at).expect("read")
                    });
                    let now = session.info().optimistic.hits;
                    hits.add(now - had);
                    had = now;
                }
            });
        }
        if let Some(file) = through_mount() {
            scope.spawn(move || {
                let mut dice = Dice(200);
                while history.goes_on() {
                    history.read(dice.below(UNITS), "the mount", |into, at| {
                        file.read_at(into, at).expect("read")
                    });
                }
            });
        }
        // Also where this thread panics.
        let _ends = Ends(history);
        let wanted = amount("DAFS_TEST_HISTORY_HITS", 5000) as u64;
        hits.wait_for(wanted, "reads without the server");
    });
    let (reads, hits) = (history.reads.into_inner(), hits.so_far());
    println!("{reads} reads by ten clients, {hits} of them without the server");
}

/// The server is killed in the midst of reads, its files change while nobody serves them, and another serves them.
#[test]
fn no_byte_of_a_killed_servers_memory_is_believed() {
    let mut server = serving();
    let kills = amount("DAFS_TEST_HIT_KILLS", 20);
    let (history, hits) = (History::new(), Hits::default());
    std::thread::scope(|scope| {
        let (history, hits) = (&history, &hits);
        for reader in 0..3 {
            let (session, file) = open(&server, "transport=shm");
            scope.spawn(move || {
                let mut dice = Dice(reader);
                let mut before = 0;
                while history.goes_on() {
                    history.read(dice.below(UNITS), "a reader", |into, at| {
                        file.read_at(into, at).expect("read")
                    });
                    let now = session.info().optimistic.hits;
                    hits.add(now - before);
                    before = now;
                }
            });
        }
        // Also where this thread panics.
        let ends = Ends(history);
        for kill in 0..kills {
            hits.wait_for(hits.so_far() + 100, &format!("hits before kill {kill}"));
            server.child.kill().expect("killed");
            server.child.wait().expect("ends");
            let local = fs::File::options().write(true).open(server.file("file")).expect("opens");
            for unit in 0..UNITS {
                history.write(unit, |bytes, at| local.write_all_at(bytes, at).expect("written"));
            }
            server.start_again();
        }
        drop(ends);
    });
    println!("{kills} kills, {} reads", history.reads.into_inner());
}

struct Ends<'a>(&'a History);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

const BLOCKS: usize = 24;

/// A file as local programs leave it: of each block the byte that it is full of; the last one may be short.
#[derive(Clone)]
struct Local {
    size: usize,
    blocks: [u8; BLOCKS],
}

impl Local {
    /// What was cut reads as zeros to who does not know of that.
    fn byte(&self, at: usize) -> u8 {
        if at < self.size { self.blocks[at / PAGE] } else { 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.size).map(|at| self.blocks[at / PAGE]).collect()
    }
}

/// All that a file was, under one name and as one file.
type Past = Arc<RwLock<Vec<Local>>>;

/// One of the ways in which local programs change files. What comes of it is told before it is done.
fn change(path: &Path, past: &RwLock<Past>, (step, dice): (usize, &mut Dice), has_xfs_io: bool) {
    let of = past.read().expect("no panic").clone();
    let mut next = of.read().expect("no panic").last().expect("a beginning").clone();
    let begin = |next: &Local| of.write().expect("no panic").push(next.clone());
    let (byte, first) = ((step % 250 + 1) as u8, dice.below(BLOCKS));
    let end = (first + 1 + dice.below(3)).min(BLOCKS);
    let (offset, len) = (first * PAGE, (end - first) * PAGE);
    let open = || fs::File::options().write(true).open(path).expect("opens");
    let by_program = |command: String| {
        program("xfs_io", &["-c", &command, path.to_str().expect("text")]).expect("it ran before");
    };
    match dice.below(if has_xfs_io { 6 } else { 4 }) {
        4 if offset + len <= next.size => {
            next.blocks[first..end].fill(byte);
            begin(&next);
            let store = format!("mmap -rw {offset} {len}");
            let fill = format!("mwrite -S {byte} {offset} {len}");
            let path = path.to_str().expect("text");
            program("xfs_io", &["-c", &store, "-c", &fill, path]).expect("it ran before");
        }
        5 => {
            let most = next.size.div_ceil(PAGE).min(end);
            next.blocks[first.min(most)..most].fill(0);
            begin(&next);
            by_program(format!("fpunch {offset} {len}"));
        }
        0 if step % 2 == 0 => {
            // What is cut is gone, also when the file grows again.
            next.size = next.size.min(offset + dice.below(PAGE));
            next.blocks[next.size.div_ceil(PAGE)..].fill(0);
            begin(&next);
            open().set_len(next.size as u64).expect("cut");
        }
        1 if step % 4 == 0 => {
            next = Local { size: BLOCKS * PAGE, blocks: [byte; BLOCKS] };
            let beside = path.with_extension("beside");
            fs::write(&beside, next.bytes()).expect("written");
            // Who has it open keeps the old one.
            *past.write().expect("no panic") = Arc::new(RwLock::new(vec![next]));
            fs::rename(beside, path).expect("renamed");
        }
        _ => {
            // No block is half of one kind: what was short becomes whole.
            let from = (next.size / PAGE).min(first);
            next.blocks[from..end].fill(byte);
            next.size = next.size.max(end * PAGE);
            begin(&next);
            let bytes = vec![byte; (end - from) * PAGE];
            open().write_all_at(&bytes, (from * PAGE) as u64).expect("written");
        }
    }
}

/// Reads by an open file: whatever it was at any time since it was opened.
fn look(file: &File, (past, from): &(Past, usize), dice: &mut Dice) {
    let (block, mut into) = (dice.below(BLOCKS), vec![0; PAGE]);
    let bytes = file.read_at(&mut into, (block * PAGE) as u64).expect("read");
    let past = past.read().expect("no panic");
    for (at, byte) in into[..bytes].iter().enumerate() {
        let may = past[*from..].iter().any(|was| was.byte(block * PAGE + at) == *byte);
        assert!(may, "byte {at} of block {block} was never {byte} since the open");
    }
    let may_end = |was: &Local| was.size <= block * PAGE + bytes;
    assert!(bytes == PAGE || past[*from..].iter().any(may_end), "{bytes} of block {block}");
}

/// Waits until what is changed now has another time than what was changed before: a change within one tick of the
/// file system's clock is not noticed.
fn tick(path: &Path, clock: &Path) {
    let changed = |path: &Path| {
        let of = fs::metadata(path).expect("there");
        (of.ctime(), of.ctime_nsec())
    };
    let (before, start) = (changed(path), Instant::now());
    loop {
        fs::write(clock, b"tick").expect("written");
        if changed(clock) > before {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the clock of the file system stands still");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Who opens a file sees what local programs have made of it, and who has it open nothing that it never was.
#[test]
fn what_local_programs_change_is_seen_at_the_next_open() {
    let server = Server::start(&["--arena", "64m"]);
    let steps = amount("DAFS_TEST_LOCAL_STEPS", 200);
    let first = Local { size: BLOCKS * PAGE, blocks: [255; BLOCKS] };
    fs::write(server.file("file"), first.bytes()).expect("written");
    let past = RwLock::new(Past::new(RwLock::new(vec![first])));
    let has_xfs_io = program("xfs_io", &["-V"]).is_some();
    if !has_xfs_io {
        println!("no xfs_io: neither stores by mmap nor holes");
    }
    let (is_over, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    let turn = RwLock::new(());
    std::thread::scope(|scope| {
        let (past, is_over, hits, turn, server) = (&past, &is_over, &hits, &turn, &server);
        for client in 0..10 {
            scope.spawn(move || {
                let (session, _) = open(server, "transport=shm");
                let mut dice = Dice(client);
                while !is_over.load(Ordering::Relaxed) {
                    let (file, since) = {
                        // Nothing is changed while a file is opened.
                        let _turn = turn.read().expect("no panic");
                        let file = session.open(b"file", OpenOptions::read()).expect("opens");
                        let past = past.read().expect("no panic").clone();
                        let from = past.read().expect("no panic").len() - 1;
                        (file, (past, from))
                    };
                    for _ in 0..40 {
                        look(&file, &since, &mut dice);
                    }
                    file.close().expect("closed");
                }
                hits.fetch_add(session.info().optimistic.hits, Ordering::Relaxed);
            });
        }
        let (session, _) = open(server, "transport=shm");
        let mut dice = Dice(77);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for step in 0..steps {
                let turn = turn.write().expect("no panic");
                tick(&server.file("file"), &server.file("clock"));
                change(&server.file("file"), past, (step, &mut dice), has_xfs_io);
                drop(turn);
                let file = session.open(b"file", OpenOptions::read()).expect("opens");
                let past = past.read().expect("no panic").clone();
                let expected = past.read().expect("no panic").last().expect("one").bytes();
                // By the server, and then by what that has cached.
                for round in 0..3 {
                    let mut got = vec![0; BLOCKS * PAGE];
                    let mut len = 0;
                    while len < got.len() {
                        let end = got.len().min(len + 2 * PAGE);
                        match file.read_at(&mut got[len..end], len as u64).expect("read") {
                            0 => break,
                            bytes => len += bytes,
                        }
                    }
                    assert!(got[..len] == expected, "step {step}, round {round}: {len} bytes");
                }
                file.close().expect("closed");
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        hits.fetch_add(session.info().optimistic.hits, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let hits = hits.into_inner();
    println!("{steps} steps of local programs, {hits} reads without the server");
    assert!(hits > 100, "{hits}");
}
