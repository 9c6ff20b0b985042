//! What became of a change that was under way when the server died, and of which its notes do not
//! tell: it died in the midst of it, or has none.
//!
//! The change was done, or not. It is asked for again; where
//! the answer is the one that a change already done would give, and what is found is what it
//! would have made, it was done: certain while no other machine does the same at that moment. What
//! cannot be told apart otherwise is an error.

use std::sync::Arc;
use std::time::SystemTime;

use dafs_client::{File, Object as Found, OpenOptions, Result as Outcome, Session};
use dafs_protocol::{Attr, FileKind, Status};

use super::DafsFs;
use super::error::Errno;
use super::nodes::Node;
use crate::kernel::Caller;

/// Clocks of client and server may differ by this, in seconds.
const SKEW: i64 = 120;

fn is_unknown<T>(outcome: &Outcome<T>) -> bool {
    matches!(outcome, Err(error) if error.status() == Some(Status::OutcomeUnknown))
}

fn fails_with<T>(outcome: &Outcome<T>, errno: i32) -> bool {
    matches!(outcome, Err(error) if error.errno() == errno)
}

/// Made a moment ago by this caller.
fn is_fresh(attr: &Attr, caller: &Caller) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
    let made = attr.created.unwrap_or(attr.changed).seconds;
    attr.uid == caller.uid && (now - made).abs() <= SKEW
}

impl DafsFs {
    /// A directory, symlink or node was to be made.
    pub(super) fn made(
        &self,
        caller: &Caller,
        dir: &Arc<Node>,
        name: &[u8],
        kind: FileKind,
        target: &[u8],
        make: impl Fn() -> Result<Outcome<Found>, Errno>,
    ) -> Result<Found, Errno> {
        let first = make()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        let again = self.certain(make)?;
        if !fails_with(&again, libc::EEXIST) {
            return Ok(again?);
        }
        let found = self.on(dir, |handle| self.session.lookup_at(handle, name))?;
        let empty = kind != FileKind::Directory || found.attr.links <= 2;
        let same = kind != FileKind::Symlink
            || self.session.read_link_of(found.handle).is_ok_and(|is| is == target);
        let ours = found.attr.kind == kind && empty && same && is_fresh(&found.attr, caller);
        if ours { Ok(found) } else { Err(Errno::EXIST) }
    }

    /// Asks until the server lives long enough to say what became of it.
    fn certain<T>(
        &self,
        call: impl Fn() -> Result<Outcome<T>, Errno>,
    ) -> Result<Outcome<T>, Errno> {
        loop {
            let outcome = call()?;
            if !is_unknown(&outcome) {
                return Ok(outcome);
            }
        }
    }

    /// A change that makes the same when it is done twice.
    pub(super) fn repeated<T>(
        &self,
        change: impl Fn() -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        Ok(self.certain(change)??)
    }

    /// A name was to be removed; `errno` says that it is not there.
    pub(super) fn gone(
        &self,
        errno: i32,
        remove: impl Fn() -> Result<Outcome<()>, Errno>,
    ) -> Result<(), Errno> {
        let first = remove()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        let again = self.certain(remove)?;
        if fails_with(&again, errno) { Ok(()) } else { Ok(again?) }
    }

    /// An extended attribute was to be set.
    pub(super) fn set(
        &self,
        set: impl Fn() -> Result<Outcome<()>, Errno>,
        is_set: impl Fn() -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let first = set()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        let again = self.certain(set)?;
        if fails_with(&again, libc::EEXIST) && is_set()? { Ok(()) } else { Ok(again?) }
    }

    /// A name was to be moved; `leaves`: something has the old one then.
    pub(super) fn moved(
        &self,
        from: (&Arc<Node>, &[u8]),
        to: (&Arc<Node>, &[u8]),
        leaves: bool,
        rename: impl Fn() -> Result<Outcome<()>, Errno>,
    ) -> Result<(), Errno> {
        let first = rename()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        // What was moved is known: the kernel looked it up.
        let moved = self.nodes.named(from.0.number, from.1);
        let there = self.on(to.0, |handle| self.session.lookup_at(handle, to.1));
        let is_there = match (&moved, there) {
            (Some(node), Ok(found)) => node.is(&found.attr),
            _ => false,
        };
        if is_there && leaves {
            return Ok(());
        }
        let again = self.certain(rename)?;
        if is_there && fails_with(&again, libc::ENOENT) { Ok(()) } else { Ok(again?) }
    }

    /// A link was to be made.
    pub(super) fn linked(
        &self,
        from: &Arc<Node>,
        dir: &Arc<Node>,
        name: &[u8],
        link: impl Fn() -> Result<Outcome<Found>, Errno>,
    ) -> Result<Found, Errno> {
        let first = link()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        let again = self.certain(link)?;
        if !fails_with(&again, libc::EEXIST) {
            return Ok(again?);
        }
        let found = self.on(dir, |handle| self.session.lookup_at(handle, name))?;
        if from.is(&found.attr) { Ok(found) } else { Err(Errno::EXIST) }
    }

    /// A file was to be made and opened.
    pub(super) fn open_new(
        &self,
        caller: &Caller,
        session: &Session,
        dir: &Arc<Node>,
        name: &[u8],
        options: OpenOptions,
    ) -> Result<(File, bool), Errno> {
        let change = dir.change();
        let create = |handle| change.saw(session.create_at(handle, name, options));
        let open = || self.on_handle(dir, create);
        let first = open()?;
        if !is_unknown(&first) {
            return Ok(first?);
        }
        let again = self.certain(open)?;
        if !fails_with(&again, libc::EEXIST) {
            return Ok(again?);
        }
        let found = self.on(dir, |handle| self.session.lookup_at(handle, name))?;
        let new = found.attr.kind == FileKind::File && found.attr.size == 0;
        if !new || found.attr.links != 1 || !is_fresh(&found.attr, caller) {
            return Err(Errno::EXIST);
        }
        let options = OpenOptions { create: false, exclusive: false, ..options };
        let session = if found.attr.uid == caller.uid { &self.session } else { session };
        let opened: Outcome<(File, bool)> =
            self.on_handle(dir, |handle| session.open_at(handle, name, options))?;
        Ok(opened?)
    }
}
