//! `dafs mirror`: makes one tree equal to another.

use std::ffi::OsString;
use std::time::Instant;

use dafs_protocol::FileKind;

use super::engine::{Engine, Job, Origin, Shared};
use super::like::identity;
use super::options::{Shown, Transfer};
use super::rules::{Replace, Rules, There};
use super::side::Side;
use super::{look, may_meet, resolve_directory, source};
use crate::connect::{ConnectArgs, Connections};
use crate::failure::Failure;
use crate::interrupt;
use crate::place::Place;
use crate::progress::Progress;

/// Make a tree equal to another one: copy what is new or changed, remove what is not there.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "dafs mirror [OPTIONS] FROM TO",
    after_help = "Examples:\n  \
    dafs mirror ./photos dafs://localhost/photos\n  \
    dafs mirror --dry-run dafs://localhost/photos ./photos\n  \
    dafs mirror --exclude '*.tmp' --exclude /cache/ ./tree dafs://localhost/tree\n  \
    dafs mirror --no-delete -v dafs://one/data dafs://two/data\n\n\
    FROM and TO are directories, at least one of them a URL; TO is made where it is missing, and\n\
    gets what is in FROM (no FROM inside TO). A file is copied again when its type, size or time\n\
    of modification differs, or with --checksum its bytes. Mode, times, links (hard ones too),\n\
    holes, extended attributes and access control lists are kept, owners when root; attributes of\n\
    files that are not copied are compared with --checksum only, but for mode, owner and time.\n\
    What is excluded is neither copied nor removed. One that was interrupted or killed is\n\
    finished by the next one; where nothing differs nothing is changed. What cannot be read is\n\
    named (exit status 1), and nothing is removed from the directory that it is in."
)]
pub struct Args {
    /// Remove nothing.
    #[arg(long)]
    no_delete: bool,
    #[command(flatten)]
    transfer: Transfer,
    #[command(flatten)]
    connect: ConnectArgs,
    /// The directory to copy (URL or path).
    #[arg(value_name = "FROM")]
    from: OsString,
    /// The directory that becomes equal (URL or path).
    #[arg(value_name = "TO")]
    to: OsString,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let started = Instant::now();
    let connections = Connections::new(&args.connect);
    let (from_place, to_place) = (Place::parse(&args.from)?, Place::parse(&args.to)?);
    if !matches!((&from_place, &to_place), (Place::Remote(_), _) | (_, Place::Remote(_))) {
        let text = "one side must be a URL (dafs://...); use rsync for local trees";
        return Err(Failure::usage(text));
    }
    let (from, from_path) = source(&connections, &from_place)?;
    let (to, to_path) = source(&connections, &to_place)?;
    let to_path = resolve_directory(&to, to_path);
    let shared = Shared {
        rules: Rules {
            replace: Replace::Changed,
            xattrs: true,
            delete: !args.no_delete,
            clear: true,
            ..args.transfer.rules()
        },
        limit: args.transfer.limit(),
        ..Shared::default()
    };
    let job = plan(&shared.rules, (&from, &from_path), (&to, &to_path))?;
    let meets = may_meet(&from, &to);
    // Each held by its directory: no link put into it leads elsewhere.
    let from = from.below(&from_path).map_err(|cause| from.failure(&from_path, cause))?;
    let held = match job.there {
        There::Is(_) => to.below(&to_path).map_err(|cause| to.failure(&to_path, cause))?,
        _ => to.clone(),
    };
    let progress = Progress::start(args.transfer.shows_progress());
    let origin = Origin::default();
    let mut engine = Engine::new(from, held, &shared, &origin);
    if meets {
        engine.may_meet(&job.attr, None);
    }
    engine.run(vec![job], &progress);
    if shared.rules.sync && !shared.rules.dry_run && !interrupt::requested() {
        progress.text("waiting for the disk");
        to.sync(&to_path).map_err(|cause| to.failure(&to_path, cause))?;
    }
    drop(progress);
    args.transfer.summarize(&shared.counts, started, Shown::Mirror)
}

/// The job of the whole tree.
fn plan(
    rules: &Rules,
    (from, from_path): (&Side, &[u8]),
    (to, to_path): (&Side, &[u8]),
) -> Result<Job, Failure> {
    let attr = from.stat(from_path).map_err(|cause| from.failure(from_path, cause))?;
    if attr.kind != FileKind::Directory {
        return Err(from.failure(from_path, "not a directory: dafs cp copies files"));
    }
    if from.is_same(to) && (is_within(from_path, to_path) || is_within(to_path, from_path)) {
        return Err(to.failure(to_path, "lies within the other one, or is the same"));
    }
    let mut there = match to.stat(to_path) {
        Ok(attr) => There::Is(attr),
        Err(_) => look(to, to_path)?,
    };
    if let There::Is(at) = &there {
        if at.kind != FileKind::Directory {
            return Err(to.failure(to_path, "not a directory"));
        }
        if may_meet(from, to) && identity(at) == identity(&attr) {
            return Err(to.failure(to_path, "is the directory that is copied"));
        }
    } else if !rules.dry_run {
        to.mkdir(to_path, 0o700).map_err(|cause| to.failure(to_path, cause))?;
        there = look(to, to_path)?;
    }
    Ok(Job::new(from_path.to_vec(), to_path.to_vec(), attr, there))
}

/// True when `path` is `above`, or lies below it.
fn is_within(path: &[u8], above: &[u8]) -> bool {
    let rest = path.strip_prefix(above);
    rest.is_some_and(|rest| above.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_within_is_told_by_its_path() {
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a") && !is_within(b"a", b"a/b"));
    }
}
