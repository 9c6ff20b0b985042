//! memory: a server that may use half of the memory that its cache is to have, and very many small
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session;
use dafs_tests::{Served, run_ok, tree};

use crate::{Line, Mode};

const MIB: u64 = 1 << 20;
const ARENA: u64 = 384 * MIB;
const LIMIT: u64 = ARENA / 2;

/// A control group with a memory limit; it is removed when dropped.
struct Group {
    dir: PathBuf,
    /// Where this process was before.
    parent: PathBuf,
}

impl Group {
    /// `None` where this process may make none.
    fn new(limit: u64) -> Option<Group> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |line: &str, base: &str, file: &str| {
            let path = line.rsplit(':').next()?.trim_start_matches('/');
            let parent = Path::new(base).join(path);
            let dir = parent.join(format!("dafs-bars-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let group = Group { dir, parent };
            fs::write(group.dir.join(file), limit.to_string()).ok()?;
            Some(group)
        };
        let first = own.lines().find(|line| line.contains(":memory:"));
        let second = own.lines().find(|line| line.starts_with("0::"));
        first
            .and_then(|line| of(line, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
            .or_else(|| second.and_then(|line| of(line, "/sys/fs/cgroup", "memory.max")))
    }

    /// Does something whose child processes are in the group.
    fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        let own = std::process::id().to_string();
        fs::write(self.dir.join("cgroup.procs"), &own).expect("enter the group");
        let done = work();
        fs::write(self.parent.join("cgroup.procs"), &own).expect("leave the group");
        done
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What was killed in it may take a moment to be gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn counter(server: &Served, name: &str) -> u64 {
    let text = run_ok(&["status", "--json", &server.url]);
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    value.pointer(&format!("/counters/{name}")).and_then(serde_json::Value::as_u64).expect(name)
}

fn halved(mode: Mode) -> Line {
    let what = "a server with half of the memory that its cache is to have";
    let line = Line::new("memory", what, "no failure, below the limit");
    let Some(group) = Group::new(LIMIT) else {
        return line.skipped("no control group with a memory limit can be made here");
    };
    let work = tempfile::tempdir().expect("tempdir");
    let data = tree::pattern(11, (ARENA / 2 * 3) as usize);
    fs::write(work.path().join("data"), &data).expect("write");
    let arena = ARENA.to_string();
    dafs_tests::served::as_in_use(true);
    let server = group.inside(|| Served::start(work.path(), &["--arena", &arena]));
    let session = session(&server.url);
    let (mut buffer, mut wrong) = (vec![0; MIB as usize], 0);
    for _ in 0..mode.pick(1, 5) {
        let file = session.open(b"data", OpenOptions::read()).expect("open");
        let write = OpenOptions { create: true, truncate: true, ..OpenOptions::write() };
        let copy = session.open(b"copy", write).expect("make");
        for at in (0..data.len()).step_by(MIB as usize) {
            let read = file.read_at(&mut buffer, at as u64).expect("read");
            wrong += u64::from(buffer[..read] != data[at..at + read]);
            let written = copy.write_at(&buffer[..read], at as u64).expect("write");
            wrong += u64::from(written != read);
        }
        copy.close().expect("close");
    }
    wrong += u64::from(fs::read(work.path().join("copy")).expect("read") != data);
    let (away, cached) = (counter(&server, "decommitted_bytes"), counter(&server, "cached_bytes"));
    let resident = server.peak_resident_bytes();
    drop(server);
    let text = format!(
        "{wrong} differences, at most {} MiB resident, {} MiB cached, {} MiB of the arena away",
        resident / MIB,
        cached / MIB,
        away / MIB
    );
    line.measured(text, wrong == 0 && away > 0 && resident <= LIMIT)
}

/// Makes files `from..to`, several at a time; how many a second.
fn make(session: &Session, from: u64, to: u64) -> f64 {
    const AT_A_TIME: u64 = 8;
    let start = Instant::now();
    let data = [7u8; 4096];
    std::thread::scope(|scope| {
        for thread in 0..AT_A_TIME {
            scope.spawn(move || {
                for number in (from..to).filter(|number| number % AT_A_TIME == thread) {
                    let name = format!("d{}/f{number}", number / 1000);
                    let new = OpenOptions { create: true, ..OpenOptions::write() };
                    let file = session.open(name.as_bytes(), new).expect("make a file");
                    file.write_at(&data, 0).expect("write");
                    file.close().expect("close");
                }
            });
        }
    });
    (to - from) as f64 / start.elapsed().as_secs_f64()
}

fn many(mode: Mode) -> Vec<Line> {
    let count: u64 = mode.pick(20_000, 1_000_000);
    let part: u64 = mode.pick(4000, 10_000);
    let what = format!("the last of {count} files of 4 KiB");
    let line = Line::new("memory", &what, "≥ 0.80 of the first ones' rate");
    let work = tempfile::tempdir().expect("tempdir");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(work.path(), &["--arena", "256m"]);
    let session = session(&server.url);
    for number in 0..count.div_ceil(1000) {
        session.mkdir(format!("d{number}").as_bytes(), 0o755).expect("mkdir");
    }
    let first = make(&session, 0, part);
    make(&session, part, count - part);
    let last = make(&session, count - part, count);
    let resident = server.peak_resident_bytes();
    let bound = 256 * MIB + 192 * MIB;
    let text = format!("{:.2} of it ({last:.0} and {first:.0} a second)", last / first);
    let rate = line.timing().measured(text, last >= 0.8 * first);
    let line = Line::new("memory", "memory of that server", "≤ arena + 192 MiB");
    let text = format!("{} MiB (arena 256 MiB)", resident / MIB);
    vec![rate, line.measured(text, resident <= bound)]
}

pub(crate) fn memory(mode: Mode) -> Vec<Line> {
    let mut lines = vec![halved(mode)];
    lines.extend(many(mode));
    lines
}
