//! sequential, random, writes: files larger than the cache against the disk itself, which fio reads and writes in
//! the same run with O_DIRECT, by turns: a disk may be twice as fast a second later. What is
//! compared are medians.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_client::OpenOptions;
use dafs_tests::acceptance::median;
use dafs_tests::client::session;
use dafs_tests::machine::SKIPPED;
use dafs_tests::{Served, by_tcp, command, run_ok};
use serde_json::Value;

use crate::{Line, Mode};

const MIB: u64 = 1 << 20;

/// A server without page cache below it, in a directory of its own.
struct World {
    server: Served,
    dir: tempfile::TempDir,
}

/// `Err`: why not. What `--disk` is by default is direct wherever the disk can be.
fn world(arena: &str) -> Result<World, String> {
    if Command::new("fio").arg("--version").output().is_err() {
        return Err(format!("{SKIPPED}needs fio"));
    }
    dafs_tests::machine::rings()?;
    let dir = tempfile::tempdir().expect("tempdir");
    dafs_tests::machine::direct_io(dir.path())?;
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", arena]);
    let status: Value = serde_json::from_str(&run_ok(&["status", "--json", &server.url]))
        .expect("one server's status");
    match status["exports"][0]["disk"].as_str() {
        Some("direct") => Ok(World { server, dir }),
        other => Err(format!("the disk is served {}", other.unwrap_or("no way that is told"))),
    }
}

fn lacking(number: &'static str, reason: String) -> Vec<Line> {
    let line = Line::new(number, "the disk below the cache", "direct, by default");
    vec![line.result(Err(reason))]
}

/// One job of fio on a file of this size; its `read` or `write` object.
fn fio(dir: &Path, op: &str, name: &str, args: &[&str]) -> Value {
    let file = format!("--filename={}", dir.join("fio").display());
    let output = Command::new("fio")
        .args(["--name=bar", "--ioengine=io_uring", "--direct=1", "--output-format=json", &file])
        .arg(format!("--rw={op}"))
        .args(args)
        .output()
        .expect("fio runs");
    let text = String::from_utf8_lossy(&output.stdout);
    // It may say something before.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let all: Value = serde_json::from_str(json).expect("fio's JSON");
    all["jobs"][0][name].clone()
}

fn bench(target: &str, args: &[&str]) -> Value {
    bench_as_is(&by_tcp(target), args)
}

/// By the network that a client takes by itself.
fn bench_as_is(target: &str, args: &[&str]) -> Value {
    let mut all = vec!["bench", "io", target, "--no-raw", "--json", "--wait", "adaptive"];
    all.extend(args);
    serde_json::from_str(run_ok(&all).lines().next().unwrap_or("")).expect("a JSON object")
}

fn number(point: &Value, key: &str) -> f64 {
    point.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// The medians of our rate and the disk's, measured by turns.
fn by_turns(turns: usize, mut own: impl FnMut() -> f64, mut disk: impl FnMut() -> f64) -> [f64; 2] {
    let (mut owns, mut disks) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        disks.push(disk());
        owns.push(own());
    }
    [owns, disks].map(median)
}

/// `0.95 of it (1.21, 1.27 GB/s)`.
fn of_it([rate, disk]: [f64; 2]) -> String {
    format!("{:.2} of it ({:.2}, {:.2} GB/s)", rate / disk, rate / 1e9, disk / 1e9)
}

pub(crate) fn sequential(mode: Mode) -> Vec<Line> {
    let (arena, size) = mode.pick(("64m", "256m"), ("512m", "2g"));
    let world = match world(arena) {
        Ok(world) => world,
        Err(reason) => return lacking("sequential", reason),
    };
    let seconds = mode.pick("2", "10");
    let (size_arg, time) = (format!("--size={size}"), format!("--runtime={seconds}"));
    let twin = ["--bs=1M", "--iodepth=8", "--time_based", &size_arg, &time];
    let disk = || number(&fio(world.dir.path(), "read", "read", &twin), "bw_bytes");
    let args = ["--op", "read", "--size", "1m", "--depth", "8", "--file-size", size];
    let args = [&args[..], &["--seconds", seconds]].concat();
    let mut copies = 0.0;
    let own = || {
        let own = bench(&world.server.url, &args);
        copies += number(&own, "server_copies_per_byte");
        number(&own, "bytes_per_s")
    };
    let rates = by_turns(3, own, disk);
    let what = format!("cold sequential 1 MiB reads, depth 8, {size} by a cache of {arena}");
    vec![
        Line::new("sequential", &what, "≥ 0.90 of fio")
            .timing()
            .measured(of_it(rates), rates[0] >= 0.9 * rates[1]),
        Line::new("sequential", "copies in the server, per byte of these", "0")
            .measured(format!("{copies}"), copies == 0.0),
    ]
}

