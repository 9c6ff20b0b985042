//! Removing: what the origin lacks, and what is in the way.

use dafs_protocol::{Attr, FileKind};

use super::{Counts, Engine, Job, again};
use crate::failure::Cause;
use crate::place;

impl Engine<'_> {
    /// Removes what has the name of a copy, with all that is in it; what is excluded stays, and
    /// so does the copy's name then.
    pub(super) fn make_way(&self, job: &Job) -> Result<(), Cause> {
        let at = match self.to.lstat(&job.to) {
            Ok(at) => at,
            Err(cause) if cause.errno() == libc::ENOENT => return Ok(()),
            Err(cause) => return Err(cause),
        };
        if !self.excludes(&job.from, at.kind) && self.remove(&job.to, &job.from, &at)? {
            return Ok(());
        }
        match self.is_stopped() {
            true => Err(Cause::Interrupted),
            false => Err("what is there is not removed, or not all of it".into()),
        }
    }

    /// Removes what the origin, where it would be called `from`, does not have; what is excluded
    /// stays, with the directories that it is in. True: it is gone.
    pub(super) fn remove(&self, path: &[u8], from: &[u8], at: &Attr) -> Result<bool, Cause> {
        if self.is_stopped() {
            return Ok(false);
        }
        let is_directory = at.kind == FileKind::Directory;
        if is_directory && self.is_origin(at) {
            self.failed(&self.to, path, "is what is copied: it is not removed".into());
            return Ok(false);
        }
        if is_directory {
            self.open_directory(path, *at)?;
            let emptied = self.remove_entries(path, from);
            if !matches!(emptied, Ok(true)) {
                self.close_directory(path, at)?;
                return emptied;
            }
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
    fn remove_entries(&self, path: &[u8], from: &[u8]) -> Result<bool, Cause> {
        let mut empty = true;
        // All names first: a list of what changes under it may leave some out.
        let entries: Vec<_> = self.to.list(path, false)?.collect::<Result<_, _>>()?;
        for (name, attr) in entries {
            let to = place::join(path, &name);
            let attr = attr.map_or_else(|| self.to.lstat(&to), Ok)?;
            let from = place::join(from, &name);
            if self.excludes(&from, attr.kind) {
                empty = false;
                continue;
            }
            empty &= self.remove(&to, &from, &attr)?;
        }
        Ok(empty)
    }
}
