//! shared-memory: a server of this host by shared memory, by turns with two bare rings and one copy, which have the
//! machine for themselves: a floor that is measured beside a server lies too low.

use std::collections::HashMap;

use dafs_tests::acceptance::median;
use dafs_tests::{Served, run_ok};
use serde_json::Value;

use crate::speed::number;
use crate::{Line, Mode};

/// Files as large as what the bare mechanism copies from.
const FILE: &str = "64m";

/// What is measured, how both ends wait, and where what is read goes.
const ROWS: &[(&str, &str, &str, &str, &str)] = &[
    ("randread", "4k", "1", "polled", "shared"),
    ("randread", "4k", "32", "polled", "shared"),
    ("read", "1m", "8", "polled", "shared"),
    ("write", "1m", "8", "polled", "shared"),
    ("randread", "4k", "1", "sleeping", "shared"),
    ("read", "1m", "8", "polled", "private"),
    ("read", "1m", "8", "polled", "bounce"),
    ("read", "1m", "8", "polled", "lent"),
];

/// What waits for the disk, or for several answers.
const OTHERS: &[&str] = &["stat", "write-fsync", "create", "openread"];

fn bench(url: &str, transport: &str, args: &[&str]) -> Value {
    let target = format!("{url}?transport={transport}");
    let all = [&["bench", "io", &target, "--json", "--file-size", FILE], args].concat();
    let out = run_ok(&all);
    serde_json::from_str(out.lines().next().unwrap_or("")).expect("a JSON object")
}

/// The bare mechanism alone, with its ends on two processors, or, where they sleep, on one: what is quicker.
fn raw(op: &str, memory: &str, rest: &[&str]) -> Value {
    // What is written lands in as much memory as what is read comes from.
    let op = match (op, memory) {
        ("randread", _) => "copy",
        ("write", _) => "write",
        (_, "bounce") => "bounce",
        (_, "lent") => "sum",
        _ => "stream",
    };
    let all = [&["bench", "raw", "shm", "--json", "--footprint", FILE, "--op", op], rest].concat();
    let out = run_ok(&all);
    let rows = out.lines().map(|line| serde_json::from_str(line).expect("a JSON object"));
    let quicker = |a: &Value, b: &Value| number(a, "p50_us").total_cmp(&number(b, "p50_us"));
    rows.min_by(quicker).expect("a row")
}

/// The median of a field, or of the quotient of two, over all rounds.
fn of(points: &[Value], key: &str) -> f64 {
    median(points.iter().map(|point| number(point, key)).collect())
}

fn quotient(points: &[Value], above: &str, below: &str) -> f64 {
    median(points.iter().map(|point| number(point, above) / number(point, below)).collect())
}

pub(crate) fn shared_memory(mode: Mode) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    dafs_tests::served::as_in_use(true);
    // With room for more than is written here: what writes back copies, too, and is measured elsewhere.
    let server = Served::start(dir.path(), &["--arena", "512m"]);
    let seconds = mode.pick("400ms", "2s");
    let mut points: Vec<Vec<Value>> = vec![Vec::new(); ROWS.len()];
    for _ in 0..mode.pick(1, 5) {
        for ((op, size, depth, wait, memory), points) in ROWS.iter().zip(&mut points) {
            let rest = ["--size", size, "--depth", depth, "--wait", wait, "--seconds", seconds];
            let floor = raw(op, memory, &rest);
            let own = [&["--no-raw", "--op", op, "--memory", memory][..], &rest].concat();
            let mut point = bench(&server.url, "shm", &own);
            for key in ["p50_us", "ops_per_s", "bytes_per_s"] {
                point[format!("raw_{key}")] = floor[key].clone();
            }
            points.push(point);
        }
    }
    let [latency, rate, reads, writes, sleeping, private, bounce, lent] = &points[..] else {
        return Vec::new();
    };
    const ONE: &str = "one bare copy";
    let mut lines = vec![
        latency_line(latency),
        rate_line("random 4 KiB reads, depth 32", rate, "ops_per_s", (0.60, ONE)),
        rate_line("1 MiB reads, depth 8, shared buffers", reads, "bytes_per_s", (0.85, ONE)),
        rate_line("the same, private memory", private, "bytes_per_s", (0.85, ONE)),
        rate_line("the same, copied twice", bounce, "bytes_per_s", (0.85, "two bare copies")),
        rate_line("the same, lent and summed", lent, "bytes_per_s", (0.90, "the sum alone")),
        rate_line("1 MiB writes, depth 8", writes, "bytes_per_s", (0.80, ONE)),
        sleeping_line(sleeping),
    ];
    lines.extend(round_trips(mode, &server.url));
    lines
}

