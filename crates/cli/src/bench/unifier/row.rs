//! What comes out: a row per measurement.

use dafs_bench::size_text;
use serde::Serialize;

use crate::bench::table::{TableRow, number};

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

impl TableRow for Row {
    fn experiment(&self) -> &'static str {
        self.experiment
    }

    fn title() -> String {
        format!(
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
        )
    }

    fn line(&self) -> String {
        format!(
            "{:<8} {:<9} {:>6} {:>8} {:>8} {:>9.1} {:>12} {:>10} {:>9} {:>10}",
            self.experiment,
            self.datapath,
            size_text(self.size),
            size_text(self.file_bytes),
            self.limit_bytes.map_or_else(|| "-".into(), size_text),
            self.bytes_per_s / 1e6,
            number(self.server_cpu_ns_per_byte, 4),
            number(self.disk_bytes_per_byte, 3),
            number(self.rate_of_normal, 2),
            number(self.cpu_efficiency_of_normal, 2),
        )
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
