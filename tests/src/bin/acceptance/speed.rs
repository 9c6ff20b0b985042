//! Bars 3, 4, 5, 7, 8: speed against the raw transport of the same run.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use dafs_tests::acceptance::median;
use dafs_tests::{FreshDir, Served, by_tcp, run_ok, tree};
use serde_json::Value;

use crate::{Line, Mode};

/// Points of `dafs bench io`, which are compared with plain sockets: by TCP.
pub(crate) fn bench(target: &str, args: &[&str]) -> Vec<Value> {
    let target = by_tcp(target);
    let mut all = vec!["bench", "io", &target, "--json"];
    all.extend(args);
    let out = run_ok(&all);
    out.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

pub(crate) fn number(point: &Value, key: &str) -> f64 {
    point.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn text<'a>(point: &'a Value, key: &str) -> &'a str {
    point.get(key).and_then(Value::as_str).unwrap_or("?")
}

/// Runs the same points several times; points of one wait mode together.
fn rounds(mode: Mode, target: &str, args: &[&str]) -> Vec<(String, Vec<Value>)> {
    let mut by_wait: Vec<(String, Vec<Value>)> = Vec::new();
    for _ in 0..mode.pick(1, 5) {
        for point in bench(target, args) {
            let wait = text(&point, "wait").to_string();
            match by_wait.iter_mut().find(|(name, _)| *name == wait) {
                Some((_, points)) => points.push(point),
                None => by_wait.push((wait, vec![point])),
            }
        }
    }
    by_wait
}

fn medians(points: &[Value], key: &str) -> f64 {
    median(points.iter().map(|point| number(point, key)).collect())
}

fn ratios(points: &[Value], above: &str, below: &str) -> f64 {
    median(points.iter().map(|point| number(point, above) / number(point, below)).collect())
}

fn served(arena: &str) -> (tempfile::TempDir, Served) {
    let dir = tempfile::tempdir().expect("tempdir");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", arena]);
    (dir, server)
}

pub(crate) fn stream(mode: Mode) -> Vec<Line> {
    let (_dir, server) = served("2g");
    let size = mode.pick("256m", "1g");
    let args = [
        "--op",
        "read",
        "--size",
        "1m",
        "--depth",
        "8",
        "--wait",
        "polled,sleeping",
        "--file-size",
        size,
    ];
    let mut lines = Vec::new();
    for (wait, points) in rounds(mode, &server.url, &args) {
        let ratio = medians(&points, "ratio");
        let rate = medians(&points, "bytes_per_s") / 1e9;
        let what = format!("cached 1 MiB sequential read, depth 8, {wait}");
        let line = Line::new("stream", &what, "≥ 0.90 of raw").timing();
        lines.push(line.measured(format!("{ratio:.2} of raw ({rate:.2} GB/s)"), ratio >= 0.90));
        if wait == "sleeping" {
            let cpu = median(points.iter().map(cpu_ratio).collect());
            let line =
                Line::new("stream", "CPU per GiB of the same, sleeping", "≤ 1.20 × raw").timing();
            lines.push(line.measured(format!("{cpu:.2} × raw"), cpu <= 1.20));
        }
        // What is compared with must not be the slower one.
        let what = format!("plain sockets beside DAFS, {wait}");
        let line = Line::new("stream", &what, "≥ 0.95 of DAFS").timing();
        lines.push(line.measured(format!("{:.2} of DAFS", 1.0 / ratio), ratio <= 1.0 / 0.95));
    }
    if mode.long {
        lines.push(yardstick());
    }
    lines
}

/// Bytes per second of a stream by iperf3; `None` where it is not installed.
fn iperf3() -> Option<f64> {
    let port = "127.0.0.1:0".parse::<std::net::SocketAddr>().ok()?;
    let port = std::net::TcpListener::bind(port).ok()?.local_addr().ok()?.port().to_string();
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-p", &port])
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    let ask = || {
        let output = Command::new("iperf3")
            .args(["-c", "127.0.0.1", "-p", &port, "-t", "2", "-l", "128K", "-J"])
            .output()
            .ok()?;
        let report: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(report.pointer("/end/sum_received/bits_per_second")?.as_f64()? / 8.0)
    };
    // It listens a moment after it was started.
    let rate = (0..50).find_map(|_| {
        let rate = ask();
        if rate.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        rate
    });
    let _ = server.kill();
    let _ = server.wait();
    rate
}

