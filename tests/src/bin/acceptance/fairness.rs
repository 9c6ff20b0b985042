//! Bar 10: small operations beside bulk, and a reader that stopped.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session;
use dafs_tests::{Served, command, tree};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Line, Mode};

pub(crate) fn small_beside_bulk(mode: Mode) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("small"), tree::pattern(1, 4 << 20)).expect("write");
    std::fs::write(dir.path().join("large"), tree::pattern(2, 128 << 20)).expect("write");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "1g"]);
    let session = session(&server.at(""));
    let rounds = mode.pick(2000, 20_000);
    let (read_alone, attr_alone) = p99s(&session, rounds);
    let stop = Arc::new(AtomicBool::new(false));
    let streams = [stream(&server.url, &stop, true), stream(&server.url, &stop, false)];
    std::thread::sleep(Duration::from_millis(300));
    let (read, attr) = p99s(&session, rounds);
    stop.store(true, Ordering::SeqCst);
    for thread in streams {
        thread.join().expect("stream");
    }
    let line = |what: &str, loaded: f64, alone: f64| {
        let ratio = loaded / alone;
        Line::new(
            "fairness",
            &format!("p99 of {what} beside 1 MiB streams both ways"),
            "≤ 5 × unloaded",
        )
        .timing()
        .measured(format!("{ratio:.1} × ({loaded:.0} µs, alone {alone:.0})"), ratio <= 5.0)
    };
    vec![
        line("4 KiB reads", read, read_alone),
        line("getattr", attr, attr_alone),
        stopped_reader(&server, &session),
    ]
}

fn p99s(session: &Session, rounds: usize) -> (f64, f64) {
    let file = session.open(b"small", OpenOptions::read()).expect("open");
    let mut into = vec![0; 4096];
    let p99 = |mut micros: Vec<f64>| {
        micros.sort_by(f64::total_cmp);
        micros[micros.len() * 99 / 100]
    };
    let (mut reads, mut attrs) = (Vec::new(), Vec::new());
    for i in 0..rounds {
        let start = Instant::now();
        file.read_at(&mut into, (i % 1000 * 4096) as u64).expect("read");
        reads.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        file.attr().expect("attr");
        attrs.push(start.elapsed().as_secs_f64() * 1e6);
    }
    (p99(reads), p99(attrs))
}

/// Another client that reads or writes 1 MiB at a time until it is told to stop.
fn stream(url: &str, stop: &Arc<AtomicBool>, read: bool) -> JoinHandle<()> {
    let (url, stop) = (url.to_string(), stop.clone());
    std::thread::spawn(move || {
        let session = session(&url);
        let mut memory = vec![1; 1 << 20];
        let file = if read {
            session.open(b"large", OpenOptions::read())
        } else {
            session.open(b"streamed", OpenOptions { create: true, ..OpenOptions::write() })
        };
        let file = file.expect("open");
        for i in (0..128u64).cycle() {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            if read {
                file.read_at(&mut memory, i << 20).expect("read");
            } else {
                file.write_at(&memory, i << 20).expect("write");
            }
        }
    })
}

/// A reader that is stopped in the middle holds pages; writers of the same file go on.
fn stopped_reader(server: &Served, session: &Session) -> Line {
    let line = Line::new("fairness", "longest write to a file whose reader is stopped", "≤ 100 ms")
        .timing();
    // Nobody reads its standard output, so that it soon has requests under way and no end.
    let reader =
        command(&["cat", &server.at("large")]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut reader) = reader else { return line.skipped("the binary is missing") };
    let pid = Pid::from_raw(i32::try_from(reader.id()).expect("a pid"));
    std::thread::sleep(Duration::from_millis(500));
    let file = session.open(b"large", OpenOptions::write()).expect("open");
    let data = tree::pattern(9, 1 << 20);
    kill(pid, Signal::SIGSTOP).expect("the reader runs");
    let mut worst = Duration::ZERO;
    for i in 0..128u64 {
        let start = Instant::now();
        file.write_at(&data, i << 20).expect("write");
        worst = worst.max(start.elapsed());
    }
    kill(pid, Signal::SIGCONT).expect("the reader is there");
    let alive = reader.try_wait().is_ok_and(|ended| ended.is_none());
    let _ = reader.kill();
    let _ = reader.wait();
    if !alive {
        return line.measured("the reader ended early", false);
    }
    let ms = worst.as_secs_f64() * 1e3;
    line.measured(format!("{ms:.1} ms"), ms <= 100.0)
}
