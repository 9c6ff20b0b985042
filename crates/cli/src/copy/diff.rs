//! `dafs diff`: what differs between two trees.

use std::collections::BTreeMap;
use std::ffi::OsString;

use dafs_protocol::{Attr, FileKind};
use serde::Serialize;

use super::ends::{Source, are_same};
use super::filter::Filter;
use super::side::Side;
use super::source;
use crate::connect::{ConnectArgs, Connections};
use crate::failure::{self, Cause, Failure};
use crate::output::Output;
use crate::place::{self, Place};
use crate::{interrupt, progress, text};

/// Name what differs between two files or trees.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "dafs diff [OPTIONS] A B",
    after_help = "Examples:\n  \
    dafs diff ./tree dafs://localhost/tree\n  \
    dafs diff --checksum dafs://one/data dafs://two/data\n  \
    dafs diff --exclude '*.tmp' -q ./tree dafs://localhost/tree && echo same\n\n\
    Each line is what differs and a path: 'only in A', 'only in B', or a list of type, size, time\n\
    (of modification), mode, target (of a symbolic link), device, content. Bytes of files with the\n\
    same size are compared with --checksum only. Exit status 0: nothing differs; 1: something\n\
    does, or could not be read and is named on standard error. With -q the first difference\n\
    ends it, and nothing is printed."
)]
pub struct Args {
    /// Compare the bytes of files of the same size.
    #[arg(long)]
    checksum: bool,
    #[command(flatten)]
    filter: Filter,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// A file or directory (URL or path).
    #[arg(value_name = "A")]
    a: OsString,
    /// The other one (URL or path).
    #[arg(value_name = "B")]
    b: OsString,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let (a, b) = (Place::parse(&args.a)?, Place::parse(&args.b)?);
    let (a, b) = (source(&connections, &a)?, source(&connections, &b)?);
    let mut comparison = Comparison { args, a: a.0, b: b.0, out: Output::new(), found: 0 };
    let result = comparison.compare_tops(&a.1, &b.1);
    comparison.out.flush()?;
    result?;
    match comparison.found {
        0 => Ok(()),
        _ => Err(Failure::silent()),
    }
}

struct Comparison<'a> {
    args: &'a Args,
    a: Side,
    b: Side,
    out: Output,
    /// Differences.
    found: u64,
}

/// One name of both trees: the paths, and the path below the tops.
struct Pair {
    a: Vec<u8>,
    b: Vec<u8>,
    below: Vec<u8>,
}

#[derive(Serialize)]
struct Line<'l> {
    path: String,
    differs: &'l [&'static str],
}

type Names = BTreeMap<Vec<u8>, Attr>;

