//! Removing: what the origin lacks, and what is in the way.

use dafs_protocol::FileKind;

use super::{Counts, Engine, again};
use crate::failure::Cause;
use crate::place;

impl Engine<'_> {
    /// Removes what is in the way of something else, with all that is in it.
    pub(super) fn remove_tree(&self, path: &[u8]) -> Result<(), Cause> {
        match self.to.lstat(path) {
            Ok(attr) => self.remove(path, None, attr.kind).map(drop),
            Err(cause) if cause.errno() == libc::ENOENT => Ok(()),
            Err(cause) => Err(cause),
        }
    }

    /// Removes what the origin, where it would be called `from`, does not have; what is excluded
    /// stays, with the directories that it is in.
    pub(super) fn remove_unwanted(
        &self,
        path: &[u8],
        from: &[u8],
        kind: FileKind,
    ) -> Result<(), Cause> {
        self.remove(path, Some(from), kind).map(drop)
    }

    /// True: it is gone.
    fn remove(&self, path: &[u8], from: Option<&[u8]>, kind: FileKind) -> Result<bool, Cause> {
        if self.is_stopped() {
            return Ok(false);
        }
        let is_directory = kind == FileKind::Directory;
        if is_directory && !self.remove_entries(path, from)? {
            return Ok(false);
        }
        if !self.rules().dry_run {
            let gone = again(|| match is_directory {
                true => self.to.remove_dir(path),
                false => self.to.remove(path),
            });
            match gone {
                // Done before its answer was lost, or by somebody else.
                Err(cause) if cause.errno() == libc::ENOENT => {}
                other => other?,
            }
        }
        self.say(|| format!("removed {}", self.to.name(path)));
        Counts::add(&self.counts().removed, 1);
        Ok(true)
    }

    /// True: nothing is left in it.
    fn remove_entries(&self, path: &[u8], from: Option<&[u8]>) -> Result<bool, Cause> {
        let mut empty = true;
        // All names first: a list of what changes under it may leave some out.
        let entries: Vec<_> = self.to.list(path, false)?.collect::<Result<_, _>>()?;
        for (name, attr) in entries {
            let to = place::join(path, &name);
            let kind = attr.map_or_else(|| self.to.lstat(&to), Ok)?.kind;
            let from = from.map(|from| place::join(from, &name));
            if from.as_ref().is_some_and(|from| self.excludes(from, kind)) {
                empty = false;
                continue;
            }
            empty &= self.remove(&to, from.as_deref(), kind)?;
        }
        Ok(empty)
    }
}
