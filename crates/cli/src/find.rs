//! `dafs find`: names in a tree.

use std::ffi::OsString;

use dafs_fabric::units::size;
use dafs_protocol::{FileKind, Timestamp};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Cause, Failure};
use crate::output::{self, FileObject, Output};
use crate::place::Place;
use crate::tree::{Event, Node, Walk};
use crate::{place, text};

/// Options that may be written with one dash, as find(1) has them.
const ONE_DASH: [&str; 8] =
    ["name", "type", "maxdepth", "newer", "smaller", "larger", "empty", "delete"];

/// Print the URLs of files in a tree.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs find dafs://localhost/ -name '*.jpg'\n  \
    dafs find dafs://localhost/logs --type f --larger 100m\n  \
    dafs find dafs://localhost/logs --newer ./last-run --type f\n  \
    dafs find dafs://localhost/tmp --name '*.tmp' --smaller 1k --delete\n  \
    dafs find dafs://localhost/ --type d --empty --delete\n  \
    dafs find dafs://localhost/ --type l --paths -0 | xargs -0 -n1 echo\n\n\
    All conditions must hold. -name, -type, -maxdepth, -newer, -empty and -delete may be written with one\n\
    dash, as in find(1).")]
pub struct Args {
    /// Only names that match this shell pattern.
    #[arg(long, value_name = "PATTERN")]
    name: Option<OsString>,
    /// Only f (files), d (directories), l (symlinks), p, s, c or b.
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    kind: Option<FileKind>,
    /// Only files of more than so many bytes (4k, 10m, 1.5g).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    larger: Option<u64>,
    /// Only files of less than so many bytes (4k, 10m, 1.5g).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    smaller: Option<u64>,
    /// Only what was modified after this file, of a server or of this machine.
    #[arg(long, value_name = "URL|FILE")]
    newer: Option<OsString>,
    /// Only files without bytes and directories without entries.
    #[arg(long)]
    empty: bool,
    /// Remove what is found, files before their directories; nothing is printed but with -v.
    #[arg(long)]
    delete: bool,
    /// How far to descend; 0 is URL itself.
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// Print paths below the export's root, as bytes, not URLs.
    #[arg(long)]
    paths: bool,
    /// End each with a NUL byte, not a newline.
    #[arg(short = '0', long)]
    null: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Where to begin.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// The arguments of the command line, where those of find(1) have two dashes.
pub fn arguments(given: Vec<OsString>) -> Vec<OsString> {
    let is_option = |text: &OsString| text.as_encoded_bytes().starts_with(b"-");
    let command = given.iter().skip(1).find(|argument| !is_option(argument));
    if command.is_none_or(|command| command != "find") {
        return given;
    }
    let with_two = |argument: OsString| {
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        match name.filter(|name| ONE_DASH.contains(name)) {
            Some(name) => format!("--{name}").into(),
            None => argument,
        }
    };
    given.into_iter().map(with_two).collect()
}

fn kind(text: &str) -> Result<FileKind, String> {
    match text {
        "f" => Ok(FileKind::File),
        "d" => Ok(FileKind::Directory),
        "l" => Ok(FileKind::Symlink),
        "p" => Ok(FileKind::Fifo),
        "s" => Ok(FileKind::Socket),
        "c" => Ok(FileKind::CharDevice),
        "b" => Ok(FileKind::BlockDevice),
        _ => Err("expected one of f, d, l, p, s, c, b".into()),
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let newer = args.newer.as_ref().map(|file| modified(&connections, file)).transpose()?;
    let mut out = Output::new();
    for url in &args.urls {
        let found = connections.remote(url).and_then(|remote| {
            let mut search = Search { args, newer, remote: &remote, later: Vec::new() };
            search.run(&mut out)
        });
        out.flush()?;
        match found {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

/// When a file of a server, or of this machine, was modified.
fn modified(connections: &Connections, file: &OsString) -> Result<Timestamp, Failure> {
    use std::os::unix::fs::MetadataExt;
    match Place::parse(file)? {
        Place::Remote(url) => {
            let remote = connections.remote_url(&url)?;
            let attr = remote.session.stat(&remote.path);
            Ok(attr.map_err(|error| remote.failure(&remote.path, error))?.modified)
        }
        Place::Local(path) => {
            let meta = std::fs::metadata(&path);
            let meta = meta.map_err(|error| Failure::about(path.display(), error))?;
            let nanoseconds = u32::try_from(meta.mtime_nsec()).unwrap_or(0);
            Ok(Timestamp { seconds: meta.mtime(), nanoseconds })
        }
        Place::Standard => Err(Failure::usage("--newer: expected a URL or a file, not -")),
    }
}

struct Search<'a> {
    args: &'a Args,
    newer: Option<Timestamp>,
    remote: &'a Remote,
    /// What is to be removed of each directory from the start to where the walk is: when all its names
    /// were read, since positions in a directory that changes mean little.
    later: Vec<Vec<Node>>,
}

impl Search<'_> {
    fn run(&mut self, out: &mut Output) -> Result<(), Failure> {
        let args = self.args;
        let has_condition = args.name.is_some()
            || args.kind.is_some()
            || args.larger.is_some()
            || args.smaller.is_some()
            || args.newer.is_some()
            || args.empty;
        if args.delete && self.remote.path.is_empty() && !has_condition {
            let text = "this is a whole export: use dafs rm -r --force to remove everything in it";
            let failure = self.remote.failure(b"", Cause::from(text));
            return Err(Failure { code: failure::USAGE, ..failure });
        }
        let mut walk = Walk::new(self.remote, args.maxdepth.unwrap_or(usize::MAX))?;
        while let Some(event) = walk.next()? {
            match event {
                Event::Entry(node) if !args.delete => {
                    if self.is_wanted(&node)? {
                        self.print(&node, out)?;
                    }
                }
                Event::Entry(node) => self.met(node, args.maxdepth)?,
                Event::Leave(node) if args.delete => self.left(node)?,
                Event::Leave(_) => {}
            }
        }
        Ok(())
    }

    /// What may be removed, when its directory is left; a directory that is entered, when it is left itself.
    fn met(&mut self, node: Node, depth_max: Option<usize>) -> Result<(), Failure> {
        let is_entered = depth_max.is_none_or(|most| node.depth < most);
        if node.attr.kind == FileKind::Directory && is_entered {
            self.later.push(Vec::new());
            return Ok(());
        }
        if self.is_wanted(&node)? { self.remove_later(node) } else { Ok(()) }
    }

    fn left(&mut self, node: Node) -> Result<(), Failure> {
        for inner in self.later.pop().unwrap_or_default() {
            self.remove(&inner)?;
        }
        if !node.path.is_empty() && self.is_wanted(&node)? {
            self.remove_later(node)
        } else {
            Ok(())
        }
    }

    fn remove_later(&mut self, node: Node) -> Result<(), Failure> {
        match self.later.last_mut() {
            Some(list) => {
                list.push(node);
                Ok(())
            }
            // Where the search began.
            None => self.remove(&node),
        }
    }

    fn remove(&self, node: &Node) -> Result<(), Failure> {
        let session = &self.remote.session;
        let removed = match node.attr.kind {
            FileKind::Directory => session.remove_dir(&node.path),
            _ => session.remove(&node.path),
        };
        match removed {
            Ok(()) => output::done(|| format!("removed {}", self.remote.name(&node.path))),
            Err(error) => {
                let failure = self.remote.failure(&node.path, error);
                if failure.code != failure::FAILED {
                    return Err(failure);
                }
                failure::report(&failure);
                Ok(())
            }
        }
    }

    fn is_wanted(&self, node: &Node) -> Result<bool, Failure> {
        let args = self.args;
        let name = place::name(&node.path);
        let wanted = args.name.as_ref().is_none_or(|p| text::matches(p.as_encoded_bytes(), name))
            && args.kind.is_none_or(|kind| kind == node.attr.kind)
            && args.larger.is_none_or(|bytes| node.attr.size > bytes)
            && args.smaller.is_none_or(|bytes| node.attr.size < bytes)
            && self.newer.is_none_or(|time| node.attr.modified > time);
        if !wanted || !args.empty {
            return Ok(wanted);
        }
        match node.attr.kind {
            FileKind::File => Ok(node.attr.size == 0),
            FileKind::Directory => match self.remote.session.read_dir(&node.path) {
                Ok(mut entries) => Ok(entries.next().is_none()),
                // Told when it was entered.
                Err(_) => Ok(false),
            },
            _ => Ok(false),
        }
    }

    fn print(&self, node: &Node, out: &mut Output) -> Result<(), Failure> {
        let (args, remote) = (self.args, self.remote);
        if args.json {
            out.json(&FileObject::new(remote, &node.path, &node.attr))?;
        } else if args.null {
            let name = if args.paths { node.path.clone() } else { remote.name(&node.path).into() };
            out.bytes(&name)?;
            out.bytes(b"\0")?;
        } else if args.paths {
            out.line(&text::escape(&node.path))?;
        } else {
            out.line(&remote.name(&node.path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments_of(given: &[&str]) -> Vec<String> {
        let out = arguments(given.iter().map(OsString::from).collect());
        out.into_iter().map(|argument| argument.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn options_of_find_may_have_one_dash() {
        let found =
            arguments_of(&["dafs", "-q", "find", "dafs://h/", "-name", "-x", "-delete", "-0"]);
        assert_eq!(found, ["dafs", "-q", "find", "dafs://h/", "--name", "-x", "--delete", "-0"]);
        let other = ["dafs", "ls", "-name"];
        assert_eq!(arguments_of(&other), other);
    }
}