pub(crate) fn random(mode: Mode) -> Vec<Line> {
    let size = mode.pick("512m", "4g");
    let world = match world("16m") {
        Ok(world) => world,
        Err(reason) => return lacking("random", reason),
    };
    let seconds = mode.pick("2", "10");
    let (size_arg, time) = (format!("--size={size}"), format!("--runtime={seconds}"));
    let twin = ["--bs=4k", "--iodepth=32", "--time_based", "--norandommap", &size_arg, &time];
    let url = &world.server.url;
    let args = ["--op", "randread", "--size", "4k", "--seconds", seconds];
    let (mut own_p50s, mut near_p50s, mut disk_p50s) = (Vec::new(), Vec::new(), Vec::new());
    let mut near_rates = Vec::new();
    let own = || {
        let cold_args = [&args[..], &["--depth", "32", "--file-size", size]].concat();
        let near = bench_as_is(url, &cold_args);
        near_rates.push(number(&near, "ops_per_s"));
        near_p50s.push(number(&near, "p50_us"));
        let cold = bench(url, &cold_args);
        own_p50s.push(number(&cold, "p50_us"));
        number(&cold, "ops_per_s")
    };
    let disk = || {
        let disk = fio(world.dir.path(), "randread", "read", &twin);
        let [lat, clat] =
            ["lat_ns", "clat_ns"].map(|of| number(&disk[of]["percentile"], "50.000000") / 1e3);
        disk_p50s.push(if lat.is_nan() { clat } else { lat });
        number(&disk, "iops")
    };
    let [rate, disk_rate] = by_turns(3, own, disk);
    let [p50, near_p50, disk_p50] = [own_p50s, near_p50s, disk_p50s].map(median);
    let near_rate = median(near_rates);
    let trip = bench(url, &[&args[..], &["--depth", "1", "--file-size", "4m"]].concat());
    let trip = number(&trip, "p50_us");
    let what = format!("cold random 4 KiB reads, depth 32, {size} by a cache of 16m");
    let text = format!("{:.2} of it ({rate:.0}, {disk_rate:.0} per s)", rate / disk_rate);
    let latency = format!("{p50:.0} µs (fio {disk_p50:.0}, cached {trip:.0})");
    let near_text = format!("{:.2} of it ({near_rate:.0} per s)", near_rate / disk_rate);
    let near_latency = format!("{near_p50:.0} µs (fio {disk_p50:.0})");
    vec![
        Line::new("random", &what, "≥ 0.85 of fio")
            .timing()
            .measured(text, rate >= 0.85 * disk_rate),
        Line::new("random", "p50 of these", "≤ fio + one cached round trip")
            .timing()
            .measured(latency, p50 <= disk_p50 + trip),
        Line::new(
            "random",
            "the same by the network that clients of this machine take",
            "≥ 0.75 of fio",
        )
        .timing()
        .measured(near_text, near_rate >= 0.75 * disk_rate),
        Line::new("random", "p50 of these", "≤ fio + 60 µs")
            .timing()
            .measured(near_latency, near_p50 <= disk_p50 + 60.0),
    ]
}

/// Writes `mib` pieces with eight under way, and syncs; bytes per second.
fn write_all(url: &str, mib: u64) -> f64 {
    let session = session(url);
    let options = OpenOptions { create: true, write: true, ..OpenOptions::read() };
    let file = session.open(b"written", options).expect("make a file");
    let (next, piece) = (AtomicU64::new(0), vec![0x5a; MIB as usize]);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= mib {
                        return;
                    }
                    let mut done = 0;
                    while done < piece.len() {
                        let at = number * MIB + done as u64;
                        done += file.write_at(&piece[done..], at).expect("written");
                    }
                }
            });
        }
    });
    file.commit().expect("synced");
    (mib * MIB) as f64 / start.elapsed().as_secs_f64()
}

pub(crate) fn writes(mode: Mode) -> Vec<Line> {
    let (arena, mib) = mode.pick(("64m", 256), ("512m", 2048));
    let world = match world(arena) {
        Ok(world) => world,
        Err(reason) => return lacking("writes", reason),
    };
    let size = format!("--size={mib}M");
    // Files that grow: a new one each time.
    let twin = ["--bs=1M", "--iodepth=8", "--fallocate=none", "--end_fsync=1", &size];
    let disk = || {
        let _ = std::fs::remove_file(world.dir.path().join("fio"));
        number(&fio(world.dir.path(), "write", "write", &twin), "bw_bytes")
    };
    let url = &world.server.url;
    let own = || {
        let _ = session(url).remove(b"written");
        write_all(url, mib)
    };
    let rates = by_turns(5, own, disk);
    let cached = ["--op", "randread", "--size", "4k", "--depth", "1", "--file-size", "4m"];
    let idle = number(&bench(url, &[&cached[..], &["--seconds", "2"]].concat()), "p99_us");
    let seconds = mode.pick("3", "10");
    let target = by_tcp(url);
    let mut all = vec!["bench", "io", &target, "--no-raw", "--json", "--wait", "adaptive"];
    all.extend(cached.iter().chain(&["--seconds", seconds]));
    let mut reader = command(&all).stdout(std::process::Stdio::piped()).spawn().expect("bench");
    let mut rounds = 0;
    while reader.try_wait().expect("bench").is_none() {
        write_all(url, mib);
        rounds += 1;
    }
    let output = reader.wait_with_output().expect("bench");
    let loaded: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    let busy = number(&loaded, "p99_us");
    let what = format!("sequential 1 MiB writes and fsync, {mib} MiB by a cache of {arena}");
    let latency = format!("{:.1} × ({busy:.0}, {idle:.0} µs; {rounds} files)", busy / idle);
    vec![
        Line::new("writes", &what, "≥ 0.90 of fio")
            .timing()
            .measured(of_it(rates), rates[0] >= 0.9 * rates[1]),
        Line::new(
            "writes",
            "p99 of another client's cached 4 KiB reads meanwhile",
            "≤ 5 × unloaded",
        )
        .timing()
        .measured(latency, busy <= 5.0 * idle),
    ]
}
