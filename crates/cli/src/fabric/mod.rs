//! `dafs fabric`: which networks there are, and which one a server would be reached by.

mod list;
mod probe;

use crate::failure::Failure;

/// See which networks this machine has, and by which of them a server is reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs fabric list                       what this machine has, and what it lacks\n  \
    dafs fabric probe server               what server offers, what is chosen, why nothing nearer\n  \
    dafs fabric probe --json localhost | jq -r .chosen.transport")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Args),
    Probe(probe::Args),
}

/// Runs the command.
///
/// # Errors
/// What each says.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Probe(args) => probe::run(args),
    }
}
