//! `dafs ls`: what is in a directory.

use dafs_protocol::{Attr, FileKind};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Cause, Failure};
use crate::output::{FileObject, Output};
use crate::tree::{Event, Walk};
use crate::{interrupt, place, text};

/// List directories and files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        dafs ls dafs://localhost/\n  \
        dafs ls -lh dafs://localhost/photos dafs://[::1]:20490/notes.txt\n  \
        dafs ls -ltr dafs://localhost/logs                the newest at the end\n  \
        dafs ls --json dafs://localhost/ | jq -r .name\n\n\
        Names are printed escaped where they would spoil the line (\\n, \\xNN).")]
pub struct Args {
    /// Print mode, links, owner, size and time too.
    #[arg(short = 'l', long)]
    long: bool,
    /// Also names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// Directories themselves, not what is in them.
    #[arg(short, long)]
    directory: bool,
    /// Sizes with units.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Subdirectories too, what is in one right behind it.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// In the server's order, printed as it comes.
    #[arg(short = 'U', long, conflicts_with_all = ["time", "size", "reverse"])]
    unsorted: bool,
    /// What was modified last comes first.
    #[arg(short = 't', long)]
    time: bool,
    /// The largest comes first.
    #[arg(short = 'S', long, conflicts_with = "time")]
    size: bool,
    /// The other way round.
    #[arg(short, long)]
    reverse: bool,
    /// One name on a line, as always.
    #[arg(short = '1', long = "one")]
    _one: bool,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to list.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut lister = Lister { args, out: Output::new() };
    for (index, url) in args.urls.iter().enumerate() {
        let listed = connections.remote(url).and_then(|remote| lister.list(&remote, url, index));
        lister.out.flush()?;
        if let Err(failure) = listed {
            report(failure)?;
        }
    }
    Ok(())
}

/// A name in a directory, with what the server told of it.
type Found = (Vec<u8>, Option<Attr>);

/// Told, where the listing can go on.
fn report(failure: Failure) -> Result<(), Failure> {
    if failure.code != failure::FAILED {
        return Err(failure);
    }
    failure::report(&failure);
    Ok(())
}

struct Lister<'a> {
    args: &'a Args,
    out: Output,
}

