//! `dafs bench unifier`: the cache that is the network's memory, beside other data paths.

mod cached;
mod cgroup;
mod reread;
mod row;
mod served;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use dafs_bench::{Wait, size_text};
use dafs_server::DataPath;

use super::plot::{Line, Plot, draw};
use super::table::Table;
use crate::failure::{Cause, Failure};
use crate::interrupt;
use crate::progress::Progress;
use dafs_fabric::units::size;
use row::Row;

/// Measure the server's data paths beside each other, on servers that it starts itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench unifier /srv/scratch\n  \
    dafs bench unifier /srv/scratch --only cached --size 64k,1m --datapath normal,unifier\n  \
    dafs bench unifier /srv/scratch --only reread --limit 1g --json     as root\n  \
    dafs bench unifier /srv/scratch --plot /tmp/plots\n\n\
    cached: a file that the memory holds is read again and again, by the size of an access.\n\
    The data paths are measured by turns. reread: a file is read from its beginning to its\n\
    end, again and again, by a server whose memory, page cache included, is limited by a\n\
    cgroup; needs root. Files of half to one and a half of that limit are tried.\n\n\
    Data paths: unifier, the server's own cache, which the network sends from; normal, read(2)\n\
    into a buffer and send; mmap, sends from mapped files; sendfile, sendfile(2). See dafs\n\
    serve --help. Each has a server of one worker thread, which is this same binary, over a\n\
    directory in DIR that is removed at the end.\n\n\
    With --json each row is an object: experiment, datapath, size, file_bytes, limit_bytes,\n\
    bytes_per_s (median of the stretches or passes), server_cpu_ns_per_byte,\n\
    disk_bytes_per_byte (read from disks for each byte that the client read), rate_of_normal\n\
    and cpu_efficiency_of_normal (above 1: better than normal).")]
pub struct Args {
    /// A directory for the files, on a disk.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// One of the experiments.
    #[arg(long, value_enum)]
    only: Option<Experiment>,
    /// Data paths: unifier, normal, mmap, sendfile.
    #[arg(long, value_delimiter = ',', default_value = "normal,mmap,sendfile,unifier")]
    datapath: Vec<DataPath>,
    /// cached: bytes of an access.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "4k,16k,64k,256k,1m")]
    size: Vec<u64>,
    /// cached: bytes of the file.
    #[arg(long, value_parser = size, default_value = "64m")]
    file_size: u64,
    /// cached: accesses under way.
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// cached: how both ends wait: polled, sleeping, adaptive.
    #[arg(long, default_value = "sleeping")]
    wait: Wait,
    /// cached: time per row (2, 500ms, 1m).
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    seconds: Duration,
    /// reread: bytes of memory of the server and its page cache.
    #[arg(long, value_parser = size, default_value = "512m")]
    limit: u64,
    /// reread: bytes of the file, in percent of the limit.
    #[arg(long, value_delimiter = ',', default_value = "50,75,85,100,125,150")]
    percent: Vec<u64>,
    /// How the server of `unifier` uses the disk: auto, direct or buffered (see dafs serve).
    #[arg(long, value_parser = ["auto", "direct", "buffered"], default_value = "auto")]
    disk: String,
    /// Draw the figures in this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// One JSON object per row.
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Reads of what is in memory.
    Cached,
    /// Reads of a file that is larger than memory, or nearly so.
    Reread,
}

impl Args {
    fn wants(&self, experiment: Experiment) -> bool {
        self.only.is_none_or(|only| only == experiment)
    }

    fn check(&self) -> Result<(), Failure> {
        if !self.directory.is_dir() {
            let text = Cause::from("not a directory");
            return Err(Failure::about(self.directory.display(), text));
        }
        let largest = self.size.iter().copied().max().unwrap_or(0);
        if self.size.contains(&0) || largest > 1 << 20 || self.file_size < largest {
            return Err(Failure::usage("--size: 1 to 1m, and not more than --file-size"));
        }
        if !(1..=64).contains(&self.depth) {
            return Err(Failure::usage("--depth: 1 to 64"));
        }
        if self.limit < 64 << 20 || self.percent.iter().any(|p| !(1..=1000).contains(p)) {
            return Err(Failure::usage("--limit: at least 64m; --percent: 1 to 1000"));
        }
        Ok(())
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    if let Some(directory) = &args.plot {
        let about = |error| Failure::about(directory.display(), Cause::Local(error));
        std::fs::create_dir_all(directory).map_err(about)?;
    }
    let progress = Progress::start(true);
    let mut table = Table::new(args.json);
    let mut rows = Vec::new();
    let mut put = |row: &Row| -> Result<(), Failure> {
        rows.push(row.clone());
        Ok(progress.pause(|| table.print(row))?)
    };
    if args.wants(Experiment::Cached) {
        cached::run(args, &progress, &mut put)?;
    }
    if args.wants(Experiment::Reread) {
        reread::run(args, &progress, &mut put)?;
    }
    match &args.plot {
        Some(directory) => plots(directory, &rows),
        None => Ok(()),
    }
}

fn stopped() -> Result<(), Failure> {
    match interrupt::requested() {
        true => Err(Failure::about("", Cause::Interrupted)),
        false => Ok(()),
    }
}

fn plots(directory: &Path, rows: &[Row]) -> Result<(), Failure> {
    let of =
        |what| -> Vec<Row> { rows.iter().filter(|row| row.experiment == what).cloned().collect() };
    let (cached, reread) = (of("cached"), of("reread"));
    let rate = |row: &Row| Some(row.bytes_per_s / 1e6);
    if !cached.is_empty() {
        let plot = Plot {
            file: "cached-bandwidth.svg",
            title: "Cached reads",
            x: "access size (bytes)",
            y: "bandwidth (MB/s)",
            label: size_text,
        };
        draw(directory, &plot, &lines(&cached, |row| row.size, rate))?;
        let plot = Plot {
            file: "cached-server-cpu.svg",
            title: "Cached reads: CPU time of the server",
            x: "access size (bytes)",
            y: "ns per byte",
            label: size_text,
        };
        let cpu = |row: &Row| row.server_cpu_ns_per_byte;
        draw(directory, &plot, &lines(&cached, |row| row.size, cpu))?;
    }
    if !reread.is_empty() {
        let plot = Plot {
            file: "reread-bandwidth.svg",
            title: "Files read again, with limited memory",
            x: "file size (bytes)",
            y: "bandwidth (MB/s)",
            label: size_text,
        };
        draw(directory, &plot, &lines(&reread, |row| row.file_bytes, rate))?;
    }
    Ok(())
}

/// A line for each data path.
fn lines(rows: &[Row], at: impl Fn(&Row) -> u64, value: impl Fn(&Row) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(point) = value(row).map(|value| (at(row), value)) else { continue };
        match lines.iter_mut().find(|line| line.name == row.datapath) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: row.datapath.to_owned(), points: vec![point] }),
        }
    }
    lines
}
