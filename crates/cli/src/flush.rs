//! `dafs flush`: everything on disk. Its earlier name, `dafs sync`, still works.

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::progress;

/// Wait until everything that anybody wrote to a server is on its disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dafs flush dafs://localhost/")]
pub struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Exports, or anything in them.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Runs the command by its earlier name.
///
/// # Errors
/// As [`run`].
pub fn run_as_sync(args: &Args) -> Result<(), Failure> {
    progress::notice("dafs sync: is called 'dafs flush' now");
    run(args)
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    for url in &args.urls {
        match connections.remote(url).and_then(|remote| flush(&remote)) {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn flush(remote: &Remote) -> Result<(), Failure> {
    let fail = |error| remote.failure(&remote.path, error);
    // A name that is not there is a mistake, though all would be flushed.
    remote.session.lstat(&remote.path).map_err(fail)?;
    remote.session.sync().map_err(fail)
}
