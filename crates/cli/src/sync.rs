//! `dafs sync`: everything on disk.

use crate::connect::{ConnectArgs, Connections};
use crate::failure::{self, Failure};

/// Wait until everything that anybody wrote to a server is on its disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dafs sync dafs://localhost/")]
pub struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Exports, or anything in them.
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
        let synced = connections.remote(url).and_then(|remote| {
            remote.session.sync().map_err(|error| remote.failure(&remote.path, error))
        });
        match synced {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}
