//! `dafs bench postmark`: many small files.

use std::ffi::OsString;

use dafs_bench::postmark::{self, PostmarkOptions};
use dafs_bench::target::{Memory, ReadPath};
use dafs_bench::{Report, Wait};

use super::target;
use crate::connect::ConnectArgs;
use crate::failure::{Cause, Failure};
use crate::interrupt;
use crate::progress::Progress;
use dafs_fabric::units::size;

/// Measure transactions on many small files, as PostMark does.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench postmark dafs://localhost/\n  \
    dafs bench postmark /mnt/nfs --size 4k,16k,64k --json\n\n\
    A mixed transaction creates or removes a file, then reads or writes a whole one; a\n\
    read-only one reads a whole one. ops_per_s counts transactions.")]
pub struct Args {
    /// A URL or a path: a directory.
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Bytes of each file.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "4k,16k,64k")]
    size: Vec<u64>,
    /// Files to begin with.
    #[arg(long, default_value_t = 200)]
    files: u64,
    /// Transactions of each run.
    #[arg(long, default_value_t = 60_000)]
    transactions: u64,
    /// How both ends wait: polled, sleeping, adaptive.
    #[arg(long, value_delimiter = ',', default_value = "polled,sleeping")]
    wait: Vec<Wait>,
    /// One JSON object per row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.files < 2 || args.size.contains(&0) {
        return Err(Failure::usage("at least 2 files of at least 1 byte are needed"));
    }
    let (mut target, _) =
        target::open(&args.connect, &args.target, (false, Memory::Shared, ReadPath::RpcDirect))?;
    let fail = |error| target::failure(args.target.display(), error);
    let progress = Progress::start(true);
    let mut report = Report::new(args.json);
    target.set_up(None, interrupt::flag()).map_err(fail)?;
    let waits = if target.has_waits() { &args.wait[..] } else { &[Wait::Sleeping] };
    for read_only in [false, true] {
        for &size in &args.size {
            for &wait in waits {
                let options = PostmarkOptions {
                    read_only,
                    size: usize::try_from(size).unwrap_or(usize::MAX),
                    files: args.files,
                    transactions: args.transactions,
                    wait,
                };
                let kind = if read_only { "read-only" } else { "mixed" };
                progress.text(&format!("{kind}, {size} bytes, {wait}"));
                let point = postmark::run(target.as_mut(), &options, interrupt::flag());
                if interrupt::requested() {
                    drop(target);
                    return Err(Failure::about("", Cause::Interrupted));
                }
                progress.pause(|| report.print(&point.map_err(fail)?).map_err(Failure::from))?;
            }
        }
    }
    target.clean_up().map_err(fail)
}
