//! same-host: what a mount of a server on its own host costs, by shared memory, beside a mount without
//! files that moves as many bytes. Where a round trip counts, the server is on one processor and all
//! else on another: how the system places three processes on two of them is not measured.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dafs_tests::acceptance::median;
use dafs_tests::machine::SKIPPED;
use dafs_tests::mounted::is_mounted;
use dafs_tests::{Place, command, run_ok};
use serde_json::Value;

use crate::speed::{NO_MOUNT, Rows};
use crate::times::{UNPACK, make_tar, timed};
use crate::{Line, Mode};

/// What a small read may take more than without files, in microseconds.
const READ_MORE_US: f64 = 5.0;
/// Round trips that a file of a tar takes.
const TRIPS: f64 = 7.4;
/// How much longer than their sum a file may take.
const TIMES: f64 = 1.3;

/// The processor of the server, and that of all others.
const CPUS: [&str; 2] = ["0", "1"];

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    dafs_tests::served::as_in_use(true);
    let line = |what: &str, required: &str| Line::new("same-host", what, required).timing();
    let mut place = Place::fresh(Duration::from_secs(mode.pick(200, 1200)));
    let files = mode.pick(2000, 20_000);
    let small = line("cached 4 KiB direct read: p50, placed", "≤ null mount + 5 µs");
    let read = line("1 MiB sequential direct read", "≥ 0.70 of the null mount");
    let write = line("1 MiB sequential direct write", "≥ 0.50 of the null mount");
    let tar = format!("a file of tar x of {files}, placed");
    let tar = line(&tar, "≤ 1.3 × (local + 7.4 × (null mount + trip))");
    if let Err(why) = can_be_measured(&mut place) {
        return [small, read, write, tar].map(|line| line.result(Err(why.clone()))).into();
    }
    let mut lines = large(mode, &place, read, write);
    let placed = Placed::new(&mut place);
    lines.insert(0, small_reads(mode, &place, small));
    lines.push(match files_of_tar(&mut place, files) {
        Ok((text, pass)) => tar.measured(text, pass),
        Err(error) => tar.result(Err(error)),
    });
    drop(placed);
    lines
}

fn can_be_measured(place: &mut Place) -> Result<(), String> {
    if !place.is_mount() {
        return Err(format!("{SKIPPED}{NO_MOUNT}"));
    }
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < CPUS.len()) {
        return Err(format!("{SKIPPED}needs two processors"));
    }
    match trip(place).0.as_deref() {
        Some("shm") => Ok(()),
        other => Err(format!("{SKIPPED}no shared memory: the session goes by {other:?}")),
    }
}

fn large(mode: Mode, place: &Place, read: Line, write: Line) -> Vec<Line> {
    let args = ["--op", "read,write", "--size", "1m", "--depth", "1", "--file-size", "256m"];
    let rows = Rows::measure(mode, place, &args);
    let lines = rows.0.iter().zip([(read, 0.70), (write, 0.50)]);
    let lines = lines.map(|(points, (line, least))| {
        let ratio = Rows::median(points, "ratio");
        let rates = ["bytes_per_s", "raw_bytes_per_s"].map(|key| Rows::median(points, key) / 1e9);
        let times = ["p50_us", "raw_p50_us"].map(|key| Rows::median(points, key));
        let [own, null] = rates;
        let text = format!("{ratio:.2} of it ({own:.2} GB/s, {null:.2}");
        let text = format!("{text}; p50 {:.0} µs, {:.0})", times[0], times[1]);
        line.measured(text, ratio >= least)
    });
    lines.collect()
}

fn small_reads(mode: Mode, place: &Place, line: Line) -> Line {
    let args = ["--op", "read", "--size", "4k", "--depth", "1", "--file-size", "16m"];
    let rows = Rows::measure(mode, place, &args);
    let Some(points) = rows.0.first() else { return line.measured("no row", false) };
    let [own, null] = ["p50_us", "raw_p50_us"].map(|key| Rows::median(points, key));
    let text = format!("{own:.1} µs (null mount {null:.1}: {:.1})", null + READ_MORE_US);
    line.measured(text, own <= null + READ_MORE_US)
}

