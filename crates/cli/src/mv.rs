//! `dafs mv`: renames on one server.

use dafs_protocol::FileKind;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::{output, place};

/// Rename files and directories of a server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs mv dafs://localhost/draft.txt dafs://localhost/final.txt\n  \
    dafs mv dafs://localhost/a dafs://localhost/b dafs://localhost/folder/\n\n\
    To move from server to server, use dafs cp and dafs rm.")]
pub struct Args {
    /// Do not replace what is there.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to rename, then the new name or an existing directory.
    #[arg(value_name = "URL", required = true, num_args = 2..)]
    urls: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Some((to, sources)) = args.urls.split_last() else {
        return Err(Failure::usage("two URLs are needed"));
    };
    let connections = Connections::new(&args.connect);
    let target = connections.remote(to)?;
    let into = target.session.stat(&target.path).is_ok_and(|a| a.kind == FileKind::Directory);
    if !into && (sources.len() > 1 || to.ends_with('/')) {
        return Err(target.failure(&target.path, "not a directory"));
    }
    for url in sources {
        let source = connections.remote(url)?;
        if let Err(failure) = rename(args, &source, &target, into) {
            if failure.code != failure::FAILED {
                return Err(failure);
            }
            failure::report(&failure);
        }
    }
    Ok(())
}

fn rename(args: &Args, source: &Remote, target: &Remote, into: bool) -> Result<(), Failure> {
    if !source.same_server(target) {
        let text = "on another server: use dafs cp, then dafs rm";
        return Err(source.failure(&source.path, text));
    }
    let name = place::name(&source.path);
    if name.is_empty() {
        return Err(source.failure(&source.path, "the root of an export cannot be renamed"));
    }
    let to = if into { place::join(&target.path, name) } else { target.path.clone() };
    let below = to.strip_prefix(source.path.as_slice()).is_some_and(|rest| rest.starts_with(b"/"));
    if below {
        let text = format!("cannot be moved into itself, {}", target.name(&to));
        return Err(source.failure(&source.path, text));
    }
    let session = &source.session;
    let renamed = session.rename_with(&source.path, &to, args.no_clobber, false);
    renamed.map_err(|error| source.failure(&source.path, error))?;
    output::done(|| format!("{} -> {}", source.name(&source.path), target.name(&to)))
}
