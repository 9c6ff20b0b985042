//! `dafs find`: names in a tree.

use dafs_fabric::units::size;
use dafs_protocol::FileKind;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output::{FileObject, Output};
use crate::tree::{Event, Node, Walk};
use crate::{place, text};

/// Print the URLs of files in a tree.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs find dafs://localhost/ --name '*.jpg'\n  \
    dafs find dafs://localhost/logs --type f --larger 100m\n  \
    dafs find dafs://localhost/ --type l --paths -0 | xargs -0 -n1 echo")]
pub struct Args {
    /// Only names that match this shell pattern.
    #[arg(long, value_name = "PATTERN")]
    name: Option<std::ffi::OsString>,
    /// Only f (files), d (directories), l (symlinks), p, s, c or b.
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    kind: Option<FileKind>,
    /// Only files of more than so many bytes (4k, 10m, 1g).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    larger: Option<u64>,
    /// How far to descend; 0 is URL itself.
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// Print paths below the export's root, as bytes, not URLs.
    #[arg(long)]
    paths: bool,
    /// End each with a NUL byte, not a newline.
    #[arg(short = '0', long)]
    null: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Where to begin.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

fn kind(text: &str) -> Result<FileKind, String> {
    match text {
        "f" => Ok(FileKind::File),
        "d" => Ok(FileKind::Directory),
        "l" => Ok(FileKind::Symlink),
        "p" => Ok(FileKind::Fifo),
        "s" => Ok(FileKind::Socket),
        "c" => Ok(FileKind::CharDevice),
        "b" => Ok(FileKind::BlockDevice),
        _ => Err("expected one of f, d, l, p, s, c, b".into()),
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    for url in &args.urls {
        let found = connections.remote(url).and_then(|remote| find(args, &remote, &mut out));
        out.flush()?;
        match found {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn find(args: &Args, remote: &Remote, out: &mut Output) -> Result<(), Failure> {
    let mut walk = Walk::new(remote, args.maxdepth.unwrap_or(usize::MAX))?;
    while let Some(event) = walk.next()? {
        let Event::Entry(node) = event else { continue };
        if !wanted(args, &node) {
            continue;
        }
        if args.json {
            out.json(&FileObject::new(remote, &node.path, &node.attr))?;
        } else if args.paths && args.null {
            out.bytes(&node.path)?;
            out.bytes(b"\0")?;
        } else if args.paths {
            out.line(&text::escape(&node.path))?;
        } else if args.null {
            out.bytes(remote.name(&node.path).as_bytes())?;
            out.bytes(b"\0")?;
        } else {
            out.line(&remote.name(&node.path))?;
        }
    }
    Ok(())
}

fn wanted(args: &Args, node: &Node) -> bool {
    let name = place::name(&node.path);
    args.name.as_ref().is_none_or(|p| text::matches(p.as_encoded_bytes(), name))
        && args.kind.is_none_or(|kind| kind == node.attr.kind)
        && args.larger.is_none_or(|bytes| node.attr.size > bytes)
}
