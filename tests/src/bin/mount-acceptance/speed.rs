//! latency, rate: what a mount adds to the kernel's own part, measured by turns with a mount that has no
//! files behind it (`dafs bench io` on a mount) and with the round trip of plain sockets.

use std::time::Duration;

use dafs_tests::acceptance::median;
use dafs_tests::{Place, run_ok};
use serde_json::Value;

use crate::{Line, Mode};

/// What this file system's own work may add to a round trip, in microseconds.
const OWN_US: f64 = 3.0;

/// Medians of several runs of the same rows: one list of values per row.
pub(crate) struct Rows(pub(crate) Vec<Vec<Value>>);

impl Rows {
    pub(crate) fn measure(mode: Mode, place: &Place, args: &[&str]) -> Rows {
        let target = place.path().display().to_string();
        let mut all = vec!["bench", "io", &target, "--direct", "--json"];
        all.extend(args);
        let mut rows: Vec<Vec<Value>> = Vec::new();
        for _ in 0..mode.pick(1, 5) {
            for (index, line) in run_ok(&all).lines().enumerate() {
                if rows.len() <= index {
                    rows.push(Vec::new());
                }
                rows[index].push(serde_json::from_str(line).expect("a JSON object per line"));
            }
        }
        Rows(rows)
    }

    pub(crate) fn median(points: &[Value], key: &str) -> f64 {
        let of = |point: &Value| point.get(key).and_then(Value::as_f64);
        median(points.iter().filter_map(of).collect())
    }
}

fn place(mode: Mode) -> Place {
    dafs_tests::served::as_in_use(true);
    Place::new(Duration::from_secs(mode.pick(120, 600)))
}

pub(crate) const NO_MOUNT: &str = "a plain directory has no other side";

pub(crate) fn latency(mode: Mode) -> Vec<Line> {
    let place = place(mode);
    let line = |depth: &str, what: &str, required: &str| {
        let what = format!("cached 4 KiB direct read, {depth} at a time: {what}");
        Line::new("latency", &what, required).timing()
    };
    if !place.is_mount() {
        return vec![line("1", "p50", "").skipped(NO_MOUNT)];
    }
    let args = ["--op", "read", "--size", "4k", "--depth", "1,2", "--file-size", "16m"];
    let rows = Rows::measure(mode, &place, &args);
    let mut lines = Vec::new();
    for (points, depth) in rows.0.iter().zip(["1", "2"]) {
        let median = |key| Rows::median(points, key);
        let (p50, p99) = (median("p50_us"), median("p99_us"));
        let (null, trip) = (median("raw_p50_us"), median("trip_p50_us"));
        let bound = null + trip + OWN_US;
        let text = format!("{p50:.1} µs (null mount {null:.1}, round trip {trip:.1}: {bound:.1})");
        let required = "≤ null mount + round trip + 3 µs";
        lines.push(line(depth, "p50", required).measured(text, p50 <= bound));
        let (text, null) = (format!("{:.1} × ({p99:.0} µs)", p99 / p50), median("raw_p99_us"));
        let text = format!("{text}, null mount {null:.0} µs");
        lines.push(line(depth, "p99", "≤ 3 × p50").measured(text, p99 <= 3.0 * p50));
    }
    lines
}

pub(crate) fn rate(mode: Mode) -> Vec<Line> {
    let place = place(mode);
    let required = "≥ 0.80 of the null mount";
    let line =
        |op: &str| Line::new("rate", &format!("1 MiB sequential direct {op}"), required).timing();
    if !place.is_mount() {
        return vec![line("read").skipped(NO_MOUNT), line("write").skipped(NO_MOUNT)];
    }
    let args = ["--op", "read,write", "--size", "1m", "--depth", "1", "--file-size", "256m"];
    let rows = Rows::measure(mode, &place, &args);
    let lines = rows.0.iter().zip(["read", "write"]).map(|(points, op)| {
        let ratio = Rows::median(points, "ratio");
        let (own, null) = ("bytes_per_s", "raw_bytes_per_s");
        let [own, null] = [own, null].map(|key| Rows::median(points, key) / 1e9);
        let text = format!("{ratio:.2} of it ({own:.2} GB/s, {null:.2} GB/s)");
        line(op).measured(text, ratio >= 0.8)
    });
    lines.collect()
}
