//! Rows of this table, which has figures below a microsecond.

use std::io::{self, Write};

use serde::Serialize;

use super::{HugePages, ShmOptions};
use crate::point::{Point, number, size_text};
use crate::wait::Wait;

/// One row: a [`Point`], and where and on what it was measured.
#[derive(Debug, Clone, Serialize)]
pub struct ShmRow {
    /// What every benchmark has.
    #[serde(flatten)]
    pub point: Point,
    /// Bytes of the pool that data comes from.
    pub footprint: u64,
    /// Of the pieces that data goes in, where it goes in pieces.
    pub piece: Option<u64>,
    /// CPU of the client.
    pub client_cpu: Option<usize>,
    /// CPU of the server.
    pub server_cpu: Option<usize>,
    /// The share of the shared memory that is in huge pages, as the client maps it.
    pub client_huge_pages: f64,
    /// As the server maps it.
    pub server_huge_pages: f64,
}

impl ShmRow {
    /// Of what was measured with these options.
    pub fn new(point: Point, footprint: u64, options: &ShmOptions, huge: HugePages) -> ShmRow {
        let share = |bytes: usize| bytes as f64 / huge.of.max(1) as f64;
        let pieces = options.op == super::ShmOp::Bounce;
        ShmRow {
            point,
            footprint,
            piece: pieces.then_some(options.piece as u64),
            client_cpu: options.cpus.map(|(own, _)| own),
            server_cpu: options.cpus.filter(|_| !options.op.is_alone()).map(|(_, peer)| peer),
            client_huge_pages: share(huge.client),
            server_huge_pages: share(huge.server),
        }
    }
}

/// Prints rows on standard output as they come.
#[derive(Debug)]
pub struct ShmReport {
    json: bool,
    titled: bool,
}

impl ShmReport {
    /// One JSON object per line, or a table.
    pub fn new(json: bool) -> ShmReport {
        ShmReport { json, titled: false }
    }

    /// Prints one row.
    ///
    /// # Errors
    /// Standard output's.
    pub fn print(&mut self, row: &ShmRow) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let line = serde_json::to_string(row).map_err(io::Error::other)?;
            writeln!(out, "{line}")?;
            return out.flush();
        }
        if !self.titled {
            self.titled = true;
            writeln!(out, "{}", heading(row))?;
        }
        writeln!(out, "{}", line(row))?;
        out.flush()
    }
}

fn heading(row: &ShmRow) -> String {
    format!(
        "footprint {}, in huge pages: client {:.0} %, server {:.0} %\n\
         {:<12} {:>6} {:>5} {:<8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}",
        size_text(row.footprint),
        row.client_huge_pages * 100.0,
        row.server_huge_pages * 100.0,
        "op",
        "size",
        "depth",
        "wait",
        "cpus",
        "MB/s",
        "ops/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "cli us/op",
        "srv us/op",
        "sys/op",
    )
}

fn line(row: &ShmRow) -> String {
    let p = &row.point;
    let name = match row.piece {
        Some(piece) => format!("{} {}", p.op, size_text(piece)),
        None => p.op.clone(),
    };
    let cpus: Vec<_> = [row.client_cpu, row.server_cpu].into_iter().flatten().collect();
    let cpus: Vec<_> = cpus.iter().map(usize::to_string).collect();
    format!(
        "{:<12} {:>6} {:>5} {:<8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}",
        name,
        p.size.map_or_else(|| "-".to_owned(), size_text),
        p.depth.map_or_else(|| "-".to_owned(), |depth| depth.to_string()),
        p.wait.map_or("-", Wait::name),
        cpus.join(","),
        number(p.bytes_per_s.map(|v| v / 1e6), 1),
        number(p.ops_per_s, 0),
        number(p.p50_us, 2),
        number(p.p99_us, 2),
        number(p.p999_us, 2),
        number(p.client_cpu_us_per_op, 3),
        number(p.server_cpu_us_per_op, 3),
        number(p.syscalls_per_op, 2),
    )
}