fn latency_line(points: &[Value]) -> Line {
    let (own, raw) = (of(points, "p50_us"), of(points, "raw_p50_us"));
    let required = "p50 ≤ raw + 0.8 µs and ≤ 2.5 × raw";
    let line = Line::new("shared-memory", "cached 4 KiB read, depth 1, polled", required).timing();
    let text = format!("{own:.2} µs, raw {raw:.2}: {:.1} ×", own / raw);
    line.measured(text, own <= raw + 0.8 && own <= 2.5 * raw)
}

fn rate_line(what: &str, points: &[Value], key: &str, (least, of_what): (f64, &str)) -> Line {
    let ratio = quotient(points, key, &format!("raw_{key}"));
    let rate = of(points, key);
    let rate = match key {
        "ops_per_s" => format!("{:.2} M per s", rate / 1e6),
        _ => format!("{:.1} GB/s", rate / 1e9),
    };
    let required = format!("≥ {least:.2} of {of_what}");
    let line = Line::new("shared-memory", what, &required).timing();
    line.measured(format!("{ratio:.2} of it ({rate})"), ratio >= least)
}

fn sleeping_line(points: &[Value]) -> Line {
    let (own, raw) = (of(points, "p50_us"), of(points, "raw_p50_us"));
    let what = "cached 4 KiB read, depth 1, sleeping";
    let line = Line::new("shared-memory", what, "p50 ≤ 1.15 × raw").timing();
    let text = format!("{:.2} × ({own:.1}, {raw:.1} µs)", own / raw);
    line.measured(text, own <= 1.15 * raw)
}

/// What takes longer than an answer: as long as by TCP, but for the round trip.
fn round_trips(mode: Mode, url: &str) -> Vec<Line> {
    let seconds = mode.pick("300ms", "2s");
    let mut p50s: HashMap<(&str, &str), Vec<f64>> = HashMap::new();
    for _ in 0..mode.pick(1, 5) {
        for op in OTHERS {
            for transport in ["tcp", "shm"] {
                let row = ["--op", op, "--size", "4k", "--depth", "1", "--wait", "polled"];
                let rest = ["--no-raw", "--seconds", seconds];
                let point = bench(url, transport, &[&row[..], &rest].concat());
                p50s.entry((op, transport)).or_default().push(number(&point, "p50_us"));
            }
        }
    }
    let p50 = |op, transport| p50s.get(&(op, transport)).cloned().map_or(f64::NAN, median);
    let saved = p50("stat", "tcp") - p50("stat", "shm");
    let line = |op: &&'static str| {
        let (tcp, shm) = (p50(op, "tcp"), p50(op, "shm"));
        let what = format!("4 KiB {op}, polled");
        let line = Line::new("shared-memory", &what, "≤ 1.1 × (TCP's less its round trip)");
        let text = format!("{shm:.1} µs (TCP {tcp:.1}, round trip {saved:.1} more)");
        line.timing().measured(text, shm <= 1.1 * (tcp - saved))
    };
    OTHERS.iter().filter(|op| **op != "stat").map(line).collect()
}
