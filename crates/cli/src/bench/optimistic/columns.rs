//! The columns of the experiments.

use dafs_bench::optimistic::Row;
use dafs_bench::{Wait, size_text};

use crate::bench::table::{TableRow, number};

impl TableRow for Row {
    fn experiment(&self) -> &'static str {
        self.experiment
    }

    fn title() -> String {
        format!(
            "{:<23} {:<5} {:<12} {:<10} {:<8} {:<8} {:>5} {:>4} {:>9} {:>9} {:>8} {:>8} {:>7} {:>6} {:>8} {:>9} {:>9} {:>7} {:>7} {:>8}",
            "what",
            "net",
            "path",
            "to",
            "wait",
            "server",
            "size",
            "%",
            "MB/s",
            "ops/s",
            "p50 us",
            "p99 us",
            "gain %",
            "hit %",
            "unasked%",
            "cli us/op",
            "srv us/op",
            "req/op",
            "sys/op",
            "worst us",
        )
    }

    fn line(&self) -> String {
        let row = self;
        let percent = |value: Option<f64>| number(value.map(|value| 100.0 * value), 1);
        format!(
            "{:<23} {:<5} {:<12} {:<10} {:<8} {:<8} {:>5} {:>4} {:>9} {:>9} {:>8} {:>8} {:>7} {:>6} {:>8} {:>9} {:>9} {:>7} {:>7} {:>8}",
            row.experiment,
            row.transport,
            row.path,
            row.to.unwrap_or("-"),
            row.wait.map_or("-", Wait::name),
            row.server_wait.map_or("-", Wait::name),
            row.size.map_or_else(|| "-".into(), size_text),
            number(row.percent, 0),
            number(row.bytes_per_s.filter(|rate| *rate > 0.0).map(|rate| rate / 1e6), 1),
            number(row.ops_per_s, 0),
            number(row.p50_us, 2),
            number(row.p99_us, 1),
            percent(row.gain),
            percent(row.client_hit_ratio),
            percent(row.optimistic_ratio),
            number(row.client_cpu_us_per_op, 2),
            number(row.server_cpu_us_per_op, 2),
            number(row.server_requests_per_op, 2),
            number(row.syscalls_per_op, 2),
            number(row.worst_us, 1),
        )
    }
}
