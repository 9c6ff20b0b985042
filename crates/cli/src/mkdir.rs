//! `dafs mkdir`: makes directories.

use dafs_protocol::{FileKind, Status};

use crate::chmod::octal;
use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::{output, place, sys};

/// Make directories.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs mkdir dafs://localhost/photos\n  \
    dafs mkdir -p -m 700 dafs://localhost/photos/2026/november")]
pub struct Args {
    /// Parents too, as needed; it is no error if the directory exists.
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal.
    #[arg(short, long, value_name = "MODE", value_parser = octal)]
    mode: Option<u32>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Directories to make.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    for url in &args.urls {
        match connections.remote(url).and_then(|remote| make(args, &remote)) {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn make(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let default = 0o777 & !sys::umask();
    let mode = args.mode.unwrap_or(default);
    if args.parents {
        for (at, _) in remote.path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            make_one(remote, &remote.path[..at], default, true)?;
        }
    }
    make_one(remote, &remote.path, mode, args.parents)
}

fn make_one(remote: &Remote, path: &[u8], mode: u32, may_exist: bool) -> Result<(), Failure> {
    match remote.session.mkdir(path, mode) {
        Ok(_) => output::done(|| format!("made {}", remote.name(path))),
        Err(error) if may_exist => {
            // Whatever the answer was (an existing one may also be read-only): is it there?
            match remote.session.stat(path) {
                Ok(attr) if attr.kind == FileKind::Directory => Ok(()),
                Ok(_) => Err(remote.failure(path, dafs_client::Error::from(Status::NotDir))),
                Err(_) => Err(remote.failure(path, error)),
            }
        }
        Err(error) if place::name(path).is_empty() && error.status().is_some() => {
            Err(remote.failure(path, dafs_client::Error::from(Status::Exist)))
        }
        Err(error) => Err(remote.failure(path, error)),
    }
}
