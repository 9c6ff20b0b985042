//! small-writes: writes of one byte, as a log that nobody buffers makes them: what the last ones cost the
//! mount's process, and what they take of its memory.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use dafs_tests::Place;

use crate::{Line, Mode};

/// Writes whose time is compared.
const TIMED: u32 = 10_000;
/// Memory that all of them may take. What was kept of each once took 117 bytes: 9 MiB of 80,000.
const GROWTH_MAX_KIB: u64 = 8 << 10;

pub(crate) fn writes(mode: Mode) -> Vec<Line> {
    let writes = mode.pick(8 * TIMED, 20 * TIMED);
    let what = format!("{writes} writes of one byte");
    let time = Line::new(
        "small-writes",
        &format!("{what}: CPU time of the mount"),
        "the last ≤ 1.5 × the first",
    );
    // Few writes are too few ticks to count.
    let time = if mode.long { time } else { time.timing() };
    let memory = Line::new("small-writes", &format!("{what}: memory of the mount"), "≤ 8 MiB more");
    dafs_tests::served::as_in_use(true);
    let mut place = Place::new(Duration::from_secs(mode.pick(60, 600)));
    let Some(pid) = place.mount(0).map(|mount| mount.pid()) else {
        return vec![time.skipped("a plain directory"), memory.skipped("a plain directory")];
    };
    let mut file = File::create(place.path().join("log")).expect("create");
    // Its own time: other work on the same processors does not count.
    let mut write = |count| {
        let (start, cpu) = (Instant::now(), cpu_us(pid));
        (0..count).for_each(|_| file.write_all(b"x").expect("write"));
        [start.elapsed().as_secs_f64() * 1e6, cpu_us(pid) - cpu].map(|us| us / f64::from(count))
    };
    let before = resident_kib(pid);
    let [first, first_cpu] = write(TIMED);
    write(writes - 2 * TIMED);
    let [last, last_cpu] = write(TIMED);
    let grown = resident_kib(pid).saturating_sub(before);
    let text = format!("{last_cpu:.0} µs, first {first_cpu:.0} (in all {last:.0}, {first:.0})");
    vec![
        time.measured(text, last_cpu <= 1.5 * first_cpu),
        memory.measured(format!("{:.1} MiB", grown as f64 / 1024.0), grown <= GROWTH_MAX_KIB),
    ]
}

/// What a process ran so far, in ticks of 10 ms.
fn cpu_us(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its times");
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() * 10_000.0
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim_end_matches("kB").trim().parse().expect("a number")
}
