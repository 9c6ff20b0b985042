//! Copies: `dafs cp`, `dafs mirror`, `dafs diff`.

pub mod diff;
mod ends;
mod engine;
mod filter;
mod like;
mod limit;
mod local;
pub mod mirror;
mod options;
mod partial;
mod queue;
mod rules;
mod side;
mod stream;
mod xattr;

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Instant;

use dafs_protocol::{Attr, FileKind};

use self::engine::{Counts, Engine, Job, Origin, Shared};
use self::options::{Shown, Transfer};
use self::rules::{Replace, Rules, There};
use self::side::Side;
use crate::connect::{ConnectArgs, Connections};
use crate::failure::{self, Cause, Failure};
use crate::interrupt;
use crate::place::{self, Place};
use crate::progress::Progress;

pub use self::stream::to_standard_output;

/// Bytes of a piece of a large file, unless a session allows less.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces under way.
const WINDOW: usize = 8;
/// Symlinks followed to find where a file really goes.
const LINKS_MAX: usize = 40;

/// Copy files and trees to a server, from a server, or between servers.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "dafs cp [OPTIONS] FROM... TO",
    after_help = "Examples:\n  \
    dafs cp notes.txt dafs://localhost/\n  \
    dafs cp -r ./tree dafs://localhost/tree\n  \
    dafs cp dafs://localhost/big.bin /tmp/\n  \
    dafs cp -a --exclude '*.tmp' --exclude /build/ ./tree dafs://localhost/tree\n  \
    dafs cp -r -u --bwlimit 20m ./photos dafs://localhost/photos\n  \
    dafs cp -r --include '*/' --include '*.c' --exclude '*' dafs://localhost/src ./src\n  \
    dafs cp -r --sync dafs://one/photos dafs://two/photos\n  \
    tar c . | dafs cp - dafs://localhost/backup.tar\n\n\
    Type, mode, times (of directories too), links and holes are kept, owners when root; with -p\n\
    or -a also extended attributes and access control lists. A file is written under a temporary\n\
    name (.dafs-tmp-..., large ones .dafs-part-...) and renamed when it is complete. The copy of\n\
    a large file that was broken off is gone on with by the next one. What cannot be copied is\n\
    named, and the rest is copied. dafs mirror also removes what the origin does not have."
)]
pub struct Args {
    /// Directories with all that is in them; symlinks are copied as such.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep extended attributes and access control lists, too (mode, times and, when root, owner
    /// are kept anyway).
    #[arg(short, long)]
    preserve: bool,
    /// All of it: as -r -p.
    #[arg(short, long)]
    archive: bool,
    /// Follow all symlinks of FROM: copy what they lead to.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Replace only what was modified before the original; make what is missing.
    #[arg(short, long, conflicts_with = "no_clobber")]
    update: bool,
    /// Replace no file; make what is missing.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    transfer: Transfer,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to copy (URL, path, or - for standard input), then where to (URL, path, or -).
    #[arg(value_name = "FROM... TO", required = true, num_args = 2..)]
    places: Vec<OsString>,
}

