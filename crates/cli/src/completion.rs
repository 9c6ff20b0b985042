//! `dafs completion`: what a shell needs to complete this program's command line.

use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::Output;

/// Print what makes a shell complete commands, options and values.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs completion bash > /etc/bash_completion.d/dafs\n  \
    dafs completion zsh > /usr/local/share/zsh/site-functions/_dafs\n  \
    dafs completion fish > ~/.config/fish/completions/dafs.fish\n  \
    eval \"$(dafs completion bash)\"                     for this shell only")]
pub struct Args {
    /// Of which shell.
    #[arg(value_name = "SHELL", value_parser = shells())]
    shell: Shell,
}

/// Those that this program's completions were tried in.
fn shells() -> impl clap::builder::TypedValueParser<Value = Shell> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>())
}

/// Runs the command. `program` is the whole command line.
///
/// # Errors
/// Standard output's.
pub fn run(args: &Args, mut program: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "dafs", &mut script);
    let mut out = Output::new();
    out.bytes(&script)?;
    Ok(out.flush()?)
}
