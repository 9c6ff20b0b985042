//! One row of a benchmark: as JSON and as a line of a table.

use serde::Serialize;

use crate::slice::{Slice, median};
use crate::wait::Wait;

/// One measured point. `None` is what could not be measured.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // names and units are the output format, described in `dafs bench io --help`
pub struct Point {
    pub op: String,
    pub size: Option<u64>,
    pub depth: Option<u32>,
    pub transport: String,
    pub wait: Option<Wait>,
    pub seconds: f64,
    pub ops: u64,
    pub bytes_per_s: Option<f64>,
    pub ops_per_s: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub client_cpu_us_per_op: Option<f64>,
    pub server_cpu_us_per_op: Option<f64>,
    pub server_copies_per_byte: Option<f64>,
    pub client_copies_per_byte: Option<f64>,
    pub registrations_per_op: Option<f64>,
    pub syscalls_per_op: Option<f64>,
    pub round_trips_per_op: Option<f64>,
    pub raw_bytes_per_s: Option<f64>,
    pub raw_ops_per_s: Option<f64>,
    pub raw_p50_us: Option<f64>,
    pub raw_p99_us: Option<f64>,
    pub raw_cpu_us_per_op: Option<f64>,
    pub ratio: Option<f64>,
    pub trip_p50_us: Option<f64>,
}

impl Point {
    /// A row from the stretches that measured it: rates are medians of the stretches, latencies
    /// and costs are those of all of them together.
    pub fn new(op: &str, transport: &str, slices: &[Slice]) -> Point {
        let total = Slice::total(slices).unwrap_or_default();
        let per_op = |count: Option<u64>| ratio(count, total.ops);
        let per_byte = |count: Option<u64>| ratio(count, total.bytes);
        let cpu = |ns: Option<u64>| per_op(ns).map(|ns| ns / 1000.0);
        let moved = total.bytes > 0;
        Point {
            op: op.to_owned(),
            size: None,
            depth: None,
            transport: transport.to_owned(),
            wait: None,
            seconds: total.seconds,
            ops: total.ops,
            bytes_per_s: median(slices.iter().map(Slice::bytes_per_s)).filter(|_| moved),
            ops_per_s: median(slices.iter().map(Slice::ops_per_s)).filter(|_| total.ops > 0),
            p50_us: total.latency.quantile_us(0.5),
            p99_us: total.latency.quantile_us(0.99),
            p999_us: total.latency.quantile_us(0.999),
            client_cpu_us_per_op: cpu(total.client_cpu_ns),
            server_cpu_us_per_op: cpu(total.server_cpu_ns),
            server_copies_per_byte: per_byte(total.server_copied_bytes),
            client_copies_per_byte: per_byte(total.client_copied_bytes),
            registrations_per_op: per_op(total.registrations),
            syscalls_per_op: per_op(total.system_calls),
            round_trips_per_op: per_op(total.round_trips),
            raw_bytes_per_s: None,
            raw_ops_per_s: None,
            raw_p50_us: None,
            raw_p99_us: None,
            raw_cpu_us_per_op: None,
            ratio: None,
            trip_p50_us: None,
        }
    }

    /// Adds the parameters of the row.
    pub fn with(mut self, size: u64, depth: u32, wait: Option<Wait>) -> Point {
        self.size = Some(size);
        self.depth = Some(depth);
        self.wait = wait;
        self
    }

    /// Adds what the raw mechanism did in the same run.
    pub fn with_raw(mut self, slices: &[Slice]) -> Point {
        let raw = Point::new("", "", slices);
        self.raw_bytes_per_s = raw.bytes_per_s;
        self.raw_ops_per_s = raw.ops_per_s;
        self.raw_p50_us = raw.p50_us;
        self.raw_p99_us = raw.p99_us;
        self.raw_cpu_us_per_op =
            raw.client_cpu_us_per_op.zip(raw.server_cpu_us_per_op).map(|(a, b)| a + b);
        self.ratio =
            self.bytes_per_s.zip(raw.bytes_per_s).filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b);
        self
    }

    /// Adds round trips of the transport alone, where something else is the raw mechanism.
    pub fn with_trips(mut self, slices: &[Slice]) -> Point {
        self.trip_p50_us = Point::new("", "", slices).p50_us;
        self
    }
}

fn ratio(count: Option<u64>, of: u64) -> Option<f64> {
    count.filter(|_| of > 0).map(|count| count as f64 / of as f64)
}

