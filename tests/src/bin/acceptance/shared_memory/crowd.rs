//! Many sessions by shared memory: all at once, and such as do nothing.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use dafs_client::{File, OpenOptions, Session};
use dafs_protocol::WaitMode;
use dafs_tests::Served;
use dafs_tests::client::session_by_shm;

use crate::faults::config_with_lease;
use crate::{Line, Mode};

const SESSIONS: usize = 100;
const BLOCK: usize = 4096;
const BLOCKS: usize = 32;

/// All read and write at the same time, each its own file.
pub(crate) fn at_once(mode: Mode) -> Vec<Line> {
    let operations = mode.pick(200, 1_000_000 / SESSIONS);
    let dir = tempfile::tempdir().expect("tempdir");
    let server = Served::start(dir.path(), &["--arena", "256m"]);
    let start = Arc::new(Barrier::new(SESSIONS));
    let threads: Vec<_> = (0..SESSIONS)
        .map(|number| {
            let (url, start) = (server.url.clone(), start.clone());
            std::thread::spawn(move || one(&url, number, operations, &start))
        })
        .collect();
    let ended: Vec<Result<Duration, String>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err("a session panicked".into())))
        .collect();
    let rates: Result<Vec<f64>, String> =
        ended.into_iter().map(|time| Ok(operations as f64 / time?.as_secs_f64())).collect();
    let all = operations * SESSIONS;
    let what = format!("{SESSIONS} sessions at once, {all} operations each way: data");
    let data = Line::new("shm-crowd", &what, "right");
    let fair = Line::new("shm-crowd", "the slowest of them", "≥ half of the mean rate").timing();
    let rates = match rates {
        Ok(rates) => rates,
        Err(why) => return vec![data.measured(why.clone(), false), fair.measured(why, false)],
    };
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let text = format!("{:.2} of it ({mean:.0} a second each way)", slowest / mean);
    vec![data.measured("right", true), fair.measured(text, slowest >= mean / 2.0)]
}

/// What a session has written last to a block of its file.
fn contents(number: usize, block: usize, round: usize) -> Vec<u8> {
    let word = (number << 40 | block << 32 | round) as u64;
    word.to_le_bytes().repeat(BLOCK / size_of::<u64>())
}

/// Its time without that of connecting.
fn one(url: &str, number: usize, operations: usize, start: &Barrier) -> Result<Duration, String> {
    let wrong = |error: dafs_client::Error| format!("session {number}: {error}");
    let session = session_by_shm(url, |options| options.wait = WaitMode::Sleeping);
    // All meet, also who has failed, or the others would wait for ever.
    start.wait();
    let session = session.map_err(wrong)?;
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let file = session.open(format!("file-{number}").as_bytes(), options).map_err(wrong)?;
    let mut written = [None; BLOCKS];
    let mut into = vec![0; BLOCK];
    let begin = Instant::now();
    for round in 0..operations {
        let block = round * 7 % BLOCKS;
        let at = |block: usize| (block * BLOCK) as u64;
        file.write_at(&contents(number, block, round), at(block)).map_err(wrong)?;
        written[block] = Some(round);
        let other = round * 11 % BLOCKS;
        file.read_at(&mut into, at(other)).map_err(wrong)?;
        if let Some(last) = written[other]
            && into != contents(number, other, last)
        {
            return Err(format!("session {number}: wrong data in block {other}"));
        }
    }
    Ok(begin.elapsed())
}

/// Nobody asks for anything, but leases are renewed; then one does.
pub(crate) fn idle(mode: Mode) -> Vec<Line> {
    // As many renewals a second.
    let (count, lease) = (mode.pick(200, 1000), mode.pick(6, 30));
    let (dir, work) =
        (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let config = config_with_lease(work.path(), lease);
    std::fs::write(dir.path().join("data"), "data").expect("write");
    dafs_tests::served::as_in_use(true);
    let options = ["--config", config.to_str().expect("UTF-8"), "--arena", "64m"];
    let server = Served::start(dir.path(), &options);
    let one = || session_by_shm(&server.url, |options| options.wait = WaitMode::Sleeping);
    let first = one().expect("a session");
    first.stat(b"data").expect("stat");
    let before = server.own_bytes();
    let sessions: Vec<Session> = (0..count).map(|_| one().expect("a session")).collect();
    for session in &sessions {
        session.stat(b"data").expect("stat");
    }
    let each = server.own_bytes().saturating_sub(before) / count as u64;
    // Beyond the time in which ends stay awake after the last call.
    std::thread::sleep(Duration::from_secs(1));
    let (processes, start) = ([server.pid(), std::process::id()], Instant::now());
    let used = || processes.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
    let at_start = used();
    std::thread::sleep(Duration::from_secs(mode.pick(4, 60)));
    let percent = (used() - at_start) * 100.0 / start.elapsed().as_secs_f64();
    let beside = rate_beside(&server, mode);
    let memory = format!("server memory per session beside rings, {count} idle sessions");
    let cpu = format!("server and {count} idle clients, leases of {lease} s renewed");
    vec![
        Line::new("shm-idle", &memory, "≤ 64 KiB")
            .measured(format!("{:.1} KiB", each as f64 / 1024.0), each <= 64 << 10),
        Line::new("shm-idle", &cpu, "≤ 1 % of a CPU")
            .timing()
            .measured(format!("{percent:.2} %"), percent <= 1.0),
        Line::new(
            "shm-idle",
            &format!("one that reads beside {count} idle ones"),
            "≥ 0.95 of its rate alone",
        )
        .timing()
        .measured(format!("{beside:.2} of it"), beside >= 0.95),
    ]
}

/// How fast one client reads beside the idle ones of `server`, by turns with one of a server that has no others; the
/// median.
fn rate_beside(server: &Served, mode: Mode) -> f64 {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("data"), "data").expect("write");
    let lonely = Served::start(dir.path(), &["--arena", "64m"]);
    let [beside, alone] = [server, &lonely].map(|server| {
        // Reads that ask the server, which the idle ones are sessions of.
        let session = session_by_shm(&server.url, |options| options.optimistic = false);
        session.expect("a session").open(b"data", OpenOptions::read()).expect("open")
    });
    let time = Duration::from_millis(mode.pick(100, 1000));
    let rate = |file: &File| {
        let (start, mut reads) = (Instant::now(), 0_u32);
        while start.elapsed() < time {
            file.read_at(&mut [0; 4], 0).expect("read");
            reads += 1;
        }
        f64::from(reads) / start.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..9).map(|_| rate(&beside) / rate(&alone)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// Of all threads of a process; what has ended counts too.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may have blanks.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