impl Args {
    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    fn rules(&self) -> Rules {
        let replace = match (self.no_clobber, self.update) {
            (true, _) => Replace::Never,
            (false, true) => Replace::Older,
            (false, false) => Replace::Always,
        };
        Rules {
            replace,
            xattrs: self.preserve || self.archive,
            follow: self.dereference,
            ..self.transfer.rules()
        }
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Some((to, from)) = args.places.split_last() else {
        return Err(Failure::usage("two names are needed"));
    };
    let to = Place::parse(to)?;
    let from = from.iter().map(|text| Place::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let connections = Connections::new(&args.connect);
    match (&from[..], &to) {
        ([Place::Remote(url)], Place::Standard) => {
            return to_standard_output(&connections.remote_url(url)?);
        }
        ([Place::Standard], Place::Remote(url)) => return from_input(args, &connections, url),
        (_, Place::Standard) => return Err(Failure::usage("only one URL can go to -")),
        (all, _) if all.iter().any(|place| matches!(place, Place::Standard)) => {
            return Err(Failure::usage("- can only go to one URL"));
        }
        _ => {}
    }
    let has_url = from.iter().chain([&to]).any(|place| matches!(place, Place::Remote(_)));
    if !has_url {
        return Err(Failure::usage("one side must be a URL (dafs://...); use cp for local copies"));
    }
    if from.len() > 1 {
        all_differ(&from)?;
    }
    copy(args, &connections, &from, &to)
}

fn from_input(
    args: &Args,
    connections: &Connections,
    url: &dafs_client::Url,
) -> Result<(), Failure> {
    let mut remote = connections.remote_url(url)?;
    let started = Instant::now();
    let side = Side::Remote(remote.clone());
    remote.path = resolve(&side, remote.path.clone());
    if side.stat(&remote.path).is_ok_and(|attr| attr.kind == FileKind::Directory) {
        return Err(remote.failure(&remote.path, "is a directory: a file name is needed for -"));
    }
    let rules = args.rules();
    if rules.replace != Replace::Always || rules.dry_run {
        return Err(Failure::usage(
            "standard input can be copied once, and has no time: \
             -u, -n and --dry-run do not go with -",
        ));
    }
    let bytes = stream::from_standard_input(&remote)?;
    if rules.sync {
        remote.session.sync().map_err(|error| remote.failure(&remote.path, error))?;
    }
    let counts = Counts::default();
    Counts::add(&counts.files, 1);
    Counts::add(&counts.bytes, bytes);
    args.transfer.summarize(&counts, started, Shown::Copy)
}

/// Two things under one name: the second would replace the first.
fn all_differ(from: &[Place]) -> Result<(), Failure> {
    let mut names: HashMap<Vec<u8>, &Place> = HashMap::new();
    for place in from {
        let path = match place {
            Place::Local(path) => place::bytes(path),
            Place::Remote(url) => place::clean(&url.path),
            Place::Standard => continue,
        };
        let Some(name) = own_name(&path, place) else { continue };
        if let Some(first) = names.insert(name.to_vec(), place) {
            return Err(Failure::usage(format!(
                "{first} and {place} would get the same name: copy them to different directories"
            )));
        }
    }
    Ok(())
}

/// Where everything goes.
struct Target {
    side: Side,
    path: Vec<u8>,
    /// An existing directory, into which things are copied under their own names.
    into: bool,
    /// Written with a slash at its end: only a directory may get that name.
    slash: bool,
}

fn copy(args: &Args, connections: &Connections, from: &[Place], to: &Place) -> Result<(), Failure> {
    let started = Instant::now();
    let target = target(connections, to, from.len())?;
    let shared = Shared { rules: args.rules(), limit: args.transfer.limit(), ..Shared::default() };
    let progress = Progress::start(args.transfer.shows_progress());
    let mut origins: Vec<(Side, Origin)> = Vec::new();
    let mut batch: Option<(Side, Vec<Job>)> = None;
    for place in from {
        let (side, path) = source(connections, place)?;
        let job = match plan(args, &side, &path, place, &target) {
            Ok(Plan::Copy(job)) => *job,
            Ok(Plan::Done) => continue,
            Err(failure) if failure.code == failure::FAILED => {
                Counts::add(&shared.counts.failed, 1);
                failure::report(&failure);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        // Files of one side are copied together, trees alone.
        let is_tree = job.attr.kind == FileKind::Directory;
        match &mut batch {
            Some((same, jobs)) if !is_tree && same.is_same(&side) => jobs.push(job),
            _ => {
                let before = batch.replace((side, vec![job]));
                run_batch(before, &target, &shared, &mut origins, &progress);
            }
        }
        if is_tree {
            run_batch(batch.take(), &target, &shared, &mut origins, &progress);
        }
    }
    run_batch(batch, &target, &shared, &mut origins, &progress);
    if shared.rules.sync && !shared.rules.dry_run && !interrupt::requested() {
        progress.text("waiting for the disk");
        let path =
            if target.into { target.path.clone() } else { target.side.directory_of(&target.path) };
        target.side.sync(&path).map_err(|cause| target.side.failure(&target.path, cause))?;
    }
    drop(progress);
    args.transfer.summarize(&shared.counts, started, Shown::Copy)
}

fn run_batch(
    batch: Option<(Side, Vec<Job>)>,
    target: &Target,
    shared: &Shared,
    origins: &mut Vec<(Side, Origin)>,
    progress: &Progress,
) {
    let Some((side, jobs)) = batch else { return };
    if interrupt::requested() {
        return;
    }
    let known = origins.iter().position(|(same, _)| same.is_same(&side));
    let index = known.unwrap_or_else(|| {
        origins.push((side.clone(), Origin::default()));
        origins.len() - 1
    });
    let Some((_, origin)) = origins.get(index) else { return };
    let (from, to) = match held(&side, &jobs, target, shared.rules.follow) {
        Ok(sides) => sides,
        Err(failure) => {
            Counts::add(&shared.counts.failed, 1);
            return failure::report(&failure);
        }
    };
    let mut engine = Engine::new(from, to, shared, origin);
    let tree = jobs.iter().find(|job| job.attr.kind == FileKind::Directory);
    if let Some(top) = tree
        && may_meet(&side, &target.side)
    {
        let into = target.side.stat(&target.path).ok().filter(|_| target.into);
        engine.may_meet(&top.attr, into.as_ref());
    }
    engine.run(jobs, progress);
}

/// True when one side is a server of this machine, which may serve what is on the other side, or
/// both are one server, by whatever names and exports.
fn may_meet(from: &Side, to: &Side) -> bool {
    match (from, to) {
        (Side::Local(_), Side::Remote(remote)) | (Side::Remote(remote), Side::Local(_)) => {
            remote.is_local_host()
        }
        (Side::Remote(from), Side::Remote(to)) => {
            from.session.info().verifier == to.session.info().verifier
        }
        (Side::Local(_), Side::Local(_)) => false,
    }
}

/// Both sides of a tree, each held by its directory: no link put into it leads elsewhere.
fn held(side: &Side, jobs: &[Job], target: &Target, follow: bool) -> Result<(Side, Side), Failure> {
    let tree = jobs.iter().find(|job| job.attr.kind == FileKind::Directory);
    let Some(job) = tree else { return Ok((side.clone(), target.side.clone())) };
    let from = match follow {
        true => side.clone(),
        false => side.below(&job.from).map_err(|cause| side.failure(&job.from, cause))?,
    };
    let above = if target.into { target.path.clone() } else { side::parent(&job.to) };
    let to = target.side.below(&above).map_err(|cause| target.side.failure(&above, cause))?;
    Ok((from, to))
}

fn source(connections: &Connections, place: &Place) -> Result<(Side, Vec<u8>), Failure> {
    match place {
        Place::Remote(url) => {
            let remote = connections.remote_url(url)?;
            let path = remote.path.clone();
            Ok((Side::Remote(remote), path))
        }
        Place::Local(path) => Ok((Side::here(), place::bytes(path))),
        Place::Standard => Err(Failure::usage("- stands alone")),
    }
}

fn target(connections: &Connections, to: &Place, count: usize) -> Result<Target, Failure> {
    let (side, mut path) = source(connections, to)?;
    let slash = match to {
        Place::Remote(url) => url.path.ends_with(b"/"),
        Place::Local(path) => place::bytes(path).ends_with(b"/"),
        Place::Standard => false,
    };
    match side.stat(&path) {
        Ok(attr) if attr.kind == FileKind::Directory => {
            path = resolve_directory(&side, path);
            Ok(Target { side, path, into: true, slash })
        }
        Ok(_) if count > 1 || slash => Err(side.failure(&path, "not a directory")),
        Ok(_) => Ok(Target { side, path, into: false, slash }),
        Err(cause) if cause.errno() == libc::ENOENT && count == 1 => {
            // A new directory may be written with a slash.
            let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
            let path = path.get(..end).unwrap_or_default().to_vec();
            Ok(Target { side, path, into: false, slash })
        }
        Err(cause) => Err(side.failure(&path, cause)),
    }
}

enum Plan {
    Copy(Box<Job>),
    /// It went to a device or a pipe already.
    Done,
}

fn plan(
    args: &Args,
    side: &Side,
    path: &[u8],
    place: &Place,
    target: &Target,
) -> Result<Plan, Failure> {
    let fail = |cause: Cause| side.failure(path, cause);
    // As with cp: what is named is followed, unless whole trees are copied.
    let follow = args.dereference || !args.is_recursive();
    let attr = side.attr(path, follow).map_err(fail)?;
    let is_directory = attr.kind == FileKind::Directory;
    if is_directory && !args.is_recursive() {
        return Err(fail("is a directory (not copied; use -r)".into()));
    }
    if target.slash && !target.into && !is_directory {
        return Err(target.side.failure(&target.path, "not a directory"));
    }
    let name = own_name(path, place);
    let mut to = match name {
        Some(name) if target.into => place::join(&target.path, name),
        _ => target.path.clone(),
    };
    if is_directory {
        let inside = to.starts_with(path)
            && (path.is_empty() || to.len() == path.len() || to.get(path.len()) == Some(&b'/'));
        if side.is_same(&target.side) && inside {
            return Err(fail("cannot copy a directory into itself".into()));
        }
    } else if attr.kind != FileKind::Symlink {
        to = resolve(&target.side, to);
        if !args.transfer.rules().dry_run
            && let Some(done) = to_special(side, path, &attr, &target.side, &to)?
        {
            return Ok(done);
        }
    }
    let there = if args.rules().ask() { look(&target.side, &to)? } else { There::Unknown };
    Ok(Plan::Copy(Box::new(Job::new(path.to_vec(), to, attr, there))))
}

/// What has the name of a copy.
fn look(side: &Side, path: &[u8]) -> Result<There, Failure> {
    match side.lstat(path) {
        Ok(attr) => Ok(There::Is(attr)),
        Err(cause) if cause.errno() == libc::ENOENT => Ok(There::Missing),
        Err(cause) => Err(side.failure(path, cause)),
    }
}

/// The name that something has when it is copied into a directory; `None` for the contents of
/// a directory: an export's root, `.`, `dir/.`, `..`, `/`.
fn own_name<'p>(path: &'p [u8], place: &Place) -> Option<&'p [u8]> {
    let name = place::name(path);
    let dotted = matches!(place, Place::Remote(url) if url.path.ends_with(b"/."));
    (!dotted && !matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// Where a file really goes: an existing symlink is kept, what it leads to is replaced.
fn resolve(side: &Side, mut path: Vec<u8>) -> Vec<u8> {
    let start = path.clone();
    for _ in 0..LINKS_MAX {
        match side.lstat(&path) {
            Ok(attr) if attr.kind == FileKind::Symlink => {}
            _ => return path,
        }
        let Ok(target) = side.read_link(&path) else { return path };
        let absolute = target.starts_with(b"/");
        if absolute && matches!(side, Side::Remote(_)) {
            // It leads out of what we see.
            return start;
        }
        path = if absolute { target } else { place::join(place::split(&path).0, &target) };
    }
    start
}

/// A directory that is copied to is meant itself, and gets owner, mode and times, where a symlink
/// names it. (Here it is held open, see [`Side::below`].)
fn resolve_directory(side: &Side, path: Vec<u8>) -> Vec<u8> {
    match side {
        Side::Local(_) => path,
        Side::Remote(_) => resolve(side, path),
    }
}

/// A device or a pipe of this machine gets the bytes; it is not replaced by a file.
fn to_special(
    from: &Side,
    path: &[u8],
    attr: &Attr,
    to_side: &Side,
    to: &[u8],
) -> Result<Option<Plan>, Failure> {
    let (Side::Remote(remote), Side::Local(_), FileKind::File) = (from, to_side, attr.kind) else {
        return Ok(None);
    };
    match to_side.lstat(to) {
        Ok(there) if is_special(there.kind) => {}
        _ => return Ok(None),
    }
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(place::local(to))
        .map_err(|error| to_side.failure(to, error))?;
    stream::send(&remote.at(path), file)?;
    Ok(Some(Plan::Done))
}

fn is_special(kind: FileKind) -> bool {
    !matches!(kind, FileKind::File | FileKind::Directory | FileKind::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<'p>(text: &str, path: &'p [u8]) -> Option<&'p [u8]> {
        own_name(path, &Place::parse(std::ffi::OsStr::new(text)).expect("a place"))
    }

    #[test]
    fn contents_of_directories_have_no_name_of_their_own() {
        assert_eq!(name("a/b", b"a/b"), Some(&b"b"[..]));
        assert_eq!(name("a/b/", b"a/b/"), Some(&b"b"[..]));
        assert_eq!(name("a/.", b"a/."), None);
        assert_eq!(name("/", b"/"), None);
        assert_eq!(name("dafs://h/", b""), None);
        assert_eq!(name("dafs://h/a/.", b"a"), None);
        assert_eq!(name("dafs://h/a", b"a"), Some(&b"a"[..]));
    }

    #[test]
    fn local_symlinks_are_resolved_to_where_files_go() {
        let dir = std::env::temp_dir().join(format!("dafs-resolve-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let link = dir.join("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("real", &link).expect("symlink");
        let resolved = resolve(&Side::here(), place::bytes(&link));
        assert_eq!(resolved, place::bytes(&dir.join("real")));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
