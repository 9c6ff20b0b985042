//! What comes out: a row per measurement.

use std::io::{self, Write};

use dafs_bench::size_text;
use serde::Serialize;

/// One measurement; `null` is what could not be measured or has no meaning.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `cached` or `reread`.
    pub experiment: &'static str,
    pub datapath: &'static str,
    /// Bytes of a READ.
    pub size: u64,
    pub file_bytes: u64,
    /// Of the memory of the server and its page cache.
    pub limit_bytes: Option<u64>,
    pub bytes_per_s: f64,
    pub server_cpu_ns_per_byte: Option<f64>,
    /// That the server made the system read from disks, per byte that the client read.
    pub disk_bytes_per_byte: Option<f64>,
    /// `bytes_per_s`, as a multiple of that of `normal`.
    pub rate_of_normal: Option<f64>,
    /// Bytes per CPU time of the server, as a multiple of that of `normal`.
    pub cpu_efficiency_of_normal: Option<f64>,
}

/// Compares rows of one size with that of `normal`, if there is one.
pub fn compare(rows: &mut [Row]) {
    let Some(normal) = rows.iter().find(|row| row.datapath == "normal").cloned() else { return };
    for row in rows {
        row.rate_of_normal = Some(row.bytes_per_s / normal.bytes_per_s);
        let costs = normal.server_cpu_ns_per_byte.zip(row.server_cpu_ns_per_byte);
        row.cpu_efficiency_of_normal = costs.map(|(theirs, own)| theirs / own);
    }
}

/// Prints rows as they come.
pub struct Table {
    json: bool,
    titled: Option<&'static str>,
}

impl Table {
    pub fn new(json: bool) -> Table {
        Table { json, titled: None }
    }

    pub fn print(&mut self, row: &Row) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let line = serde_json::to_string(row).map_err(io::Error::other)?;
            writeln!(out, "{line}")?;
            return out.flush();
        }
        if self.titled != Some(row.experiment) {
            self.titled = Some(row.experiment);
            writeln!(
                out,
                "{:<8} {:<9} {:>6} {:>8} {:>8} {:>9} {:>12} {:>10} {:>9} {:>10}",
                "what",
                "datapath",
                "size",
                "file",
                "limit",
                "MB/s",
                "srv ns/byte",
                "disk/byte",
                "x normal",
                "x normal/CPU",
            )?;
        }
        let number = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".into(),
        };
        writeln!(
            out,
            "{:<8} {:<9} {:>6} {:>8} {:>8} {:>9.1} {:>12} {:>10} {:>9} {:>10}",
            row.experiment,
            row.datapath,
            size_text(row.size),
            size_text(row.file_bytes),
            row.limit_bytes.map_or_else(|| "-".into(), size_text),
            row.bytes_per_s / 1e6,
            number(row.server_cpu_ns_per_byte, 4),
            number(row.disk_bytes_per_byte, 3),
            number(row.rate_of_normal, 2),
            number(row.cpu_efficiency_of_normal, 2),
        )?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(datapath: &'static str, bytes_per_s: f64, cpu: f64) -> Row {
        Row {
            experiment: "cached",
            datapath,
            size: 4096,
            file_bytes: 1 << 20,
            limit_bytes: None,
            bytes_per_s,
            server_cpu_ns_per_byte: Some(cpu),
            disk_bytes_per_byte: None,
            rate_of_normal: None,
            cpu_efficiency_of_normal: None,
        }
    }

    #[test]
    fn rows_are_multiples_of_normal() {
        let mut rows = [row("unifier", 300.0, 1.0), row("normal", 200.0, 1.5)];
        compare(&mut rows);
        assert_eq!(rows[0].rate_of_normal, Some(1.5));
        assert_eq!(rows[0].cpu_efficiency_of_normal, Some(1.5));
        assert_eq!(rows[1].rate_of_normal, Some(1.0));
        let mut alone = [row("mmap", 1.0, 1.0)];
        compare(&mut alone);
        assert_eq!(alone[0].rate_of_normal, None);
    }
}
