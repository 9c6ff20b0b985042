//! `dafs bench optimistic`: the experiments of Optimistic DAFS.

mod columns;
mod figures;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use dafs_bench::Wait;
use dafs_bench::optimistic::{
    self, Bare, Connect, Experiment, OptimisticOptions, Place as BenchPlace, Row, Told,
};
use dafs_client::Url;
use dafs_fabric::units::size;

use super::table::Table;
use super::{raw, target};
use crate::connect::ConnectArgs;
use crate::failure::{Cause, Failure};
use crate::interrupt;
use crate::place;
use crate::progress::{self, Progress};

/// Measure reads without the server beside reads that ask it: the experiments of Optimistic DAFS.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    taskset -c 1 dafs serve /srv/data --workers 1 --arena 128m     for figure 7: a processor of its own\n  \
    dafs bench optimistic dafs://localhost/ --plots /tmp/plots\n  \
    dafs bench optimistic 'dafs://localhost/?transport=shm' 'dafs://localhost/?transport=tcp' --json\n  \
    dafs bench optimistic dafs://localhost/ --only table-3,figure-6 --wait sleeping\n  \
    dafs bench optimistic dafs://localhost/ --only figure-7 --cpu 0 --link 2g\n\n\
    Paths: rpc-inline (the server is asked; what comes to memory of the connection is copied by the client), rpc-direct\n\
    (the server is asked, and places the data), optimistic (the client reads the server's cache by itself,\n\
    and asks for what it does not find). Where a network has no such reads the optimistic row has no figures:\n\
    null, never zero. All are measured by turns, with all files in URL/.dafs-bench-optimistic-PID-NETWORK, which is removed.\n\n\
    table-2   round trips (p50) and bandwidth of bare sockets, or of two rings in shared memory, and of a\n          \
              request without work\n\
    table-3   response time of reads of 4 KiB, one after the other, of a file that the server caches: to where the data\n          \
              comes first, and to a block cache of the client; messages, copies and system calls of them are table 1\n\
    figure-3  one client with 8 blocks under way, 4k to 512k: bandwidth, and (figure 4) the client's processor\n\
    figure-6  PostMark, read-only: files of 4 KiB, each kept open, so that the open and the close of a transaction\n          \
              are looks at a table, as an open delegation makes them; the client's cache finds --hit-ratio\n          \
              of them. figure-6-opens: with an open and a close by the server in each transaction\n\
    figure-7  two clients on the processor --cpu read a file by 256 KiB, cut into blocks of 4k to 64k; they\n          \
              sleep, and the server sleeps, or polls; with --link once more by a link of so many bits a second\n          \
              (figure-7-link). Give the server a processor of its own\n\
    limit-*   what the gain depends on: hits of the client's cache; a file larger than the server's cache; files\n          \
              not exported; writes among the reads; pages whose translations the server's network card has, which is\n          \
              emulated: a read of another one waits 9 us, as in the paper; all in percent\n\
    revoke    from the call that closes a file, or its session, to the first read that is refused, and worst_us: how late\n          \
              after that call a read began that succeeded\n\n\
    With --json, each row is an object: experiment, transport, path, to (memory or cache; what of table-2\n\
    and revoke), wait, server_wait, size, percent (what the row is about), link_bytes_per_s, seconds,\n\
    ops, ops_per_s, bytes_per_s (medians of the stretches), p50_us, p99_us, gain (ops_per_s over rpc-direct's, of pairs of stretches:\n\
    0.34 is 34 % more; in figure 7 over that with a polling server), client_hit_ratio (of the client's cache, measured),\n\
    optimistic_ratio (of other reads, how many needed no server), client_cpu_us_per_op, server_cpu_us_per_op,\n\
    server_requests_per_op, messages_per_op, syscalls_per_op (both sides), client_copies_per_byte and\n\
    server_copies_per_byte (in user space), worst_us. What was not measured is null.")]
pub struct Args {
    /// Directories of servers; a network is chosen by ?transport=.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Some of: table-2, table-3, figure-3, figure-6, figure-6-opens, figure-7, limit-client-cache, limit-server-cache,
    /// limit-not-exported, limit-writes, limit-translation-cache, revoke.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Experiment>,
    /// How both ends wait in table 3 and figure 6, and, the first of them, in the limits: polled, sleeping, adaptive.
    #[arg(long, value_delimiter = ',', default_value = "polled,sleeping")]
    wait: Vec<Wait>,
    /// Bytes of the large file, which the server must have room for in its cache.
    #[arg(long, value_parser = size, default_value = "64m")]
    file_size: u64,
    /// Files of PostMark.
    #[arg(long, default_value_t = 2000)]
    files: usize,
    /// Percent of PostMark's reads that the client's cache finds.
    #[arg(long, value_delimiter = ',', default_value = "25,50,75")]
    hit_ratio: Vec<u64>,
    /// Time per row (2, 500ms, 1m).
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    seconds: Duration,
    /// The processor of the two clients of figure 7 [default: the first that may be used].
    #[arg(long)]
    cpu: Option<usize>,
    /// Figure 7 once more by a link of so many bits a second, as 2g.
    #[arg(long, value_parser = bits, value_name = "BITS")]
    link: Option<u64>,
    /// Draw the figures in this directory, as SVG, with the paper's axes.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// One JSON object per row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Bits a second, in powers of ten as networks have them.
fn bits(text: &str) -> Result<u64, String> {
    let bad = || "expected bits a second, such as 2g or 800m".to_owned();
    let units = [('g', 1_000_000_000), ('m', 1_000_000), ('k', 1000)];
    let found = units.iter().find_map(|(unit, many)| Some((text.strip_suffix(*unit)?, *many)));
    let (number, many) = found.unwrap_or((text, 1));
    let bits = number.parse::<u64>().ok().and_then(|number| number.checked_mul(many));
    bits.filter(|bits| *bits >= 8000).ok_or_else(bad)
}

impl Args {
    fn options(&self) -> Result<OptimisticOptions, Failure> {
        if self.file_size < 1 << 20 || !self.file_size.is_multiple_of(1 << 20) {
            return Err(Failure::usage("--file-size: whole megabytes, at least 1m"));
        }
        if !(100..=20_000).contains(&self.files) {
            return Err(Failure::usage("--files: 100 to 20000"));
        }
        if self.hit_ratio.iter().any(|percent| *percent > 100) {
            return Err(Failure::usage("--hit-ratio: 0 to 100"));
        }
        let all = Experiment::ALL.map(|(experiment, _)| experiment);
        Ok(OptimisticOptions {
            experiments: raw::or(&self.only, &all),
            waits: self.wait.clone(),
            file_bytes: self.file_size,
            files: self.files,
            percents: self.hit_ratio.clone(),
            time: self.seconds,
            cpu: self.cpu,
            link_bytes_per_s: self.link.map(|bits| bits / 8),
        })
    }

    /// A directory at the server, and whether that is on this machine.
    fn place(&self, url: &Url) -> Result<(BenchPlace, bool), Failure> {
        let here = self.connect.remote(url)?.is_local_host();
        let (args, at) = (self.connect.clone(), url.clone());
        let connect: Connect = Box::new(move |wish| {
            let mut options =
                args.options(&at).map_err(|failure| io::Error::other(failure.text))?;
            options.optimistic = wish.optimistic;
            options.wait = target::mode(wish.wait);
            args.session(&at, options).map_err(io::Error::from)
        });
        let path = place::clean(&url.path);
        let place = BenchPlace::new(connect, &path).map_err(|error| target::failure(url, error))?;
        Ok((place, here))
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = args.options()?;
    let urls: Result<Vec<Url>, Failure> = args
        .urls
        .iter()
        .map(|text| Url::parse(text).map_err(|error| Failure::about(text, error)))
        .collect();
    if let Some(directory) = &args.plots {
        let about = |error| Failure::about(directory.display(), Cause::Local(error));
        std::fs::create_dir_all(directory).map_err(about)?;
    }
    let progress = Progress::start(true);
    let (mut table, mut rows) = (Table::new(args.json), Vec::<Row>::new());
    let (say, note) = (|text: &str| progress.text(text), progress::notice);
    let told = Told { say: &say, note: &note };
    for url in urls? {
        let (place, here) = args.place(&url)?;
        let bare = if here && options.experiments.contains(&Experiment::Table2) {
            Some(match place.transport() {
                raw::SHM => Bare::Shm(raw::spawn_shm(64 << 20, &Bare::shm_rows())?),
                _ => Bare::Sockets(raw::spawn()?),
            })
        } else {
            None
        };
        let stop = interrupt::flag();
        let result = optimistic::run(&place, bare, &options, &told, stop, &mut |row| {
            rows.push(row.clone());
            progress.pause(|| table.print(row))
        });
        progress.text("removing files");
        drop(place);
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        result.map_err(|error| target::failure(&url, error))?;
    }
    match &args.plots {
        Some(directory) => figures::draw_all(directory, &rows),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_given_in_bits() {
        assert_eq!(bits("2g"), Ok(2_000_000_000));
        assert_eq!(bits("100000"), Ok(100_000));
        assert!(bits("fast").is_err() && bits("1").is_err() && bits("99999999999g").is_err());
    }
}
