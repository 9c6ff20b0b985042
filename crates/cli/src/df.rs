//! `dafs df`: free space.

use serde::Serialize;

use crate::connect::{ConnectArgs, Connections};
use crate::failure::{self, Failure};
use crate::output::Output;
use crate::text;

/// Print how much space is free on a server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        dafs df -h dafs://localhost/\n  \
        dafs df --json dafs://localhost/ | jq .bytes_available")]
pub struct Args {
    /// Sizes with units.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Exports, or anything in them.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

#[derive(Serialize)]
struct Space {
    url: String,
    bytes_total: u64,
    bytes_used: u64,
    bytes_available: u64,
    files_total: u64,
    files_free: u64,
    read_only: bool,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    if !args.json {
        out.line(&format!("{:>12} {:>12} {:>12} {:>4}  URL", "size", "used", "free", "use"))?;
    }
    for url in &args.urls {
        match connections.remote(url).and_then(|remote| {
            let path = &remote.path;
            let attr = remote.session.statfs(path).map_err(|e| remote.failure(path, e))?;
            Ok((remote.name(path), attr))
        }) {
            Ok((url, attr)) => print(args, url, &attr, &mut out)?,
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            Err(failure) => return Err(failure),
        }
        out.flush()?;
    }
    Ok(())
}

fn print(
    args: &Args,
    url: String,
    attr: &dafs_protocol::FsAttr,
    out: &mut Output,
) -> Result<(), Failure> {
    let used = attr.bytes_total.saturating_sub(attr.bytes_free);
    if args.json {
        return Ok(out.json(&Space {
            url,
            bytes_total: attr.bytes_total,
            bytes_used: used,
            bytes_available: attr.bytes_available,
            files_total: attr.files_total,
            files_free: attr.files_free,
            read_only: attr.read_only,
        })?);
    }
    let size = |bytes: u64| {
        if args.human_readable { text::human(bytes) } else { (bytes / 1024).to_string() }
    };
    let usable = used + attr.bytes_available;
    let percent = (used * 100).div_ceil(usable.max(1));
    let (total, used, free) = (size(attr.bytes_total), size(used), size(attr.bytes_available));
    let note = if attr.read_only { "  (read-only)" } else { "" };
    Ok(out.line(&format!("{total:>12} {used:>12} {free:>12} {percent:>3}%  {url}{note}"))?)
}