/// The plain sockets that all else is compared with, beside what others measure.
fn yardstick() -> Line {
    let line = Line::new("3", "plain sockets, stream, beside iperf3", "≥ 0.90 of iperf3").timing();
    let plain = || {
        let out = run_ok(&["bench", "raw", "tcp", "--op", "stream", "--size", "128k", "--json"]);
        let of = |line: &str| {
            let point: Value = serde_json::from_str(line).expect("a JSON object per line");
            (text(&point, "wait") == "sleeping").then(|| number(&point, "bytes_per_s"))
        };
        out.lines().find_map(of).unwrap_or(f64::NAN)
    };
    let turns: Option<Vec<(f64, f64)>> = (0..5).map(|_| Some((plain(), iperf3()?))).collect();
    let Some(turns) = turns else { return line.skipped("no iperf3") };
    let ratio = median(turns.iter().map(|(plain, other)| plain / other).collect());
    let rate = median(turns.iter().map(|(plain, _)| *plain).collect()) / 1e9;
    line.measured(format!("{ratio:.2} of iperf3 ({rate:.2} GB/s)"), ratio >= 0.90)
}

fn cpu(point: &Value) -> f64 {
    number(point, "client_cpu_us_per_op") + number(point, "server_cpu_us_per_op")
}

fn cpu_ratio(point: &Value) -> f64 {
    cpu(point) / number(point, "raw_cpu_us_per_op")
}

pub(crate) fn latency(mode: Mode) -> Vec<Line> {
    let (_dir, server) = served("1g");
    let args = [
        "--op",
        "read",
        "--size",
        "4k",
        "--depth",
        "1",
        "--wait",
        "polled,sleeping",
        "--file-size",
        "64m",
    ];
    let line = |(wait, points): (String, Vec<Value>)| {
        let ratio = ratios(&points, "p50_us", "raw_p50_us");
        let (own, raw) = (medians(&points, "p50_us"), medians(&points, "raw_p50_us"));
        Line::new("latency", &format!("cached 4 KiB read, depth 1, {wait}: p50"), "≤ 1.25 × raw")
            .timing()
            .measured(format!("{ratio:.2} × raw ({own:.1} µs, raw {raw:.1})"), ratio <= 1.25)
    };
    rounds(mode, &server.url, &args).into_iter().map(line).collect()
}

pub(crate) fn rate(mode: Mode) -> Vec<Line> {
    let (_dir, server) = served("2g");
    let size = mode.pick("256m", "1g");
    let args = [
        "--op",
        "randread",
        "--size",
        "4k",
        "--depth",
        "32",
        "--wait",
        "sleeping,adaptive",
        "--file-size",
        size,
    ];
    let line = |(wait, points): (String, Vec<Value>)| {
        let per_second = medians(&points, "ops_per_s");
        let cpu = median(points.iter().map(cpu).collect());
        let pass = per_second >= 150_000.0 && cpu <= 9.0;
        Line::new(
            "rate",
            &format!("cached 4 KiB random reads, depth 32, {wait} (one row must pass)"),
            "≥ 150,000/s and ≤ 9 µs CPU",
        )
        .timing()
        .measured(format!("{per_second:.0}/s, {cpu:.1} µs"), pass)
    };
    rounds(mode, &server.url, &args).into_iter().map(line).collect()
}