impl Comparison<'_> {
    fn compare_tops(&mut self, a: &[u8], b: &[u8]) -> Result<(), Failure> {
        let attr_a = self.a.stat(a).map_err(|cause| self.a.failure(a, cause))?;
        let attr_b = self.b.stat(b).map_err(|cause| self.b.failure(b, cause))?;
        if attr_a.kind == FileKind::Directory && attr_b.kind == FileKind::Directory {
            // No link that is put into a tree meanwhile leads elsewhere.
            self.a = self.a.below(a).map_err(|cause| self.a.failure(a, cause))?;
            self.b = self.b.below(b).map_err(|cause| self.b.failure(b, cause))?;
        }
        let top = Pair { a: a.to_vec(), b: b.to_vec(), below: Vec::new() };
        let mut open = vec![(top, attr_a, attr_b)];
        // Depth first, in the order of names.
        while let Some((pair, attr_a, attr_b)) = open.pop() {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            self.compare(&pair, &attr_a, &attr_b)?;
            if self.is_enough() {
                return Ok(());
            }
            if attr_a.kind == FileKind::Directory && attr_b.kind == FileKind::Directory {
                let mut below = self.compare_entries(&pair)?;
                below.reverse();
                open.append(&mut below);
            }
        }
        Ok(())
    }

    fn is_enough(&self) -> bool {
        progress::is_quiet() && self.found > 0
    }

    /// What both have, to be compared.
    fn compare_entries(&mut self, pair: &Pair) -> Result<Vec<(Pair, Attr, Attr)>, Failure> {
        let (Some(names_a), Some(mut names_b)) =
            (self.list(true, &pair.a, &pair.below)?, self.list(false, &pair.b, &pair.below)?)
        else {
            return Ok(Vec::new());
        };
        let mut both = Vec::new();
        for (name, attr_a) in names_a {
            match names_b.remove(&name) {
                Some(attr_b) => both.push((pair.child(&name), attr_a, attr_b)),
                None => self.tell(&place::join(&pair.below, &name), &["only in A"])?,
            }
        }
        for name in names_b.keys() {
            self.tell(&place::join(&pair.below, name), &["only in B"])?;
        }
        Ok(both)
    }

    /// `None`: it cannot be read, which is reported.
    fn list(&mut self, is_a: bool, path: &[u8], below: &[u8]) -> Result<Option<Names>, Failure> {
        let side = if is_a { &self.a } else { &self.b };
        let filter = &self.args.filter;
        let list = || -> Result<Names, (Vec<u8>, Cause)> {
            let mut names = Names::new();
            for entry in side.list(path, false).map_err(|cause| (path.to_vec(), cause))? {
                let (name, attr) = entry.map_err(|cause| (path.to_vec(), cause))?;
                let child = place::join(path, &name);
                let attr = attr.map_or_else(|| side.lstat(&child), Ok);
                let attr = attr.map_err(|cause| (child, cause))?;
                let is_directory = attr.kind == FileKind::Directory;
                if !filter.excludes(&place::join(below, &name), is_directory) {
                    names.insert(name, attr);
                }
            }
            Ok(names)
        };
        match list() {
            Ok(names) => Ok(Some(names)),
            Err((path, cause)) => {
                let is_final = cause.is_final();
                let failure = side.failure(&path, cause);
                if is_final {
                    return Err(failure);
                }
                failure::report(&failure);
                Ok(None)
            }
        }
    }

    fn compare(&mut self, pair: &Pair, a: &Attr, b: &Attr) -> Result<(), Failure> {
        if a.kind != b.kind {
            return self.tell(&pair.below, &["type"]);
        }
        let mut differs = Vec::new();
        let is_file = a.kind == FileKind::File;
        if is_file && a.size != b.size {
            differs.push("size");
        }
        if a.modified != b.modified {
            differs.push("time");
        }
        if a.kind != FileKind::Symlink && a.mode & 0o7777 != b.mode & 0o7777 {
            differs.push("mode");
        }
        if matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice) && a.rdev != b.rdev {
            differs.push("device");
        }
        let read = match a.kind {
            FileKind::File if self.args.checksum && a.size == b.size => self.same_bytes(pair),
            FileKind::Symlink => self.same_target(pair),
            _ => Ok(true),
        };
        match read {
            Ok(true) => {}
            Ok(false) => differs.push(if is_file { "content" } else { "target" }),
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            Err(failure) => return Err(failure),
        }
        if differs.is_empty() { Ok(()) } else { self.tell(&pair.below, &differs) }
    }

    fn same_bytes(&self, pair: &Pair) -> Result<bool, Failure> {
        let open = |side: &Side, path: &[u8]| {
            Source::open(side, path, false).map_err(|cause| side.failure(path, cause))
        };
        let (a, b) = (open(&self.a, &pair.a)?, open(&self.b, &pair.b)?);
        are_same(&a, &b, &interrupt::requested).map_err(|cause| {
            let is_b = self.b.is_at_fault(&self.a, &cause);
            let (side, path) = if is_b { (&self.b, &pair.b) } else { (&self.a, &pair.a) };
            side.failure(path, cause)
        })
    }

    fn same_target(&self, pair: &Pair) -> Result<bool, Failure> {
        let read = |side: &Side, path: &[u8]| {
            side.read_link(path).map_err(|cause| side.failure(path, cause))
        };
        Ok(read(&self.a, &pair.a)? == read(&self.b, &pair.b)?)
    }

    fn tell(&mut self, below: &[u8], differs: &[&'static str]) -> Result<(), Failure> {
        self.found += 1;
        if progress::is_quiet() {
            return Ok(());
        }
        let path = if below.is_empty() { ".".to_owned() } else { text::escape(below) };
        if self.args.json {
            self.out.json(&Line { path, differs })?;
        } else {
            self.out.line(&format!("{}: {path}", differs.join(", ")))?;
        }
        Ok(())
    }
}

impl Pair {
    fn child(&self, name: &[u8]) -> Pair {
        Pair {
            a: place::join(&self.a, name),
            b: place::join(&self.b, name),
            below: place::join(&self.below, name),
        }
    }
}
