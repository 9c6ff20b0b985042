//! `dafs cat`: files to standard output.

use crate::connect::{ConnectArgs, Connections};
use crate::copy;
use crate::failure::{self, Failure};

/// Print files on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs cat dafs://localhost/notes.txt\n  \
    dafs cat dafs://localhost/logs/2026-11-20.gz | zcat | less")]
pub struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to print, one after the other.
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
        let printed = connections.remote(url).and_then(|remote| copy::to_standard_output(&remote));
        match printed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}
