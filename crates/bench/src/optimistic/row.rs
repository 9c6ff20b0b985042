//! What comes out: a row per measurement.

use serde::Serialize;

use super::place::Way;
use crate::slice::{Slice, median};
use crate::wait::Wait;

/// One measurement. `None` is what was not measured, or has no meaning there.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // names and units are the output format, described in `dafs bench optimistic --help`
pub struct Row {
    pub experiment: &'static str,
    pub transport: String,
    pub path: &'static str,
    pub to: Option<&'static str>,
    pub wait: Option<Wait>,
    pub server_wait: Option<Wait>,
    pub size: Option<u64>,
    pub percent: Option<f64>,
    pub link_bytes_per_s: Option<u64>,
    pub seconds: Option<f64>,
    pub ops: Option<u64>,
    pub ops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub gain: Option<f64>,
    pub client_hit_ratio: Option<f64>,
    pub optimistic_ratio: Option<f64>,
    pub client_cpu_us_per_op: Option<f64>,
    pub server_cpu_us_per_op: Option<f64>,
    pub server_requests_per_op: Option<f64>,
    pub messages_per_op: Option<f64>,
    pub syscalls_per_op: Option<f64>,
    pub client_copies_per_byte: Option<f64>,
    pub server_copies_per_byte: Option<f64>,
    pub worst_us: Option<f64>,
}

/// What one stretch saw, and how reads went in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Times, rates and costs.
    pub slice: Slice,
    /// Reads that the block cache of the benchmark lacked.
    pub remote: u64,
    /// Of those, how many needed no server.
    pub optimistic: u64,
}

impl Seen {
    /// All of it was copied by the benchmark, too: out of the memory of the connection.
    pub(super) fn copied_once_more(&mut self) {
        let own = self.slice.bytes;
        self.slice.client_copied_bytes = self.slice.client_copied_bytes.map(|all| all + own);
    }

    fn total(all: &[Seen]) -> Option<Seen> {
        let slices: Vec<Slice> = all.iter().map(|seen| seen.slice.clone()).collect();
        Some(Seen {
            slice: Slice::total(&slices)?,
            remote: all.iter().map(|seen| seen.remote).sum(),
            optimistic: all.iter().map(|seen| seen.optimistic).sum(),
        })
    }
}

impl Row {
    /// A row without figures: what there is none of.
    pub(super) fn none(experiment: &'static str, transport: &str, path: &'static str) -> Row {
        Row {
            experiment,
            transport: transport.to_owned(),
            path,
            to: None,
            wait: None,
            server_wait: None,
            size: None,
            percent: None,
            link_bytes_per_s: None,
            seconds: None,
            ops: None,
            ops_per_s: None,
            bytes_per_s: None,
            p50_us: None,
            p99_us: None,
            gain: None,
            client_hit_ratio: None,
            optimistic_ratio: None,
            client_cpu_us_per_op: None,
            server_cpu_us_per_op: None,
            server_requests_per_op: None,
            messages_per_op: None,
            syscalls_per_op: None,
            client_copies_per_byte: None,
            server_copies_per_byte: None,
            worst_us: None,
        }
    }

    /// With what stretches saw: rates are medians of them, latencies and costs those of all together.
    /// Without any, nothing is said.
    pub(super) fn with(mut self, all: &[Seen]) -> Row {
        let Some(Seen { slice, remote, optimistic }) = Seen::total(all) else { return self };
        if slice.ops == 0 {
            return self;
        }
        let per_op = |count: Option<u64>| count.map(|count| count as f64 / slice.ops as f64);
        let per_byte = |count: Option<u64>| {
            count.filter(|_| slice.bytes > 0).map(|count| count as f64 / slice.bytes as f64)
        };
        let us = |ns: Option<u64>| per_op(ns).map(|ns| ns / 1000.0);
        self.seconds = Some(slice.seconds);
        self.ops = Some(slice.ops);
        self.ops_per_s = median(all.iter().map(|seen| seen.slice.ops_per_s()));
        self.bytes_per_s = median(all.iter().map(|seen| seen.slice.bytes_per_s()));
        self.p50_us = slice.latency.quantile_us(0.5);
        self.p99_us = slice.latency.quantile_us(0.99);
        self.client_hit_ratio = Some(1.0 - remote as f64 / slice.ops as f64);
        self.optimistic_ratio = (remote > 0).then(|| optimistic as f64 / remote as f64);
        self.client_cpu_us_per_op = us(slice.client_cpu_ns);
        self.server_cpu_us_per_op = us(slice.server_cpu_ns);
        self.server_requests_per_op = per_op(slice.round_trips);
        self.messages_per_op = per_op(slice.round_trips.map(|trips| 2 * trips));
        self.syscalls_per_op = per_op(slice.system_calls);
        self.client_copies_per_byte = per_byte(slice.client_copied_bytes);
        self.server_copies_per_byte = per_byte(slice.server_copied_bytes);
        self
    }

    /// With how much faster it was than stretches of another kind, by turns.
    pub(super) fn beside(mut self, all: &[Seen], others: &[Seen]) -> Row {
        self.gain = gain(all, others);
        self
    }
}

/// How much faster stretches were than others, the median of the pairs; 0.34: by 34 percent.
fn gain(all: &[Seen], others: &[Seen]) -> Option<f64> {
    let rate = |seen: &Seen| Some(seen.slice.ops_per_s()).filter(|rate| *rate > 0.0);
    let pairs = all.iter().zip(others);
    median(pairs.filter_map(|(own, other)| Some(rate(own)? / rate(other)? - 1.0)))
}

/// The rows of one place in an experiment: one for each way, with what it gains over asking.
pub(super) fn rows_of(base: &Row, ways: &[(Way, Vec<Seen>)]) -> Vec<Row> {
    let direct = ways.iter().find(|(way, _)| *way == Way::Direct).map(|(_, seen)| seen.as_slice());
    let row = |(way, seen): &(Way, Vec<Seen>)| {
        let row = Row { path: way.name(), ..base.clone() }.with(seen);
        if *way == Way::Direct { row } else { row.beside(seen, direct.unwrap_or_default()) }
    };
    ways.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ops: u64) -> Seen {
        let slice = Slice { seconds: 1.0, ops, bytes: ops * 10, ..Slice::default() };
        Seen { slice, remote: ops / 2, optimistic: ops / 4 }
    }

    #[test]
    fn the_gain_is_that_of_the_median_pair() {
        let ways = [
            (Way::Direct, vec![seen(100), seen(100), seen(10)]),
            (Way::Optimistic, vec![seen(200), seen(120), seen(1000)]),
        ];
        let rows = rows_of(&Row::none("figure-6", "shm", ""), &ways);
        assert_eq!((rows[0].path, rows[0].gain), ("rpc-direct", None));
        assert_eq!((rows[1].path, rows[1].gain), ("optimistic", Some(1.0)));
        assert_eq!((rows[1].client_hit_ratio, rows[1].optimistic_ratio), (Some(0.5), Some(0.5)));
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let row = Row::none("table-3", "tcp", "optimistic").with(&[]).beside(&[], &[seen(1)]);
        let json = serde_json::to_value(&row).expect("serializes");
        let object = json.as_object().expect("an object");
        let told = object.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name);
        assert_eq!(told.collect::<Vec<_>>(), ["experiment", "path", "transport"]);
        assert!(row.gain.is_none());
    }
}
