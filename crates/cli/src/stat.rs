//! `dafs stat`: everything about files.

use dafs_protocol::{Attr, FileKind};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output::{FileObject, Output};
use crate::text;

/// Print everything that is known about files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs stat dafs://localhost/notes.txt\n  \
    dafs stat -L --json dafs://localhost/current | jq .size")]
pub struct Args {
    /// Of what a symlink leads to.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Files and directories.
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
    for url in &args.urls {
        let printed = connections.remote(url).and_then(|remote| print(args, &remote, &mut out));
        out.flush()?;
        match printed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn print(args: &Args, remote: &Remote, out: &mut Output) -> Result<(), Failure> {
    let path = &remote.path;
    let attr =
        if args.dereference { remote.session.stat(path) } else { remote.session.lstat(path) };
    let attr = attr.map_err(|error| remote.failure(path, error))?;
    let target = match attr.kind {
        FileKind::Symlink => remote.session.read_link(path).ok().map(|t| text::escape(&t)),
        _ => None,
    };
    if args.json {
        let mut object = FileObject::new(remote, path, &attr);
        object.target = target;
        return Ok(out.json(&object)?);
    }
    let arrow = target.map_or_else(String::new, |target| format!(" -> {target}"));
    out.line(&format!("   URL: {}{arrow}", remote.name(path)))?;
    describe(&attr, out)
}

fn describe(attr: &Attr, out: &mut Output) -> Result<(), Failure> {
    out.line(&format!(
        "  Type: {:<14} Size: {:<14} Allocated: {:<12} Block size: {}",
        text::kind(attr.kind),
        attr.size,
        attr.allocated,
        attr.block_size
    ))?;
    out.line(&format!(
        "Device: {:<14x} Inode: {:<13} Links: {}",
        attr.device, attr.inode, attr.links
    ))?;
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
        out.line(&format!("  Node: {major}, {minor}"))?;
    }
    out.line(&format!(
        "Access: {:04o}/{:<9} Uid: {:<15} Gid: {}",
        attr.mode,
        text::mode(attr),
        attr.uid,
        attr.gid
    ))?;
    out.line(&format!("Access: {}", text::long_time(attr.accessed)))?;
    out.line(&format!("Modify: {}", text::long_time(attr.modified)))?;
    out.line(&format!("Change: {}", text::long_time(attr.changed)))?;
    out.line(&format!(" Birth: {}", attr.created.map_or("-".into(), text::long_time)))?;
    Ok(())
}
