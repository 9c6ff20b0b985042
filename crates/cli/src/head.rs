//! `dafs head`: the beginning of files.

use dafs_client::OpenOptions;
use dafs_fabric::units::size;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Cause, Failure};
use crate::output::Output;
use crate::{interrupt, progress};

/// Bytes that are asked for at a time.
pub const PIECE_BYTES: usize = 64 << 10;

/// Print the beginning of files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs head dafs://localhost/notes.txt\n  \
    dafs head -n 1 dafs://localhost/tables/a.csv dafs://localhost/tables/b.csv\n  \
    dafs head -c 1m dafs://localhost/disk.img > first.img\n\n\
    Several files are announced by a line with their URL: not with -q, and one, too, with -v.")]
pub struct Args {
    /// Lines.
    #[arg(
        short = 'n',
        long,
        value_name = "NUMBER",
        default_value_t = 10,
        conflicts_with = "bytes"
    )]
    lines: u64,
    /// Bytes, not lines (100, 4k, 1m).
    #[arg(short = 'c', long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to print.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    for (index, url) in args.urls.iter().enumerate() {
        let printed = connections.remote(url).and_then(|remote| {
            title(&mut out, url, index, args.urls.len())?;
            print(args, &remote, &mut out)
        });
        out.flush()?;
        match printed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

/// The line before one of several files.
///
/// # Errors
/// Standard output's.
pub fn title(out: &mut Output, url: &str, index: usize, count: usize) -> Result<(), Failure> {
    let wanted = (count > 1 || progress::is_verbose()) && !progress::is_quiet();
    if wanted {
        let before = if index == 0 { "" } else { "\n" };
        out.line(&format!("{before}==> {url} <=="))?;
    }
    Ok(())
}

fn print(args: &Args, remote: &Remote, out: &mut Output) -> Result<(), Failure> {
    let fail = |error| remote.failure(&remote.path, error);
    let file = remote.session.open(&remote.path, OpenOptions::read()).map_err(fail)?;
    let (mut lines, mut bytes) = (args.lines, args.bytes.unwrap_or(u64::MAX));
    if args.bytes.is_some() {
        lines = u64::MAX;
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while lines > 0 && bytes > 0 {
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        let wanted = usize::try_from(bytes).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let read = file.read_at(&mut piece[..wanted], offset).map_err(fail)?;
        if read == 0 {
            break;
        }
        let mut kept = 0;
        for byte in &piece[..read] {
            kept += 1;
            lines -= u64::from(*byte == b'\n' && args.bytes.is_none());
            if lines == 0 {
                break;
            }
        }
        out.bytes(&piece[..kept])?;
        offset += kept as u64;
        bytes -= kept as u64;
    }
    file.close().map_err(fail)?;
    Ok(())
}
