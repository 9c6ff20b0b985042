//! `dafs config`: files that tell a server what to serve.

mod new;
mod reference;

use crate::failure::Failure;

/// Make a configuration file of a server, or show what can stand in one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs config new data /srv/data          writes /etc/dafs/data.toml\n  \
    dafs serve --config /etc/dafs/data.toml --check-config\n  \
    systemctl enable --now dafs@data        where a package brought the unit\n  \
    dafs config reference | less            every key")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    New(new::Args),
    Reference(reference::Args),
}

/// Runs the command.
///
/// # Errors
/// What each says.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::New(args) => new::run(args),
        Command::Reference(args) => reference::run(args),
    }
}
