//! `dafs du`: how much space trees take.

use std::collections::HashSet;

use dafs_protocol::FileKind;
use serde::Serialize;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output::Output;
use crate::text;
use crate::tree::{Event, Node, Walk};

/// Print how much space directories take, with all that is in them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        dafs du -sh dafs://localhost/photos\n  \
        dafs du --apparent-size --json dafs://localhost/\n\n\
        Sizes are in KiB, or in bytes with --json. A file with several names counts once.")]
pub struct Args {
    /// Only the sum of each URL.
    #[arg(short, long)]
    summarize: bool,
    /// Files too, not only directories.
    #[arg(short, long)]
    all: bool,
    /// Sizes with units.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// The sizes of files, not the space they take.
    #[arg(long)]
    apparent_size: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to sum up.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

#[derive(Serialize)]
struct Usage {
    url: String,
    bytes: u64,
    files: u64,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    for url in &args.urls {
        let summed = connections.remote(url).and_then(|remote| sum(args, &remote, &mut out));
        out.flush()?;
        match summed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn sum(args: &Args, remote: &Remote, out: &mut Output) -> Result<(), Failure> {
    let mut walk = Walk::new(remote, usize::MAX)?;
    // Bytes and files of each directory from the start to where the walk is.
    let mut sums: Vec<(u64, u64)> = Vec::new();
    let mut seen = HashSet::new();
    while let Some(event) = walk.next()? {
        match event {
            Event::Entry(node) => {
                let attr = &node.attr;
                let is_directory = attr.kind == FileKind::Directory;
                let first =
                    is_directory || attr.links < 2 || seen.insert((attr.device, attr.inode));
                let size = if args.apparent_size { attr.size } else { attr.allocated };
                let own = (if first { size } else { 0 }, u64::from(first));
                if is_directory {
                    sums.push(own);
                    continue;
                }
                if let Some(dir) = sums.last_mut() {
                    *dir = (dir.0 + own.0, dir.1 + own.1);
                }
                if node.depth == 0 || (args.all && !args.summarize) {
                    print(args, remote, &node, own, out)?;
                }
            }
            Event::Leave(node) => {
                let own = sums.pop().unwrap_or_default();
                if let Some(parent) = sums.last_mut() {
                    *parent = (parent.0 + own.0, parent.1 + own.1);
                }
                if node.depth == 0 || !args.summarize {
                    print(args, remote, &node, own, out)?;
                }
            }
        }
    }
    Ok(())
}

fn print(
    args: &Args,
    remote: &Remote,
    node: &Node,
    (bytes, files): (u64, u64),
    out: &mut Output,
) -> Result<(), Failure> {
    if args.json {
        return Ok(out.json(&Usage { url: remote.name(&node.path), bytes, files })?);
    }
    let size =
        if args.human_readable { text::human(bytes) } else { bytes.div_ceil(1024).to_string() };
    Ok(out.line(&format!("{size}\t{}", remote.name(&node.path)))?)
}