/// Prints points on standard output as they come.
#[derive(Debug)]
pub struct Report {
    json: bool,
    titled: bool,
}

impl Report {
    /// One JSON object per line, or a table.
    pub fn new(json: bool) -> Report {
        Report { json, titled: false }
    }

    /// Prints one point.
    ///
    /// # Errors
    /// Standard output's.
    pub fn print(&mut self, point: &Point) -> std::io::Result<()> {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = serde_json::to_string(point).map_err(std::io::Error::other)?;
            writeln!(out, "{line}")?;
            return out.flush();
        }
        if !self.titled {
            self.titled = true;
            writeln!(out, "{}", title())?;
        }
        writeln!(out, "{}", row(point))?;
        out.flush()
    }
}

fn title() -> String {
    format!(
        "{:<12} {:>6} {:>5} {:<9} {:<8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>10} {:>9} {:>9} {:>6} {:>7}",
        "op",
        "size",
        "depth",
        "transport",
        "wait",
        "MB/s",
        "ops/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "cli us/op",
        "srv us/op",
        "sys/op",
        "rt/op",
        "raw MB/s",
        "raw p50",
        "raw p99",
        "ratio",
        "trip"
    )
}

fn row(p: &Point) -> String {
    let mega = |value: Option<f64>| number(value.map(|v| v / 1e6), 1);
    format!(
        "{:<12} {:>6} {:>5} {:<9} {:<8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7} {:>10} {:>9} {:>9} {:>6} {:>7}",
        p.op,
        p.size.map_or_else(|| "-".to_owned(), size_text),
        p.depth.map_or_else(|| "-".to_owned(), |depth| depth.to_string()),
        p.transport,
        p.wait.map_or("-", Wait::name),
        mega(p.bytes_per_s),
        number(p.ops_per_s, 0),
        number(p.p50_us, 1),
        number(p.p99_us, 1),
        number(p.p999_us, 1),
        number(p.client_cpu_us_per_op, 2),
        number(p.server_cpu_us_per_op, 2),
        number(p.syscalls_per_op, 2),
        number(p.round_trips_per_op, 2),
        mega(p.raw_bytes_per_s),
        number(p.raw_p50_us, 1),
        number(p.raw_p99_us, 1),
        number(p.ratio, 2),
        number(p.trip_p50_us, 1),
    )
}

pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// `4k`, `1m`: as sizes are given in options.
pub fn size_text(bytes: u64) -> String {
    for (shift, unit) in [(30, "g"), (20, "m"), (10, "k")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_the_documented_fields_and_null_for_the_unknown() {
        let slice = Slice { seconds: 2.0, ops: 4, bytes: 400, ..Slice::default() };
        let point = Point::new("read", "tcp", &[slice]).with(100, 1, Some(Wait::Polled));
        let json = serde_json::to_value(&point).expect("serializes");
        let fields = [
            "op",
            "size",
            "depth",
            "transport",
            "wait",
            "seconds",
            "ops",
            "bytes_per_s",
            "ops_per_s",
            "p50_us",
            "p99_us",
            "p999_us",
            "client_cpu_us_per_op",
            "server_cpu_us_per_op",
            "server_copies_per_byte",
            "client_copies_per_byte",
            "registrations_per_op",
            "syscalls_per_op",
            "round_trips_per_op",
            "raw_bytes_per_s",
            "raw_ops_per_s",
            "raw_p50_us",
            "raw_p99_us",
            "raw_cpu_us_per_op",
            "ratio",
            "trip_p50_us",
        ];
        let object = json.as_object().expect("an object");
        assert_eq!(object.len(), fields.len());
        for field in fields {
            assert!(object.contains_key(field), "{field}");
        }
        assert_eq!(json["bytes_per_s"], 200.0);
        assert_eq!(json["wait"], "polled");
        assert!(json["server_cpu_us_per_op"].is_null() && json["ratio"].is_null());
    }

    #[test]
    fn the_ratio_is_that_of_the_medians() {
        let slice = |bytes| Slice { seconds: 1.0, ops: 1, bytes, ..Slice::default() };
        let ours = [slice(80), slice(90), slice(1)];
        let raw = [slice(100), slice(100), slice(5)];
        let point = Point::new("read", "tcp", &ours).with_raw(&raw);
        assert_eq!(point.ratio, Some(0.8));
    }

    #[test]
    fn sizes_are_written_as_in_options() {
        assert_eq!(size_text(4096), "4k");
        assert_eq!(size_text(1 << 20), "1m");
        assert_eq!(size_text(1000), "1000");
    }
}
