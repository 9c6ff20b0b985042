//! Bar 11: what is killed, cut, full, forbidden.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::OpenOptions;
use dafs_tests::client::session;
use dafs_tests::relay::Relay;
use dafs_tests::{Served, binary, command, run, run_ok, tree};

use crate::{Line, Mode};

pub(crate) fn kills(mode: Mode) -> Vec<Line> {
    vec![
        client_killed(mode),
        reader_over_restart(mode),
        writes_lost(),
        never_twice(mode),
        connection_cut(mode),
        server_gone(),
        disk_full(),
        read_only(),
        permission_denied(),
        as_nobody(),
    ]
}

pub(crate) fn sessions_alive(server: &Served) -> u64 {
    counter(server, "sessions")
}

/// One of the server's counters.
pub(crate) fn counter(server: &Served, name: &str) -> u64 {
    let out = run_ok(&["status", "--json", &server.url]);
    let value: serde_json::Value =
        serde_json::from_str(out.lines().next().unwrap_or("")).expect("JSON");
    let counter = value.pointer(&format!("/counters/{name}"));
    counter.and_then(serde_json::Value::as_u64).expect("a counter of this name")
}

pub(crate) fn config_with_lease(dir: &Path, seconds: u64) -> PathBuf {
    let path = dir.join("dafs.toml");
    fs::write(&path, format!("[limits]\nlease_seconds = {seconds}\n")).expect("write");
    path
}

fn client_killed(mode: Mode) -> Line {
    let lease = mode.pick(2, 30);
    let work = tempfile::tempdir().expect("tempdir");
    let config = config_with_lease(work.path(), lease);
    let dir = work.path().join("served");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("big"), tree::pattern(5, 64 << 20)).expect("write");
    let server = Served::start(&dir, &["--config", &config.display().to_string()]);
    for _ in 0..mode.pick(3, 10) {
        let mut copy = command(&["cp", &server.at("big"), "-"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary is built");
        std::thread::sleep(Duration::from_millis(50));
        copy.kill().expect("kill");
        copy.wait().expect("wait");
    }
    let killed = Instant::now();
    let limit = Duration::from_secs(lease + 1);
    // The session of the question itself is not one: status asks the admin port.
    while sessions_alive(&server) > 0 && killed.elapsed() < limit + Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let seconds = killed.elapsed().as_secs_f64();
    let ok = sessions_alive(&server) == 0 && killed.elapsed() < limit + Duration::from_millis(500);
    Line::new("faults", "a dead client's resources are free", "≤ lease + 1 s")
        .measured(format!("{seconds:.1} s (lease {lease} s)"), ok)
}

fn reader_over_restart(mode: Mode) -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    let data = tree::pattern(6, 8 << 20);
    fs::write(dir.path().join("data"), &data).expect("write");
    let mut server = Served::start(dir.path(), &[]);
    let url = server.at("");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let reader = std::thread::spawn(move || {
        let session = session(&url);
        let file = session.open(b"data", OpenOptions::read()).expect("open");
        let mut into = vec![0; 1 << 20];
        let mut gaps = Vec::new();
        for i in (0..8usize).cycle() {
            let start = Instant::now();
            file.read_at(&mut into, (i << 20) as u64).expect("read goes on");
            assert!(into == data[i << 20..(i + 1) << 20], "wrong data");
            gaps.push((Instant::now(), start.elapsed()));
            if stopped.load(Ordering::SeqCst) {
                return gaps;
            }
        }
        gaps
    });
    let mut worst = Duration::ZERO;
    let mut backs = Vec::new();
    for _ in 0..mode.pick(3, 20) {
        std::thread::sleep(Duration::from_millis(300));
        server.kill();
        std::thread::sleep(Duration::from_millis(700));
        server.restart();
        backs.push(Instant::now());
        std::thread::sleep(Duration::from_millis(2500));
    }
    stop.store(true, Ordering::SeqCst);
    let gaps = reader.join().expect("the reader saw right data only");
    for back in backs {
        let next = gaps.iter().map(|(at, _)| *at).find(|at| *at > back);
        worst = worst.max(next.map_or(Duration::MAX, |at| at - back));
    }
    Line::new(
        "faults",
        "a reading client goes on after kill -9 of the server",
        "≤ 2 s after it is back",
    )
    .measured(
        format!("{:.2} s at worst, no wrong data", worst.as_secs_f64()),
        worst <= Duration::from_secs(2),
    )
}

