//! Two builds of `dafs` beside each other: `bench-compare OLD NEW [--turns 5] [--seconds 1]`.
//!
//! Each build serves a directory of its own and measures it itself. Row by row they take turns,
//! so that what else the machine does meets both. A row is the median of the turns and new/old.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use dafs_tests::acceptance::median;
use serde_json::Value;

/// What is measured: a name, what is served with, what `dafs bench io` is told.
struct Row {
    name: &'static str,
    arena: &'static str,
    file: &'static str,
    args: [&'static str; 4],
}

const fn cached(name: &'static str, args: [&'static str; 4]) -> Row {
    Row { name, arena: "512m", file: "128m", args }
}

const fn cold(name: &'static str, args: [&'static str; 4]) -> Row {
    Row { name, arena: "64m", file: "1g", args }
}

/// Operation, size, depth, and how both ends wait.
const ROWS: &[Row] = &[
    cached("cached 4 KiB read, depth 1, sleeping", ["read", "4k", "1", "sleeping"]),
    cached("cached 4 KiB read, depth 1, polled", ["read", "4k", "1", "polled"]),
    cached("cached 4 KiB random read, depth 32, sleeping", ["randread", "4k", "32", "sleeping"]),
    cached("cached 4 KiB random read, depth 32, polled", ["randread", "4k", "32", "polled"]),
    cached("cached 64 KiB read, depth 8, sleeping", ["read", "64k", "8", "sleeping"]),
    cached("cached 1 MiB read, depth 8, sleeping", ["read", "1m", "8", "sleeping"]),
    cached("cached 1 MiB read, depth 8, polled", ["read", "1m", "8", "polled"]),
    cached("4 KiB write, depth 8, sleeping", ["randwrite", "4k", "8", "sleeping"]),
    cached("1 MiB write, depth 8, sleeping", ["write", "1m", "8", "sleeping"]),
    cached("stat, depth 8, sleeping", ["stat", "4k", "8", "sleeping"]),
    cached("open, read, close, depth 8, sleeping", ["openread", "4k", "8", "sleeping"]),
    cached("create, write, close, depth 8, sleeping", ["create", "4k", "8", "sleeping"]),
    cold("cold 4 KiB random read, depth 32, sleeping", ["randread", "4k", "32", "sleeping"]),
    cold("cold 1 MiB read, depth 8, sleeping", ["read", "1m", "8", "sleeping"]),
];

/// One build, and its server with the arena of the row.
struct Build {
    binary: PathBuf,
    server: Option<(Child, &'static str, String, tempfile::TempDir)>,
}

impl Build {
    fn new(binary: &str) -> Build {
        let binary = std::fs::canonicalize(binary).expect("a build of dafs");
        Build { binary, server: None }
    }

    /// A server with so large a cache, for the rows that want the same.
    fn url(&mut self, arena: &'static str) -> String {
        if let Some((_, known, url, _)) = &self.server
            && *known == arena
        {
            return url.clone();
        }
        self.stop();
        let dir = tempfile::tempdir().expect("tempdir");
        let served = dir.path().join("served");
        std::fs::create_dir(&served).expect("mkdir");
        let (server, url) = serve(&self.binary, dir.path(), &served, arena);
        self.server = Some((server, arena, url.clone(), dir));
        url
    }

    fn measure(&mut self, row: &Row, seconds: &str) -> Value {
        let url = self.url(row.arena);
        let [op, size, depth, wait] = row.args;
        let output = Command::new(&self.binary)
            .args(["bench", "io", &url, "--json", "--no-raw", "--seconds", seconds])
            .args(["--op", op, "--size", size, "--depth", depth, "--wait", wait])
            .args(["--file-size", row.file])
            .stderr(Stdio::inherit())
            .output()
            .expect("dafs runs");
        assert!(output.status.success(), "{}: {}", self.binary.display(), row.name);
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }

    /// Ctrl-C, so that it cleans up.
    fn stop(&mut self) {
        let Some((mut server, _, _, _dir)) = self.server.take() else { return };
        let pid = i32::try_from(server.id()).expect("a pid");
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGINT,
        );
        let _ = server.wait();
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(binary: &Path, state: &Path, dir: &Path, arena: &str) -> (Child, String) {
    let mut server = Command::new(binary)
        .args(["serve", "--listen", "tcp://127.0.0.1:0", "--disk", "auto", "--arena", arena])
        .arg("--state")
        .arg(state)
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dafs serves");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let url = lines.next().and_then(Result::ok).unwrap_or_default();
    assert!(url.starts_with("dafs://"), "{}: first line '{url}'", binary.display());
    // Keeps reading, so that the server never meets a closed pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (server, url)
}

fn field(point: &Value, name: &str) -> f64 {
    point.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Microseconds of both ends.
fn cpu(point: &Value) -> f64 {
    field(point, "client_cpu_us_per_op") + field(point, "server_cpu_us_per_op")
}

/// The median of each build, and how the second stands to the first in the turns.
fn compared(turns: &[(Value, Value)], of: fn(&Value) -> f64) -> (f64, f64, f64) {
    let each = |side: fn(&(Value, Value)) -> &Value| turns.iter().map(move |turn| of(side(turn)));
    let (old, new) =
        (median(each(|turn| &turn.0).collect()), median(each(|turn| &turn.1).collect()));
    (old, new, median(turns.iter().map(|(old, new)| of(new) / of(old)).collect()))
}

fn rate(point: &Value) -> f64 {
    field(point, "ops_per_s")
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(old), Some(new)) = (args.next(), args.next()) else {
        eprintln!("usage: bench-compare OLD NEW [--turns 5] [--seconds 1] [--only WORDS]");
        return ExitCode::from(2);
    };
    let (mut turns, mut seconds, mut only) = (5, "1".to_string(), String::new());
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.next()) {
            ("--turns", Some(value)) => turns = value.parse().expect("--turns: a number"),
            ("--seconds", Some(value)) => seconds = value,
            ("--only", Some(value)) => only = value,
            _ => panic!("bench-compare: unknown option or missing value: {arg}"),
        }
    }
    let (mut old, mut new) = (Build::new(&old), Build::new(&new));
    let [rates, cpus] = ["rate per second", "CPU us per operation"];
    println!("{:<46} {rates:>31} {cpus:>30}", "row");
    println!(
        "{:<46} {:>11} {:>11} {:>7} {:>11} {:>10} {:>7}",
        "", "old", "new", "new/old", "old", "new", "new/old"
    );
    for row in ROWS.iter().filter(|row| row.name.contains(&only)) {
        let mut points = Vec::new();
        for turn in 0..turns {
            // Who begins changes, too.
            if turn % 2 == 0 {
                let first = old.measure(row, &seconds);
                points.push((first, new.measure(row, &seconds)));
            } else {
                let first = new.measure(row, &seconds);
                points.push((old.measure(row, &seconds), first));
            }
        }
        let ((a, b, c), (d, e, f)) = (compared(&points, rate), compared(&points, cpu));
        println!("{:<46} {a:>11.0} {b:>11.0} {c:>7.2} {d:>11.2} {e:>10.2} {f:>7.2}", row.name);
    }
    ExitCode::SUCCESS
}
