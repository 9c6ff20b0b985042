//! The `dafs` command: serves directories, and works with those that others serve.
//!
//! One module per command. Data goes to standard output, messages and progress to standard
//! error. Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 cannot connect or
//! authenticate, 130 interrupted.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod bench;
mod cache;
mod cat;
mod chmod;
mod chown;
mod completion;
mod config;
mod connect;
mod copy;
mod df;
mod du;
mod explain;
mod fabric;
mod failure;
mod find;
mod flush;
mod head;
mod interrupt;
mod ln;
mod log;
mod ls;
mod man_pages;
mod mkdir;
mod mount;
mod mv;
mod output;
mod ping;
mod place;
#[cfg(feature = "planted")]
mod planted;
mod progress;
mod provider;
mod rm;
mod runtime;
mod serve;
mod service;
mod stat;
mod status;
mod sys;
mod tail;
mod text;
mod top;
mod touch;
mod transport;
mod tree;
mod umount;
mod version;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::failure::Failure;
use crate::interrupt::Style;

/// A network file system by remote direct memory access, in user space.
#[derive(Debug, Parser)]
#[command(
    name = "dafs",
    version,
    propagate_version = true,
    disable_help_flag = true,
    after_help = "Examples:\n  \
        dafs serve /srv/data                             serve a directory on this machine\n  \
        dafs ls -l dafs://localhost/                     see what is there\n  \
        dafs cp -r ./tree dafs://localhost/tree          copy a tree to the server\n  \
        dafs cp dafs://localhost/big.bin /tmp/           copy a file from the server\n\n\
        -h means sizes with units (ls, du, df) or a symlink itself (chown); help is --help.\n\
        DAFS_KEY_FILE in the environment stands for --key-file of commands that connect, DAFS_LOG (error,\n\
        warn, info, debug, trace) for --log of servers and mounts.\n\
        A URL is dafs://HOST[:PORT]/PATH[?option=value]; bytes of PATH may be written %NN.\n\
        Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 cannot connect, 130 interrupted."
)]
struct Cli {
    /// Print help.
    #[arg(long, global = true, action = clap::ArgAction::Help, help_heading = "Of all commands")]
    help: Option<bool>,
    /// Say nothing but what failed.
    #[arg(short, long, global = true, help_heading = "Of all commands")]
    quiet: bool,
    /// Say what is done: each file that is changed, each connection that is made.
    #[arg(short, long, global = true, help_heading = "Of all commands")]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Config(config::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Ls(ls::Args),
    Cp(copy::Args),
    Mirror(copy::mirror::Args),
    Diff(copy::diff::Args),
    Cat(cat::Args),
    Head(head::Args),
    Tail(tail::Args),
    Stat(stat::Args),
    Mkdir(mkdir::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Touch(touch::Args),
    Find(find::Args),
    Du(du::Args),
    Df(df::Args),
    Flush(flush::Args),
    #[command(hide = true)]
    Sync(flush::Args),
    Ping(ping::Args),
    Explain(explain::Args),
    Fabric(fabric::Args),
    Status(status::Args),
    Top(top::Args),
    Cache(cache::Args),
    Version(version::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    ManPages(man_pages::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let cli =
        match Cli::try_parse_from(find::arguments(mount::arguments(std::env::args_os().collect())))
        {
            Ok(cli) => cli,
            Err(error) => return ExitCode::from(told(&error)),
        };
    let (name, style) = describe(&cli.command);
    failure::set_command(name);
    progress::set_words(cli.quiet, cli.verbose);
    // Before any thread is started: they inherit which signals are blocked.
    interrupt::install(style);
    let random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("the system has randomness");
    let switched = dafs_fabric::poison::switch_by_environment(random).and_then(|()| plant());
    let result = match switched {
        Ok(()) => run(cli.command),
        Err(text) => Err(Failure::usage(text)),
    };
    ExitCode::from(failure::exit_code(result))
}

/// Prints help, the version, or what is wrong with the arguments; how to exit.
fn told(error: &clap::Error) -> u8 {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match printed {
        _ if error.use_stderr() => failure::USAGE,
        Err(error) => failure::exit_code(Err(error.into())),
        Ok(()) => 0,
    }
}

/// Plants the defect that the environment names, in a build that has some.
fn plant() -> Result<(), String> {
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var("DAFS_PLANT")
        && !planted::plant(&name)
        && !dafs_server::plant_for_lies(&name)
    {
        return Err(format!("DAFS_PLANT: no defect '{name}'"));
    }
    Ok(())
}

fn describe(command: &Command) -> (&'static str, Style) {
    match command {
        Command::Serve(_) => ("serve", Style::Serve),
        Command::Config(_) => ("config", Style::AtOnce),
        Command::Mount(args) if args.serves() => ("mount", Style::Serve),
        Command::Mount(_) => ("mount", Style::AtOnce),
        Command::Umount(_) => ("umount", Style::AtOnce),
        Command::Ls(_) => ("ls", Style::AtOnce),
        Command::Cp(_) => ("cp", Style::CleanUp),
        Command::Mirror(_) => ("mirror", Style::CleanUp),
        Command::Diff(_) => ("diff", Style::AtOnce),
        Command::Cat(_) => ("cat", Style::AtOnce),
        Command::Stat(_) => ("stat", Style::AtOnce),
        Command::Mkdir(_) => ("mkdir", Style::AtOnce),
        Command::Rm(_) => ("rm", Style::AtOnce),
        Command::Mv(_) => ("mv", Style::AtOnce),
        Command::Ln(_) => ("ln", Style::AtOnce),
        Command::Chmod(_) => ("chmod", Style::AtOnce),
        Command::Touch(_) => ("touch", Style::AtOnce),
        Command::Find(_) => ("find", Style::AtOnce),
        Command::Du(_) => ("du", Style::AtOnce),
        Command::Df(_) => ("df", Style::AtOnce),
        Command::Chown(_) => ("chown", Style::AtOnce),
        Command::Head(_) => ("head", Style::AtOnce),
        Command::Tail(_) => ("tail", Style::AtOnce),
        Command::Flush(_) => ("flush", Style::AtOnce),
        Command::Sync(_) => ("sync", Style::AtOnce),
        Command::Ping(_) => ("ping", Style::AtOnce),
        Command::Explain(_) => ("explain", Style::AtOnce),
        Command::Fabric(_) => ("fabric", Style::AtOnce),
        Command::Status(_) => ("status", Style::AtOnce),
        Command::Top(_) => ("top", Style::Serve),
        Command::Cache(_) => ("cache", Style::AtOnce),
        Command::Version(_) => ("version", Style::AtOnce),
        Command::Completion(_) => ("completion", Style::AtOnce),
        Command::ManPages(_) => ("man-pages", Style::AtOnce),
        Command::Bench(_) => ("bench", Style::CleanUp),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cp(args) => copy::run(&args),
        Command::Mirror(args) => copy::mirror::run(&args),
        Command::Diff(args) => copy::diff::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Mkdir(args) => mkdir::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Mv(args) => mv::run(&args),
        Command::Ln(args) => ln::run(&args),
        Command::Chmod(args) => chmod::run(&args),
        Command::Touch(args) => touch::run(&args),
        Command::Find(args) => find::run(&args),
        Command::Du(args) => du::run(&args),
        Command::Df(args) => df::run(&args),
        Command::Chown(args) => chown::run(&args),
        Command::Head(args) => head::run(&args),
        Command::Tail(args) => tail::run(&args),
        Command::Flush(args) => flush::run(&args),
        Command::Sync(args) => flush::run_as_sync(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => completion::run(&args, Cli::command()),
        Command::ManPages(args) => man_pages::run(&args, Cli::command()),
        Command::Bench(args) => bench::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_options_of_all_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_command_teaches_by_example() {
        for command in Cli::command().get_subcommands() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("dafs "), "{}", command.get_name());
        }
    }
}
