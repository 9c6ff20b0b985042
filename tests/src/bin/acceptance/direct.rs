//! Bar 6: what direct paths must not do: register, copy, make system calls nobody knows of.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session;
use dafs_tests::{Served, tree};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Line, Mode};

const FILE_BYTES: usize = 16 << 20;

pub(crate) fn counts(mode: Mode) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("data"), tree::pattern(3, FILE_BYTES)).expect("write");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "256m"]);
    let session = session(&server.at(""));
    let mut lines = vec![reads(mode, &session), writes(mode, &session)];
    lines.push(system_calls(&server, &session));
    lines.push(seen_from_outside(mode, dir.path()));
    let lint = root().join("scripts/lint-copies.sh");
    for (what, args) in [
        ("payload is copied by the counted functions only", vec![]),
        ("a copy planted beside them is caught by the lint", vec!["--self-test"]),
    ] {
        let output = Command::new(&lint).args(args).output();
        let (ok, text) = match output {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let last = text.lines().last().unwrap_or("").to_string();
                (output.status.success(), last)
            }
            Err(error) => (false, error.to_string()),
        };
        lines.push(Line::new("direct", what, "lint").measured(text, ok));
    }
    lines
}

fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Copied bytes and registrations at the server, and registrations here, while `body` runs.
fn around(session: &Session, body: impl FnOnce()) -> (u64, u64) {
    let before = session.stats().expect("stats");
    let own = dafs_fabric::mem::registrations();
    body();
    let after = session.stats().expect("stats");
    let registrations =
        after.registrations - before.registrations + dafs_fabric::mem::registrations() - own;
    (after.copied_bytes - before.copied_bytes, registrations)
}

fn reads(mode: Mode, session: &Session) -> Line {
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let expected = tree::pattern(3, FILE_BYTES);
    let mut memory = vec![0; (1 << 20) + 4096];
    let mut pass = |rounds: u64| {
        for i in 0..rounds {
            // Any alignment, any size of at least a page, any place in the file.
            let start = (i as usize * 977) % 4096;
            let len = 4096 + (i as usize * 7919) % ((1 << 20) - 4096);
            let offset = (i as usize * 104_729) % (FILE_BYTES - len);
            let into = &mut memory[start..start + len];
            assert_eq!(file.read_at(into, offset as u64).expect("read"), len);
            assert!(*into == expected[offset..offset + len], "wrong data");
        }
    };
    pass(200); // warms cache, pools and connections
    let rounds = mode.pick(500, 5000);
    let (copied, registered) = around(session, || pass(rounds));
    Line::new(
        "direct",
        "cached reads into buffers of any alignment",
        "0 copies at the server, 0 registrations",
    )
    .measured(format!("{copied} bytes, {registered}"), copied == 0 && registered == 0)
}

fn writes(mode: Mode, session: &Session) -> Line {
    let options = OpenOptions { create: true, ..OpenOptions::write() };
    let file = session.open(b"written", options).expect("open");
    let data = tree::pattern(4, (1 << 20) + 64);
    let pass = |rounds: u64| {
        for i in 0..rounds {
            let len = [4096, 65_536, 1 << 20][i as usize % 3];
            let offset = i % 8 * (1 << 20);
            let start = i as usize % 64;
            file.write_at(&data[start..start + len], offset).expect("write");
        }
    };
    pass(100);
    let rounds = mode.pick(300, 3000);
    let (copied, registered) = around(session, || pass(rounds));
    Line::new(
        "direct",
        "aligned full-block writes from any memory",
        "0 copies at the server, 0 registrations",
    )
    .measured(format!("{copied} bytes, {registered}"), copied == 0 && registered == 0)
}

/// The server's own count of its system calls against strace's, for the same reads.
fn system_calls(server: &Served, session: &Session) -> Line {
    let line = Line::new("direct", "system calls as counted, against strace", "within 5 %");
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let report = tempfile::NamedTempFile::new().expect("tempfile");
    let strace = Command::new("strace")
        .args(["-f", "-c", "-e", "trace=recvmsg,sendmsg,readv,writev,recvfrom,sendto,read,write"])
        .args(["-o", &report.path().display().to_string(), "-p", &server.pid().to_string()])
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut strace) = strace else { return line.skipped("strace is not installed") };
    std::thread::sleep(Duration::from_millis(700));
    let mut into = vec![0; 4096];
    // One call first and one after a pause, so that both counts are settled.
    let _ = session.stats();
    std::thread::sleep(Duration::from_millis(500));
    let before = session.stats().expect("stats").system_calls;
    let rounds = 3000u64;
    for i in 0..rounds {
        file.read_at(&mut into, i % 4000 * 4096).expect("read");
    }
    std::thread::sleep(Duration::from_millis(500));
    let counted = session.stats().expect("stats").system_calls - before;
    let pid = Pid::from_raw(i32::try_from(strace.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("strace runs");
    strace.wait().expect("wait");
    let text = std::fs::read_to_string(report.path()).unwrap_or_default();
    let seen: u64 = text.lines().filter_map(calls_of_line).sum();
    // The server counts sleeping and waking too; strace was asked for data movement only.
    let ok = seen >= rounds && counted >= seen * 95 / 100;
    line.measured(format!("counted {counted}, strace saw {seen} that move data"), ok)
}

fn calls_of_line(line: &str) -> Option<u64> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let name = *fields.last()?;
    if name == "total" || fields.len() < 5 {
        return None;
    }
    fields.get(3)?.parse().ok()
}

/// A memcpy that counts, loaded into the server: no large copy in user space goes uncounted.
fn seen_from_outside(mode: Mode, dir: &Path) -> Line {
    let line = Line::new(
        "direct",
        "memcpy seen by an interposer during cached reads",
        "≤ 1 % of the bytes",
    );
    let work = tempfile::tempdir().expect("tempdir");
    let library = work.path().join("count-copies.so");
    let source = root().join("tests/interpose/count-copies.c");
    let built = Command::new("cc")
        .args(["-O2", "-fno-builtin", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return line.skipped("no C compiler");
    }
    let counts = work.path().join("counts");
    let env = [("LD_PRELOAD", library.as_path()), ("COUNT_COPIES_FILE", counts.as_path())];
    dafs_tests::served::as_in_use(true);
    let server = Served::start_with_env(dir, &["--arena", "256m"], &env);
    let session = session(&server.at(""));
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    let mut into = vec![0; 1 << 20];
    let mut pass = |rounds: usize| {
        for i in 0..rounds {
            file.read_at(&mut into, (i % 16) as u64 * (1 << 20)).expect("read");
        }
    };
    let read = |path: &Path| -> u64 {
        // The library writes its counter when it is asked to.
        server.signal(Signal::SIGUSR2);
        std::thread::sleep(Duration::from_millis(300));
        std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(u64::MAX)
    };
    pass(32);
    let before = read(&counts);
    let rounds = mode.pick(200, 2000);
    pass(rounds);
    let copied = read(&counts).saturating_sub(before);
    let moved = (rounds as u64) << 20;
    line.measured(format!("{copied} of {moved} bytes"), copied <= moved / 100)
}
