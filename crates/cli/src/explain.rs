//! `dafs explain`: how reads of a file go, and why not in a better way.

use dafs_client::{File, OpenOptions, OptimisticWay};
use serde::Serialize;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::Failure;
use crate::output::Output;
use crate::text;
use crate::transport::Transport;

/// Tell how reads of a file go, and why not in a better way.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs explain dafs://localhost/data.bin\n  \
    dafs explain --json 'dafs://localhost/data.bin?transport=tcp' | jq .why_not_optimistic\n\n\
    Optimistic reads are those that need no request: trusted, by shared memory, they copy cached blocks out of the\n\
    server's memory; checked, over TCP, they show a reference that the server checks at each read.")]
pub struct Args {
    /// One JSON object per file.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Which files.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

#[derive(Serialize)]
struct Told<'a> {
    url: &'a str,
    #[serde(flatten)]
    transport: Transport,
    size: u64,
    /// Of it, in the server's cache.
    cached_bytes: u64,
    /// Small reads of what is cached do without a request.
    optimistic: bool,
    optimistic_mode: Option<&'static str>,
    why_not_optimistic: Option<&'static str>,
}

/// Runs the command.
///
/// # Errors
/// A file that cannot be opened, or read.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    for url in &args.urls {
        let remote = connections.remote(url)?;
        let fail = |error| remote.failure(&remote.path, error);
        let file = remote.session.open(&remote.path, OpenOptions::read()).map_err(fail)?;
        let cached_bytes = cached(&remote, &file)?;
        let optimistic = file.optimistic_way().map_err(fail)?;
        let info = remote.session.info();
        let told = Told {
            url,
            transport: Transport::told(&info),
            size: file.attr().map_err(fail)?.size,
            cached_bytes,
            optimistic: optimistic.is_ok(),
            optimistic_mode: optimistic.ok().map(OptimisticWay::name),
            why_not_optimistic: optimistic.err(),
        };
        match args.json {
            true => out.json(&told)?,
            false => print(&told, &mut out)?,
        }
        out.flush()?;
    }
    Ok(())
}

fn cached(remote: &Remote, file: &File) -> Result<u64, Failure> {
    let (mut sum, mut at) = (0, Some(0));
    while let Some(offset) = at {
        let (part, _) =
            file.cache_query(offset, 0).map_err(|error| remote.failure(&remote.path, error))?;
        sum += part.clean_bytes + part.dirty_bytes;
        at = part.next;
    }
    Ok(sum)
}

fn print(told: &Told<'_>, out: &mut Output) -> Result<(), Failure> {
    let (size, cached) = (text::human(told.size), text::human(told.cached_bytes));
    out.line(told.url)?;
    out.line(&format!("  {size}, of which the server has {cached} in its cache"))?;
    out.line(&format!("  requests go by {}", told.transport.transport))?;
    if let Some(line) = told.transport.line() {
        out.line(&format!("    {line}"))?;
    }
    match told.why_not_optimistic {
        None => {
            out.line(match told.optimistic_mode {
                Some("checked") => {
                    "  reads up to 64 KiB of what is cached: by a reference, without a request (optimistic, checked)"
                }
                _ => "  reads up to 64 KiB of what is cached: without the server (optimistic, trusted)",
            })?;
            out.line("  others: the server is asked")?;
        }
        Some(why) => {
            out.line("  reads: the server is asked")?;
            out.line(&format!("    not optimistic: {why}"))?;
        }
    }
    Ok(())
}
