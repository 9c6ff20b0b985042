//! `dafs cache`: what a server's cache holds, and advice about it.

mod advise;
mod show;

use dafs_client::{File, OpenOptions};
use dafs_protocol::{CacheHint, CacheInfo, CachedRange, FileKind};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output::Output;
use crate::tree::{Event, Node, Walk};

/// See and steer what a server keeps in memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs cache show dafs://localhost/                      which files are in memory, and how much\n  \
    dafs cache show --ranges dafs://localhost/db           which parts of one\n  \
    dafs cache advise --prefetch all dafs://localhost/db   read it in ahead of its users\n  \
    dafs cache drop dafs://localhost/old                   make room: forget it\n\n\
    A directory stands for all files below it. Nothing here changes what files hold.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(show::Args),
    Advise(advise::Args),
    Drop(advise::DropArgs),
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Show(args) => show::run(args),
        Command::Advise(args) => advise::run(args),
        Command::Drop(args) => advise::run_drop(args),
    }
}

/// Does something with each regular file of the trees, and reports what fails of it.
fn each_file(
    connect: &ConnectArgs,
    urls: &[String],
    out: &mut Output,
    mut work: impl FnMut(&Remote, &Node, &mut Output) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let connections = Connections::new(connect);
    for url in urls {
        let done = connections.remote(url).and_then(|remote| {
            let mut walk = Walk::new(&remote, usize::MAX)?;
            while let Some(event) = walk.next()? {
                let Event::Entry(node) = event else { continue };
                if node.attr.kind == FileKind::File {
                    keep_on(work(&remote, &node, out))?;
                } else if node.depth == 0 && node.attr.kind != FileKind::Directory {
                    let text = "only files and directories are cached".to_owned();
                    return Err(remote.failure(&node.path, failure::Cause::Text(text)));
                }
            }
            Ok(())
        });
        out.flush()?;
        keep_on(done)?;
    }
    Ok(())
}

/// What concerns one file alone is reported, and the command goes on.
fn keep_on(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.code == failure::FAILED => {
            failure::report(&failure);
            Ok(())
        }
        other => other,
    }
}

/// All of what the cache holds of a file: `ranges` are joined over the parts that were asked for.
fn query(remote: &Remote, path: &[u8]) -> Result<(CacheInfo, Vec<CachedRange>), Failure> {
    let mut sum = CacheInfo::default();
    let mut ranges: Vec<CachedRange> = Vec::new();
    let mut next = Some(0);
    while let Some(offset) = next {
        let asked = remote.session.cache_query(path, offset, 0);
        let (info, some) = asked.map_err(|error| remote.failure(path, error))?;
        sum.clean_bytes += info.clean_bytes;
        sum.dirty_bytes += info.dirty_bytes;
        (sum.size, sum.cache) = (info.size, info.cache);
        for range in some {
            match ranges.last_mut() {
                Some(last)
                    if last.offset + last.len == range.offset && last.dirty == range.dirty =>
                {
                    last.len += range.len;
                }
                _ => ranges.push(range),
            }
        }
        // A server that does not go forward is not asked for ever.
        next = info.next.filter(|next| *next > offset);
    }
    Ok((sum, ranges))
}

fn open(remote: &Remote, path: &[u8]) -> Result<File, Failure> {
    let options = OpenOptions { no_follow: true, ..OpenOptions::read() };
    remote.session.open(path, options).map_err(|error| remote.failure(path, error))
}

/// Its name, or its number where it has none here.
fn policy(hint: CacheHint) -> String {
    name(&CacheHint::POLICIES, hint.policy)
}

fn class(hint: CacheHint) -> String {
    name(&CacheHint::CLASSES, hint.class)
}

fn name(names: &[(u8, &str)], number: u8) -> String {
    match names.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).to_owned(),
        None if number == 0 => "-".to_owned(),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_classes_have_names() {
        let hint = |policy, class| CacheHint { unit: 0, policy, class };
        assert_eq!((policy(hint(1, 0)), class(hint(1, 0))), ("lru".into(), "-".into()));
        assert_eq!((policy(hint(2, 3)), class(hint(2, 3))), ("mq".into(), "high".into()));
        assert_eq!(policy(hint(99, 0)), "99");
    }
}
