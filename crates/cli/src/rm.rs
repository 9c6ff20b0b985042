//! `dafs rm`: removes files and trees.

use dafs_client::{Call, Group};
use dafs_protocol::{FileKind, Status};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Cause, Failure};
use crate::{interrupt, output, place};

/// Removals under way.
const WINDOW: usize = 32;

/// Remove files and directories.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs rm dafs://localhost/draft.txt\n  \
    dafs rm -r dafs://localhost/photos/2019\n  \
    dafs rm -r --force dafs://localhost/       (everything in an export needs --force)")]
pub struct Args {
    /// Directories and all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// No error for what is not there; allows to empty a whole export.
    #[arg(short, long)]
    force: bool,
    /// Empty directories too.
    #[arg(short, long)]
    dir: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to remove.
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
        match connections.remote(url).and_then(|remote| remove(args, &remote)) {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn remove(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let path = &remote.path;
    let is_root = path.is_empty();
    if is_root && args.recursive && !args.force {
        let text = "this is a whole export: give --force to remove everything in it";
        let failure = remote.failure(path, Cause::from(text));
        return Err(Failure { code: failure::USAGE, ..failure });
    }
    if path.split(|b| *b == b'/').any(|part| part == b"..") {
        return Err(remote.failure(path, "a path to remove must not contain '..'"));
    }
    let attr = match remote.session.lstat(path) {
        Err(error) if args.force && error.status() == Some(Status::NoEnt) => return Ok(()),
        other => other.map_err(|error| remote.failure(path, error))?,
    };
    match attr.kind {
        FileKind::Directory if args.recursive => {
            let complete = Removal::new(remote).empty(path)?;
            // What is left in it was reported.
            if is_root || !complete { Ok(()) } else { rmdir(remote) }
        }
        FileKind::Directory if args.dir => rmdir(remote),
        FileKind::Directory => Err(remote.failure(path, "is a directory (use -r)")),
        _ => {
            remote.session.remove(path).map_err(|error| remote.failure(path, error))?;
            removed(remote, path)
        }
    }
}

fn rmdir(remote: &Remote) -> Result<(), Failure> {
    let path = &remote.path;
    remote.session.remove_dir(path).map_err(|error| remote.failure(path, error))?;
    removed(remote, path)
}

fn removed(remote: &Remote, path: &[u8]) -> Result<(), Failure> {
    output::done(|| format!("removed {}", remote.name(path)))
}

/// Removes trees from their leaves on, with many removals under way.
struct Removal<'a> {
    remote: &'a Remote,
    group: Group,
    /// Paths under way, by tag.
    under_way: Vec<Option<Vec<u8>>>,
}

/// A directory whose entries are being removed.
struct Level {
    path: Vec<u8>,
    /// Subdirectories still to be entered, by name.
    directories: Vec<Vec<u8>>,
    complete: bool,
}

impl<'a> Removal<'a> {
    fn new(remote: &'a Remote) -> Removal<'a> {
        let under_way = (0..WINDOW).map(|_| None).collect();
        Removal { remote, group: remote.session.group(), under_way }
    }

    /// Removes all that is in the directory `path`; false when something stayed (reported).
    fn empty(&mut self, path: &[u8]) -> Result<bool, Failure> {
        let mut levels = vec![self.enter(path.to_vec())?];
        loop {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            let Some(level) = levels.last_mut() else { return Ok(true) };
            if let Some(name) = level.directories.pop() {
                let path = place::join(&level.path, &name);
                let next = self.enter(path)?;
                levels.push(next);
                continue;
            }
            let Some(done) = levels.pop() else { return Ok(true) };
            let Some(parent) = levels.last_mut() else { return Ok(done.complete) };
            parent.complete &= done.complete && self.finish(&done.path)?;
        }
    }

    fn finish(&self, path: &[u8]) -> Result<bool, Failure> {
        match self.remote.session.remove_dir(path) {
            Ok(()) => removed(self.remote, path).map(|()| true),
            Err(error) => self.report(path, error).map(|()| false),
        }
    }

    /// Removes the files of a directory and finds its subdirectories. All names are read before
    /// the first is removed: positions in a directory that changes mean little.
    fn enter(&mut self, path: Vec<u8>) -> Result<Level, Failure> {
        let mut level = Level { path, directories: Vec::new(), complete: true };
        let mut files = Vec::new();
        let entries = match self.remote.session.read_dir(&level.path) {
            Ok(entries) => entries,
            Err(error) => {
                level.complete = false;
                self.report(&level.path, error)?;
                return Ok(level);
            }
        };
        for entry in entries {
            let entry = entry.map_err(|error| self.remote.failure(&level.path, error))?;
            match entry.attr.map(|attr| attr.kind).or(entry.kind) {
                Some(FileKind::Directory) => level.directories.push(entry.name),
                _ => files.push(entry.name),
            }
        }
        for name in files {
            level.complete &= self.submit(place::join(&level.path, &name))?;
        }
        while self.group.outstanding() > 0 {
            level.complete &= self.collect()?;
        }
        Ok(level)
    }

    fn submit(&mut self, path: Vec<u8>) -> Result<bool, Failure> {
        let mut complete = true;
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        let tag = loop {
            match self.under_way.iter().position(Option::is_none) {
                Some(free) => break free,
                None => complete &= self.collect()?,
            }
        };
        let mut call = Call::Remove { path: path.clone(), directory: false };
        while let Err(again) = self.group.submit(tag as u64, call) {
            call = again;
            complete &= self.collect()?;
        }
        if let Some(slot) = self.under_way.get_mut(tag) {
            *slot = Some(path);
        }
        Ok(complete)
    }

    /// Waits for at least one removal; false when one failed (reported).
    fn collect(&mut self) -> Result<bool, Failure> {
        let mut complete = true;
        for done in self.group.wait(1, None) {
            let slot = usize::try_from(done.tag).ok().and_then(|tag| self.under_way.get_mut(tag));
            let path = slot.and_then(Option::take).unwrap_or_default();
            match done.result {
                Ok(_) => removed(self.remote, &path)?,
                Err(error) => {
                    complete = false;
                    self.report(&path, error)?;
                }
            }
        }
        Ok(complete)
    }

    fn report(&self, path: &[u8], error: dafs_client::Error) -> Result<(), Failure> {
        let cause = Cause::from(error);
        let is_final = cause.is_final();
        let failure = self.remote.failure(path, cause);
        if is_final {
            return Err(failure);
        }
        failure::report(&failure);
        Ok(())
    }
}
