//! kills: the server is killed again and again while files are written and synced. What a sync
//! confirmed is there each time, no file has a length that it never had, and the next server is
//! there at once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{File, OpenOptions, Session};
use dafs_protocol::Stability;
use dafs_tests::Served;
use dafs_tests::client::session;
use dafs_tests::random::Random;

use crate::written::{Change, Written, bytes};
use crate::{Line, Mode};

const WRITERS: u64 = 6;
/// A file grows up to this.
const SIZE_MAX: u64 = 3 << 20;
const WRITE_MAX: u64 = 300 << 10;
const START_LIMIT: Duration = Duration::from_secs(1);

struct Writer {
    path: PathBuf,
    file: File,
    written: Mutex<Written>,
}

impl Writer {
    fn written(&self) -> std::sync::MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One change; all errors here are news of a restart, which the next sync tells as well.
    fn change(&self, random: &mut Random, write: u64) -> dafs_client::Result<()> {
        let size = self.written().size();
        let len = 1 + match random.below(3) {
            0 => random.below(WRITE_MAX),
            1 => 4096 * (1 + random.below(8)) - 1,
            _ => random.below(5000),
        };
        let (change, stable) = match random.below(12) {
            0 => (Change::Cut { size: random.below(SIZE_MAX) }, false),
            1..=4 if size + len <= SIZE_MAX => {
                (Change::Write { write, offset: size, end: size + len }, false)
            }
            kind => {
                let align = if kind % 2 == 0 { 4096 } else { 1 };
                let offset = random.below(size + 1) / align * align;
                let end = (offset + len).min(SIZE_MAX);
                (Change::Write { write, offset, end }, kind == 11)
            }
        };
        self.written().begins(change);
        match change {
            Change::Cut { size } => self.file.set_len(size)?,
            Change::Write { write, offset, end } => {
                let (data, how) = (bytes(write, offset, end - offset), Stability::Data);
                let mut done = 0;
                while done < data.len() {
                    let (rest, at) = (&data[done..], offset + done as u64);
                    done += match stable {
                        true => self.file.write_at_stable(rest, at, how)?,
                        false => self.file.write_at(rest, at)?,
                    };
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> dafs_client::Result<()> {
        self.file.commit()?;
        self.written().synced();
        Ok(())
    }

    /// After a loss was told: the whole file anew, as a program does that wants it safe.
    fn again(&self, write: u64, len: u64) -> dafs_client::Result<()> {
        let changes = [Change::Cut { size: 0 }, Change::Write { write, offset: 0, end: len }];
        for change in changes {
            self.written().begins(change);
        }
        self.file.set_len(0)?;
        let data = bytes(write, 0, len);
        let mut done = 0;
        while done < data.len() {
            done += self.file.write_at(&data[done..], done as u64)?;
        }
        self.sync()
    }

    fn run(&self, seed: u64, writes: &AtomicU64, syncs: &AtomicU64, over: &AtomicBool) {
        let mut random = Random::new(seed);
        while !over.load(Ordering::Relaxed) {
            let changes = 1 + random.below(8);
            let mut outcome = Ok(());
            for _ in 0..changes {
                let write = writes.fetch_add(1, Ordering::Relaxed);
                outcome = outcome.and(self.change(&mut random, write));
            }
            let mut safe = outcome.and_then(|()| self.sync());
            while safe.is_err() && !over.load(Ordering::Relaxed) {
                let write = writes.fetch_add(1, Ordering::Relaxed);
                safe = self.again(write, 1 + random.below(WRITE_MAX));
            }
            syncs.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn writers(session: &Session, dir: &Path) -> Vec<Arc<Writer>> {
    let make = |number| {
        let name = format!("file-{number}");
        let options = OpenOptions { create: true, write: true, ..OpenOptions::read() };
        let file = session.open(name.as_bytes(), options).expect("make a file");
        let written = Mutex::default();
        Arc::new(Writer { path: dir.join(name), file, written })
    };
    (0..WRITERS).map(make).collect()
}

/// All files, read beside the server, which is dead.
fn check(writers: &[Arc<Writer>]) -> Result<(), String> {
    for writer in writers {
        let found = std::fs::read(&writer.path).map_err(|error| error.to_string())?;
        let outcome = writer.written().check(&found);
        outcome.map_err(|text| format!("{}: {text}", writer.path.display()))?;
    }
    Ok(())
}

pub(crate) fn kills(mode: Mode) -> Vec<Line> {
    ["buffered", "auto"].iter().flat_map(|disk| kills_with(mode, disk)).collect()
}

fn kills_with(mode: Mode, disk: &str) -> Vec<Line> {
    let kills = mode.pick(25, 1000);
    let what = format!("{kills} times kill -9 under writes and syncs, --disk {disk}");
    let line = Line::new("kills", &what, "all that was synced, right lengths");
    let work = tempfile::tempdir().expect("tempdir");
    let mut server = Served::start(work.path(), &["--arena", "64m", "--disk", disk]);
    let session = session(&server.url);
    let writers = writers(&session, work.path());
    let (writes, syncs) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = writers
        .iter()
        .enumerate()
        .map(|(number, writer)| {
            let (writer, writes, syncs) = (writer.clone(), writes.clone(), syncs.clone());
            let over = over.clone();
            let seed = 0x5eed + 77 * number as u64;
            std::thread::spawn(move || writer.run(seed, &writes, &syncs, &over))
        })
        .collect();
    let mut random = Random::new(0xdaf5);
    let mut slowest = Duration::ZERO;
    let mut outcome = Ok(());
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(5 + random.below(150)));
        server.kill();
        outcome = check(&writers);
        if outcome.is_err() {
            break;
        }
        let start = Instant::now();
        server.restart();
        slowest = slowest.max(start.elapsed());
    }
    over.store(true, Ordering::Relaxed);
    if outcome.is_ok() {
        threads.into_iter().for_each(|thread| thread.join().expect("a writer"));
    }
    let synced = syncs.load(Ordering::Relaxed);
    // A test that never confirms anything finds nothing.
    let enough = synced >= kills;
    let text = format!("nothing lost or wrong, {synced} syncs confirmed");
    let first = match outcome {
        Ok(()) => line.measured(text, enough),
        Err(text) => line.measured(text, false),
    };
    let limit = format!("≤ {} s", START_LIMIT.as_secs());
    let start =
        Line::new("kills", &format!("the next server is there, --disk {disk}"), &limit).timing();
    let text = format!("{:.2} s at most", slowest.as_secs_f64());
    vec![first, start.measured(text, slowest <= START_LIMIT)]
}
