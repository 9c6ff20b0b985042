//! `dafs ln`: links.

use dafs_client::Url;
use dafs_protocol::{FileKind, Status};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::Failure;
use crate::{output, place};

/// Make hard and symbolic links.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs ln dafs://localhost/notes.txt dafs://localhost/same-notes.txt\n  \
    dafs ln -s v2 dafs://localhost/current        (what the link says is not a URL)")]
pub struct Args {
    /// A symbolic link: TARGET is what it says.
    #[arg(short, long)]
    symbolic: bool,
    /// Replace a file that has the new name.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What the link leads to: a URL, or any text with -s.
    #[arg(value_name = "TARGET")]
    target: std::ffi::OsString,
    /// The new name, or a directory to make it in.
    #[arg(value_name = "URL")]
    url: String,
}

/// Runs the command.
///
/// # Errors
/// It could not be made.
pub fn run(args: &Args) -> Result<(), Failure> {
    let target = args.target.as_encoded_bytes();
    if args.symbolic && args.target.to_str().is_some_and(Url::is_url) {
        return Err(Failure::usage("a symbolic link says a path, not a URL"));
    }
    let connections = Connections::new(&args.connect);
    let mut to = connections.remote(&args.url)?;
    let source = if args.symbolic {
        None
    } else {
        let text = args.target.to_str().ok_or_else(|| Failure::usage("TARGET is no URL"))?;
        Some(connections.remote(text)?)
    };
    let name = place::name(source.as_ref().map_or(target, |source| source.path.as_slice()));
    if to.session.stat(&to.path).is_ok_and(|attr| attr.kind == FileKind::Directory) {
        to = to.at(&place::join(&to.path, name));
    }
    if let Some(source) = &source
        && !source.same_server(&to)
    {
        return Err(to.failure(&to.path, "a hard link must be on the server of its target"));
    }
    let make = |path: &[u8]| match &source {
        Some(source) => to.session.link(&source.path, path),
        None => to.session.symlink(target, path),
    };
    match make(&to.path) {
        Err(error) if args.force && error.status() == Some(Status::Exist) => replace(&to, make)?,
        made => made.map(drop).map_err(|error| to.failure(&to.path, error))?,
    }
    output::done(|| format!("{} -> {}", to.name(&to.path), args.target.display()))
}

fn replace(
    to: &Remote,
    make: impl Fn(&[u8]) -> dafs_client::Result<dafs_protocol::Attr>,
) -> Result<(), Failure> {
    let temporary = place::temporary(&to.path)?;
    let renamed = make(&temporary).and_then(|_| to.session.rename(&temporary, &to.path));
    // After success it is gone, or both were names of the same file already; after a failure it
    // may be there even where a server that restarted does not know of it.
    let _ = to.session.remove(&temporary);
    renamed.map_err(|error| to.failure(&to.path, error))
}