fn writes_lost() -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut server = Served::start(dir.path(), &[]);
    let session = session(&server.at(""));
    let file =
        session.open(b"file", OpenOptions { create: true, ..OpenOptions::write() }).expect("open");
    file.write_at(&tree::pattern(1, 65_536), 0).expect("write");
    server.kill();
    server.restart();
    let first = file.commit();
    file.write_at(&tree::pattern(1, 65_536), 0).expect("write again");
    let second = file.commit();
    let stored = fs::read(dir.path().join("file")).unwrap_or_default();
    let ok = first.is_err() && second.is_ok() && stored == tree::pattern(1, 65_536);
    let text = first.err().map_or("no error".to_string(), |error| error.to_string());
    Line::new("faults", "unstable writes lost with the server", "reported by fsync, once")
        .measured(text, ok)
}

/// Appends and creations while the server is killed: acknowledged and committed ones are there
/// once, the others at most once.
fn never_twice(mode: Mode) -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut server = Served::start(dir.path(), &[]);
    let url = server.at("");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let session = session(&url);
        let options = OpenOptions { create: true, append: true, ..OpenOptions::write() };
        let file = session.open(b"log", options).expect("open");
        let (mut committed, mut unknown) = (Vec::new(), 0);
        let mut waiting = Vec::new();
        for i in 0u64.. {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            match file.append(&i.to_le_bytes()) {
                Ok(_) => waiting.push(i),
                Err(_) => unknown += 1,
            }
            if i % 16 == 0 {
                match file.commit() {
                    Ok(()) => committed.append(&mut waiting),
                    Err(_) => waiting.clear(),
                }
            }
            // Made once or not at all; made twice would be an error here.
            let name = format!("dir-{i}");
            match session.mkdir(name.as_bytes(), 0o755) {
                Err(error) if error.to_string().contains("exists") => return Err(name),
                _ => {}
            }
        }
        Ok((committed, unknown))
    });
    for _ in 0..mode.pick(3, 20) {
        std::thread::sleep(Duration::from_millis(400));
        server.kill();
        server.restart();
    }
    std::thread::sleep(Duration::from_millis(400));
    stop.store(true, Ordering::SeqCst);
    let line = Line::new("faults", "a change in flight over a server crash", "never done twice");
    let (committed, unknown) = match writer.join().expect("writer") {
        Ok(result) => result,
        Err(name) => return line.measured(format!("{name} was made twice"), false),
    };
    server.stop();
    let bytes = fs::read(dir.path().join("log")).expect("log");
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for record in bytes.chunks_exact(8) {
        *seen.entry(u64::from_le_bytes(record.try_into().expect("8 bytes"))).or_default() += 1;
    }
    let twice = seen.values().filter(|count| **count > 1).count();
    let lost = committed.iter().filter(|i| !seen.contains_key(i)).count();
    line.measured(
        format!(
            "{} committed, {lost} lost, {twice} twice, {unknown} told unknown",
            committed.len()
        ),
        twice == 0 && lost == 0 && !committed.is_empty(),
    )
}

fn connection_cut(mode: Mode) -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    let server = Served::start(dir.path(), &[]);
    let authority = server.url.trim_start_matches("dafs://").trim_end_matches('/');
    let relay = Relay::start(authority.parse().expect("address")).expect("relay");
    let session = session(&format!("dafs://{}/", relay.address()));
    let file = session
        .open(b"file", OpenOptions { create: true, read: true, ..OpenOptions::write() })
        .expect("open");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let cutter = std::thread::spawn(move || {
        let mut cuts = 0;
        while !stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(37));
            cuts += relay.cut();
        }
        cuts
    });
    let rounds = mode.pick(300, 3000);
    let mut ok = true;
    let mut worst = Duration::ZERO;
    let mut into = vec![0; 300_000];
    for i in 0..rounds {
        let start = Instant::now();
        let data = tree::pattern(i, 300_000);
        ok &= file.write_at(&data, i % 7 * 100_000).is_ok();
        ok &= file.read_at(&mut into, i % 7 * 100_000).is_ok() && into == data;
        ok &= session.mkdir(format!("d{i}").as_bytes(), 0o755).is_ok();
        worst = worst.max(start.elapsed());
    }
    stop.store(true, Ordering::SeqCst);
    let cuts = cutter.join().expect("cutter");
    ok &= file.commit().is_ok();
    Line::new(
        "faults",
        "connections cut again and again",
        "transparent, nothing lost or done twice",
    )
    .measured(
        format!("{cuts} cuts in {rounds} rounds, {:.2} s at worst", worst.as_secs_f64()),
        ok && cuts > 3,
    )
}