impl Lister<'_> {
    fn list(&mut self, remote: &Remote, url: &str, index: usize) -> Result<(), Failure> {
        let fail = |error| remote.failure(&remote.path, error);
        let attr = remote.session.lstat(&remote.path).map_err(fail)?;
        let follow = attr.kind == FileKind::Symlink && !self.args.long && !self.args.directory;
        let is_directory = if follow {
            // A link that leads nowhere is listed itself.
            remote.session.stat(&remote.path).is_ok_and(|attr| attr.kind == FileKind::Directory)
        } else {
            attr.kind == FileKind::Directory
        };
        if !is_directory || self.args.directory {
            let name = place::name(&remote.path);
            let name = if name.is_empty() { b"/" } else { name };
            return self.entry(remote, &remote.path, name, &attr);
        }
        if self.args.recursive {
            if self.args.unsorted {
                return self.recursive(remote);
            }
            return self.recursive_sorted(remote);
        }
        if self.args.urls.len() > 1 && !self.args.json {
            let before = if index == 0 { "" } else { "\n" };
            self.out.line(&format!("{before}{url}:"))?;
        }
        self.directory(remote)
    }

    fn sorted(&mut self, remote: &Remote) -> Result<Vec<Found>, Failure> {
        let mut found = self.read(remote)?;
        self.sort(remote, &mut found)?;
        Ok(found)
    }

    fn directory(&mut self, remote: &Remote) -> Result<(), Failure> {
        for (name, attr) in self.sorted(remote)? {
            self.found(remote, &name, attr)?;
        }
        Ok(())
    }

    /// What is to be listed of a directory, unless it is printed as it comes.
    fn read(&mut self, remote: &Remote) -> Result<Vec<Found>, Failure> {
        let fail = |error| remote.failure(&remote.path, error);
        let entries = remote.session.read_dir(&remote.path).map_err(fail)?;
        let mut kept = Vec::new();
        for entry in entries {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            let entry = entry.map_err(fail)?;
            if entry.name.starts_with(b".") && !self.args.all {
                continue;
            }
            if self.args.unsorted {
                self.found(remote, &entry.name, entry.attr)?;
            } else {
                kept.push((entry.name, entry.attr));
            }
        }
        Ok(kept)
    }

    /// In the order that is wished; by name where that is the same.
    fn sort(&self, remote: &Remote, kept: &mut [Found]) -> Result<(), Failure> {
        let args = self.args;
        if args.time || args.size {
            for (name, attr) in kept.iter_mut().filter(|(_, attr)| attr.is_none()) {
                // What is gone meanwhile is told when it is printed.
                let path = place::join(&remote.path, name);
                *attr = remote.session.lstat(&path).ok();
            }
        }
        let time = |attr: &Option<Attr>| attr.as_ref().map(|attr| attr.modified);
        let size = |attr: &Option<Attr>| attr.as_ref().map(|attr| attr.size);
        kept.sort_by(|a, b| {
            let by_name = a.0.cmp(&b.0);
            let order = match (args.time, args.size) {
                (true, _) => time(&b.1).cmp(&time(&a.1)).then(by_name),
                (_, true) => size(&b.1).cmp(&size(&a.1)).then(by_name),
                _ => by_name,
            };
            if args.reverse { order.reverse() } else { order }
        });
        Ok(())
    }

    fn found(&mut self, remote: &Remote, name: &[u8], attr: Option<Attr>) -> Result<(), Failure> {
        let path = place::join(&remote.path, name);
        if !self.args.long && !self.args.json {
            return Ok(self.out.line(&text::escape(name))?);
        }
        match attr.map_or_else(|| remote.session.lstat(&path), Ok) {
            Ok(attr) => self.entry(remote, &path, name, &attr),
            Err(error) => {
                failure::report(&remote.failure(&path, error));
                Ok(())
            }
        }
    }

    /// Each directory in the order that is wished, what is in one right behind it.
    fn recursive_sorted(&mut self, top: &Remote) -> Result<(), Failure> {
        let prefix = if top.path.is_empty() { 0 } else { top.path.len() + 1 };
        let below = |dir: &[u8], found: Vec<Found>| {
            let of = found.into_iter().rev().map(|(name, attr)| (place::join(dir, &name), attr));
            of.collect::<Vec<Found>>()
        };
        let mut left = below(&top.path, self.sorted(top)?);
        while let Some((path, attr)) = left.pop() {
            let attr = match attr.map_or_else(|| top.session.lstat(&path), Ok) {
                Ok(attr) => attr,
                Err(error) => {
                    report(top.failure(&path, error))?;
                    continue;
                }
            };
            let shown = path.get(prefix..).unwrap_or(&path);
            self.entry(top, &path, shown, &attr)?;
            if attr.kind == FileKind::Directory {
                match self.sorted(&top.at(&path)) {
                    Ok(found) => left.extend(below(&path, found)),
                    Err(failure) => report(failure)?,
                }
            }
        }
        Ok(())
    }

    fn recursive(&mut self, remote: &Remote) -> Result<(), Failure> {
        let mut walk = Walk::new(remote, usize::MAX)?;
        let prefix = if remote.path.is_empty() { 0 } else { remote.path.len() + 1 };
        while let Some(event) = walk.next()? {
            let Event::Entry(node) = event else { continue };
            let hidden = place::name(&node.path).starts_with(b".");
            if node.depth == 0 {
                continue;
            }
            if hidden && !self.args.all {
                walk.skip();
                continue;
            }
            let shown = node.path.get(prefix..).unwrap_or(&node.path);
            self.entry(remote, &node.path, shown, &node.attr)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        remote: &Remote,
        path: &[u8],
        shown: &[u8],
        attr: &Attr,
    ) -> Result<(), Failure> {
        let wants_target = attr.kind == FileKind::Symlink && (self.args.long || self.args.json);
        let target = if wants_target { remote.session.read_link(path).ok() } else { None };
        if self.args.json {
            let mut object = FileObject::new(remote, path, attr);
            object.target = target.map(|target| text::escape(&target));
            return Ok(self.out.json(&object)?);
        }
        if !self.args.long {
            return Ok(self.out.line(&text::escape(shown))?);
        }
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{}, {}", libc::major(attr.rdev), libc::minor(attr.rdev))
            }
            _ if self.args.human_readable => text::human(attr.size),
            _ => attr.size.to_string(),
        };
        let arrow =
            target.map_or_else(String::new, |target| format!(" -> {}", text::escape(&target)));
        self.out.line(&format!(
            "{} {:>3} {:>6} {:>6} {:>12} {} {}{arrow}",
            text::mode(attr),
            attr.links,
            attr.uid,
            attr.gid,
            size,
            text::short_time(attr.modified),
            text::escape(shown),
        ))?;
        Ok(())
    }
}