/// What a file takes, in microseconds, and whether that is enough; the best of three turns.
fn files_of_tar(place: &mut Place, files: usize) -> Result<(String, bool), String> {
    let tar = make_tar(place.beside(), files)?;
    let dirs = [place.exported().join("local"), place.path().join("mount")];
    for dir in &dirs {
        std::fs::create_dir(dir).map_err(|error| error.to_string())?;
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..3 {
        for (best, dir) in best.iter_mut().zip(&dirs) {
            *best = best.min(timed(dir, UNPACK, &[&tar])?.as_secs_f64() * 1e6 / files as f64);
            timed(dir, "rm -r source", &[])?;
        }
    }
    let null = Null::new(place.beside())?;
    let ([local, mount], null, trip) = (best, null.trip(), trip(place).1);
    let bound = TIMES * (local + TRIPS * (null + trip));
    let terms = format!("local {local:.0}, null mount {null:.1}, trip {trip:.1}: {bound:.0}");
    Ok((format!("{mount:.0} µs ({terms})"), mount <= bound))
}

/// By which transport a session goes, and the median of its round trips in microseconds.
fn trip(place: &mut Place) -> (Option<String>, f64) {
    let Some(url) = place.server().map(|server| server.at("")) else { return (None, f64::NAN) };
    let args = ["--op", "stat", "--depth", "1", "--wait", "adaptive", "--no-raw", "--json"];
    let mut all = vec!["bench", "io", &url, "--seconds", "1s"];
    all.extend(args);
    let row: Value = serde_json::from_str(run_ok(&all).trim()).expect("a JSON object");
    let transport = row.get("transport").and_then(Value::as_str).map(str::to_owned);
    (transport, row.get("p50_us").and_then(Value::as_f64).unwrap_or(f64::NAN))
}

/// The server on one processor; mounts, this thread, and what it starts, on the other.
struct Placed;

fn on_cpus(cpus: &str, pid: u32, all_threads: bool) {
    let mut taskset = Command::new("taskset");
    taskset.args(all_threads.then_some("-a")).args(["-c", "-p", cpus, &pid.to_string()]);
    let done = taskset.stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|status| status.success()), "taskset -p {cpus} {pid}");
}

impl Placed {
    fn new(place: &mut Place) -> Placed {
        let [servers, others] = CPUS;
        on_cpus(servers, place.server().expect("a mount has one").pid(), true);
        on_cpus(others, place.mount(0).expect("a mount").pid(), true);
        on_cpus(others, nix::unistd::gettid().as_raw().cast_unsigned(), false);
        Placed
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let all = std::fs::read_to_string("/sys/devices/system/cpu/online").expect("processors");
        on_cpus(all.trim(), nix::unistd::gettid().as_raw().cast_unsigned(), false);
    }
}

/// A mount without files.
struct Null {
    dir: PathBuf,
    process: Child,
}

impl Null {
    fn new(beside: &Path) -> Result<Null, String> {
        let dir = beside.join("null");
        std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
        let mut mount = command(&["mount", "--foreground", "--null", "4096", "null"]);
        let process = mount.arg(&dir).spawn().map_err(|error| error.to_string())?;
        let null = Null { dir, process };
        let start = Instant::now();
        while !is_mounted(&null.dir) {
            if start.elapsed() > Duration::from_secs(20) {
                return Err("no null mount".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(null)
    }

    /// The median of calls that ask for attributes: of a name that is not there, since the kernel
    /// believes those of others for ever.
    fn trip(&self) -> f64 {
        let name = self.dir.join("none");
        let look = |_| {
            let start = Instant::now();
            assert!(std::fs::symlink_metadata(&name).is_err(), "there is one file");
            start.elapsed().as_secs_f64() * 1e6
        };
        median((0..20_000).map(look).collect())
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(10) {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
