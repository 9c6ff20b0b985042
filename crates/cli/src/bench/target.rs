//! What `bench io` and `bench postmark` measure: a URL or a path.

use std::ffi::OsStr;
use std::io;

use dafs_bench::Wait;
use dafs_bench::target::{Connect, Local, Memory, ReadPath, Remote, Target};
use dafs_protocol::WaitMode;

use crate::connect::ConnectArgs;
use crate::failure::{Cause, Failure, USAGE};
use crate::interrupt;
use crate::place::{self, Place};

/// The target that `text` names, and whether it is on this machine. `direct`: past the kernel's
/// cache, for paths; `memory` and `read_path`: for URLs.
///
/// # Errors
/// It makes no sense, or cannot be reached.
pub fn open(
    connect: &ConnectArgs,
    text: &OsStr,
    (direct, memory, read_path): (bool, Memory, ReadPath),
) -> Result<(Box<dyn Target>, bool), Failure> {
    let url = match Place::parse(text)? {
        Place::Local(path) => {
            if !path.is_dir() {
                return Err(Failure::about(path.display(), Cause::from("not a directory")));
            }
            return Ok((Box::new(Local::new(&path, direct)), true));
        }
        Place::Remote(_) if direct => {
            return Err(Failure::usage("--direct is for paths"));
        }
        Place::Remote(url) => url,
        Place::Standard => return Err(Failure::usage("a URL or a path is needed")),
    };
    let here = connect.remote(&url)?.is_local_host();
    let path = place::clean(&url.path);
    let (args, about) = (connect.clone(), url.clone());
    let session: Connect = Box::new(move |wait| {
        let mut options = args.options(&url).map_err(|failure| io::Error::other(failure.text))?;
        options.in_place = memory != Memory::Bounce;
        options.optimistic = read_path == ReadPath::Optimistic;
        if let Some(wait) = wait {
            options.wait = mode(wait);
        }
        args.session(&url, options).map_err(io::Error::from)
    });
    let remote =
        Remote::new(session, &path, (memory, read_path)).map_err(|error| failure(&about, error))?;
    Ok((Box::new(remote), here))
}

/// As sessions say it.
pub fn mode(wait: Wait) -> WaitMode {
    match wait {
        Wait::Polled => WaitMode::Polled,
        Wait::Sleeping => WaitMode::Sleeping,
        Wait::Adaptive => WaitMode::Adaptive,
    }
}

/// What a benchmark failed with, about `about`.
pub fn failure(about: impl std::fmt::Display, error: io::Error) -> Failure {
    if interrupt::requested() {
        return Failure::about("", Cause::Interrupted);
    }
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<dafs_client::Error>()).cloned();
    match inner {
        Some(inner) => Failure::about(about, inner),
        None if error.kind() == io::ErrorKind::InvalidInput => {
            Failure { code: USAGE, ..Failure::about(about, error) }
        }
        None => Failure::about(about, error),
    }
}