fn server_gone() -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    fs::write(dir.path().join("data"), b"x").expect("write");
    let mut server = Served::start(dir.path(), &[]);
    let session = dafs_tests::client::session_with(&server.at(""), |options| {
        options.retry = Duration::from_secs(3);
    });
    session.stat(b"data").expect("stat");
    server.kill();
    let start = Instant::now();
    let result = session.stat(b"data");
    let took = start.elapsed();
    let fresh = run(&["stat", &server.at("data")]);
    let ok = result.is_err() && took < Duration::from_secs(8) && fresh.status.code() == Some(3);
    Line::new(
        "faults",
        "server gone for good (retry 3 s); a new client",
        "error in time; exit 3 at once",
    )
    .measured(format!("{:.1} s, exit {:?}", took.as_secs_f64(), fresh.status.code()), ok)
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_string()
}

/// A mounted tmpfs, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: &Path) -> Option<SmallDisk> {
        fs::create_dir_all(at).ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(at).stderr(Stdio::null());
        mount.status().ok()?.success().then(|| SmallDisk(at.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn disk_full() -> Line {
    let line = Line::new("faults", "disk full", "clear error, exit 1, the rest goes on");
    let work = tempfile::tempdir().expect("tempdir");
    let Some(disk) = SmallDisk::new(&work.path().join("disk")) else {
        return line.skipped("needs root to mount a small disk");
    };
    let server = Served::start(&disk.0, &[]);
    let big = work.path().join("big");
    fs::write(&big, tree::pattern(2, 40 << 20)).expect("write");
    let output = run(&["cp", &big.display().to_string(), &server.at("big")]);
    let text = message(&output);
    let left = fs::read_dir(&disk.0).expect("list").count();
    let small = run(&["mkdir", &server.at("still-works")]);
    let session = session(&server.at(""));
    let file = session
        .open(b"direct", OpenOptions { create: true, ..OpenOptions::write() })
        .expect("open");
    let wrote = file.write_at(&tree::pattern(3, 32 << 20), 0).and_then(|_| file.commit());
    drop(server);
    let ok = output.status.code() == Some(1)
        && text.contains("no space left on device (server disk full)")
        && left == 0
        && small.status.success()
        && wrote.is_err();
    line.measured(text, ok)
}

fn read_only() -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    fs::write(dir.path().join("data"), b"x").expect("write");
    let server = Served::start(dir.path(), &["--read-only"]);
    let output = run(&["cp", "/etc/hostname", &server.at("copy")]);
    let read = run_ok(&["cat", &server.at("data")]);
    let ok =
        output.status.code() == Some(1) && message(&output).contains("read-only") && read == "x";
    Line::new("faults", "read-only export", "clear error, reads work")
        .measured(message(&output), ok)
}

/// The binary where every user can run it.
fn public_binary(dir: &Path) -> PathBuf {
    let path = dir.join("dafs");
    fs::copy(binary(), &path).expect("copy");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    path
}

const NOBODY: u32 = 65_534;

fn permission_denied() -> Line {
    let line =
        Line::new("faults", "another local user and a 0600 file of root", "permission denied");
    if !nix::unistd::geteuid().is_root() {
        return line.skipped("needs root");
    }
    let work = tempfile::tempdir().expect("tempdir");
    let dafs = public_binary(work.path());
    let dir = work.path().join("served");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("secret"), b"secret").expect("write");
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let server = Served::start(&dir, &[]);
    // In the cache already: that must not help.
    run_ok(&["cat", &server.at("secret")]);
    let output = Command::new(dafs)
        .args(["cat", &server.at("secret")])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("run");
    let ok = output.status.code() == Some(1)
        && output.stdout.is_empty()
        && message(&output).contains("permission denied");
    line.measured(message(&output), ok)
}

fn as_nobody() -> Line {
    let line = Line::new("faults", "client as nobody: writes are nobody's", "owned by nobody");
    if !nix::unistd::geteuid().is_root() {
        return line.skipped("needs root");
    }
    let work = tempfile::tempdir().expect("tempdir");
    let dafs = public_binary(work.path());
    let dir = work.path().join("served");
    fs::create_dir(&dir).expect("mkdir");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).expect("chmod");
    let server = Served::start(&dir, &[]);
    let output = Command::new(dafs)
        .args(["cp", "/etc/hostname", &server.at("copy")])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("run");
    let owner = fs::metadata(dir.join("copy")).map(|meta| meta.uid()).ok();
    let text = format!("owner {owner:?} {}", message(&output));
    line.measured(text, output.status.success() && owner == Some(NOBODY))
}