pub(crate) fn writes(mode: Mode) -> Vec<Line> {
    let (dir, server) = served("4g");
    let size = mode.pick("256m", "1g");
    let args = [
        "--op",
        "write",
        "--size",
        "1m",
        "--depth",
        "8",
        "--wait",
        "polled,sleeping",
        "--file-size",
        size,
    ];
    let mut lines = Vec::new();
    for (wait, points) in rounds(mode, &server.url, &args) {
        let ratio = medians(&points, "ratio");
        let rate = medians(&points, "bytes_per_s") / 1e9;
        lines.push(
            Line::new(
                "writes",
                &format!("1 MiB writes, depth 8, unsynced, {wait}"),
                "≥ 0.85 of raw",
            )
            .timing()
            .measured(format!("{ratio:.2} of raw ({rate:.2} GB/s)"), ratio >= 0.85),
        );
    }
    let args = [
        "--op",
        "write-fsync",
        "--size",
        "4k",
        "--depth",
        "1",
        "--wait",
        "sleeping",
        "--file-size",
        "16m",
    ];
    let local_target = dir.path().display().to_string();
    let (mut own, mut local, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..mode.pick(1, 5) {
        local.extend(bench(&local_target, &args[..6]).iter().map(|p| number(p, "p50_us")));
        for point in bench(&server.url, &args) {
            own.push(number(&point, "p50_us"));
            raw.push(number(&point, "raw_p50_us"));
        }
    }
    let (own, local, raw) = (median(own), median(local), median(raw));
    let bound = local + 1.5 * raw;
    lines.push(
        Line::new("writes", "4 KiB write + fsync, p50", "≤ local + 1.5 × raw round trip")
            .timing()
            .measured(format!("{own:.0} µs (local {local:.0}, bound {bound:.0})"), own <= bound),
    );
    lines
}

pub(crate) fn small_files(mode: Mode) -> Vec<Line> {
    let dir = FreshDir::new();
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "1g"]);
    let local_target = dir.path().display().to_string();
    let per_second = |target: &str, op: &str| {
        let args = ["--op", op, "--size", "4k", "--depth", "8", "--wait", "adaptive"];
        let rounds = 0..mode.pick(1, 5);
        let points = rounds.flat_map(|_| bench(target, &args));
        median(points.map(|point| number(&point, "ops_per_s")).collect())
    };
    let (own, local) = (per_second(&server.url, "create"), per_second(&local_target, "create"));
    let on = dir.name();
    let mut lines = vec![
        Line::new(
            "small-files",
            "create + write + close of 4 KiB files, depth 8",
            "≥ 10,000/s unsynced",
        )
        .timing()
        .measured(format!("{own:.0}/s (local {local:.0}/s, {on})"), own >= 10_000.0),
    ];
    let own = per_second(&server.url, "create-fsync");
    let local = per_second(&local_target, "create-fsync");
    lines.push(
        Line::new("small-files", "the same, each synced", "beside the local figure")
            .timing()
            .measured(format!("{own:.0}/s (local {local:.0}/s)"), own > 0.0),
    );
    for (op, what) in
        [("stat", "stat of a deep path"), ("openread", "open-read-close of a small file")]
    {
        let points =
            bench(&server.url, &["--op", op, "--size", "4k", "--depth", "1", "--wait", "sleeping"]);
        let trips = points.first().map_or(f64::NAN, |point| number(point, "round_trips_per_op"));
        let pass = (trips - 1.0).abs() < 0.01;
        lines.push(
            Line::new("small-files", what, "one round trip").measured(format!("{trips:.3}"), pass),
        );
    }
    lines.push(copy_many(mode, dir.path(), &server));
    lines
}

/// 20,000 small files by `dafs cp -r` and by `cp -r`, both until syncfs has returned.
fn copy_many(mode: Mode, dir: &Path, server: &Served) -> Line {
    let count = mode.pick(4_000, 20_000);
    let source = tempfile::tempdir().expect("tempdir");
    for i in 0..count {
        let sub = source.path().join(format!("d{}", i / 1000));
        if i % 1000 == 0 {
            std::fs::create_dir_all(&sub).expect("mkdir");
        }
        std::fs::write(sub.join(format!("f{i}")), tree::pattern(i, 4096)).expect("write");
    }
    let sync =
        || assert!(Command::new("sync").arg("-f").arg(dir).status().expect("sync").success());
    let mut ratios = Vec::new();
    let mut shown = (0.0, 0.0);
    for round in 0..mode.pick(1, 3) {
        sync();
        let start = Instant::now();
        let to = dir.join(format!("local-{round}"));
        let cp = Command::new("cp").arg("-r").arg(source.path()).arg(&to).status();
        assert!(cp.expect("cp").success());
        sync();
        let local = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let from = source.path().display().to_string();
        run_ok(&["cp", "-r", &from, &server.at(&format!("remote-{round}"))]);
        sync();
        let own = start.elapsed().as_secs_f64();
        ratios.push(own / local);
        shown = (own, local);
    }
    let ratio = median(ratios);
    Line::new("small-files", &format!("{count} files of 4 KiB by dafs cp -r"), "≤ 2 × local cp -r")
        .timing()
        .measured(format!("{ratio:.2} × ({:.2} s, local {:.2} s)", shown.0, shown.1), ratio <= 2.0)
}
