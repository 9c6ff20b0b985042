//! The figures, with the paper's axes: one file for each network, and way to wait where there are several.

use std::path::Path;

use dafs_bench::optimistic::Row;
use dafs_bench::{Wait, size_text};

use crate::bench::plot::{Line, Plot, draw};
use crate::failure::Failure;

/// What is drawn of which rows.
struct Figure {
    experiment: &'static str,
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    label: fn(u64) -> String,
    at: fn(&Row) -> Option<u64>,
    value: fn(&Row) -> Option<f64>,
}

const BLOCK: &str = "block size (bytes)";
const THROUGHPUT: &str = "throughput (MB/s)";

const FIGURES: [Figure; 10] = [
    Figure {
        title: "Client bandwidth with blocks under way ([ODAFS] figure 3)",
        ..of_sizes("figure-3", "figure-3", "read throughput (MB/s)", rate)
    },
    Figure {
        title: "CPU utilization of the client ([ODAFS] figure 4)",
        ..of_sizes("figure-3", "figure-4", "client CPU (%)", client_cpu)
    },
    Figure {
        title: "PostMark, read-only ([ODAFS] figure 6)",
        x: "client cache hit ratio (%)",
        ..of_percents("figure-6", "figure-6", THROUGHPUT, rate)
    },
    Figure {
        title: "Two clients of a server ([ODAFS] figure 7)",
        x: "cache block size (bytes)",
        ..of_sizes("figure-7", "figure-7", THROUGHPUT, rate)
    },
    Figure {
        title: "Two clients of a server, by a link ([ODAFS] figure 7)",
        x: "cache block size (bytes)",
        ..of_sizes("figure-7-link", "figure-7-link", THROUGHPUT, rate)
    },
    Figure {
        title: "Few remote reads",
        x: "client cache hit ratio (%)",
        ..of_percents("limit-client-cache", "limit-client-cache", GAIN, gain)
    },
    Figure {
        title: "A server that caches a part",
        x: "cached part of the file (%)",
        ..of_percents("limit-server-cache", "limit-server-cache", GAIN, gain)
    },
    Figure {
        title: "Files that are not exported",
        x: "files not exported (%)",
        ..of_percents("limit-not-exported", "limit-not-exported", GAIN, gain)
    },
    Figure {
        title: "Writes among the reads",
        x: "writes (%)",
        ..of_percents("limit-writes", "limit-writes", GAIN, gain)
    },
    Figure {
        title: "A network card that knows where a part of the pages is",
        x: "pages whose translations it has (%)",
        ..of_percents("limit-translation-cache", "limit-translation-cache", GAIN, gain)
    },
];

const GAIN: &str = "gain over asking the server (%)";

const fn of_sizes(
    experiment: &'static str,
    file: &'static str,
    y: &'static str,
    value: fn(&Row) -> Option<f64>,
) -> Figure {
    let (title, at, label) = ("", size as fn(&Row) -> Option<u64>, size_text as fn(u64) -> String);
    Figure { experiment, file, title, x: BLOCK, y, label, at, value }
}

const fn of_percents(
    experiment: &'static str,
    file: &'static str,
    y: &'static str,
    value: fn(&Row) -> Option<f64>,
) -> Figure {
    let (title, at, label) = ("", percent as fn(&Row) -> Option<u64>, plain as fn(u64) -> String);
    Figure { experiment, file, title, x: "", y, label, at, value }
}

fn size(row: &Row) -> Option<u64> {
    row.size
}

fn percent(row: &Row) -> Option<u64> {
    row.percent.map(|percent| percent as u64)
}

fn plain(at: u64) -> String {
    at.to_string()
}

fn rate(row: &Row) -> Option<f64> {
    row.bytes_per_s.map(|rate| rate / 1e6)
}

fn gain(row: &Row) -> Option<f64> {
    row.gain.map(|gain| 100.0 * gain)
}

fn client_cpu(row: &Row) -> Option<f64> {
    Some(row.client_cpu_us_per_op? * row.ops_per_s? / 1e4)
}

/// The line that a row belongs to.
fn name(row: &Row) -> String {
    match (row.wait, row.server_wait) {
        (Some(wait), Some(server)) if wait != server => {
            format!("{}, server {}", row.path, server.name())
        }
        _ => row.path.to_owned(),
    }
}

/// Draws all of which there are rows.
///
/// # Errors
/// A file cannot be written.
pub fn draw_all(directory: &Path, rows: &[Row]) -> Result<(), Failure> {
    for figure in &FIGURES {
        let own: Vec<&Row> =
            rows.iter().filter(|row| row.experiment == figure.experiment).collect();
        let mut kinds: Vec<(&str, Option<Wait>)> = Vec::new();
        for row in &own {
            let kind = (row.transport.as_str(), row.wait);
            if row.ops.is_some() && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (transport, wait) in kinds {
            let of_kind =
                own.iter().filter(|row| (row.transport.as_str(), row.wait) == (transport, wait));
            let wait = wait.map_or("", Wait::name);
            let file = format!("{}-{transport}-{wait}.svg", figure.file);
            let title = format!("{}, {transport}, {wait}", figure.title);
            let plot =
                Plot { file: &file, title: &title, x: figure.x, y: figure.y, label: figure.label };
            draw(directory, &plot, &lines(figure, of_kind.copied()))?;
        }
    }
    Ok(())
}

fn lines<'r>(figure: &Figure, rows: impl Iterator<Item = &'r Row>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let (Some(at), Some(value)) = ((figure.at)(row), (figure.value)(row)) else { continue };
        let name = name(row);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((at, value)),
            None => lines.push(Line { name, points: vec![(at, value)] }),
        }
    }
    lines
}
