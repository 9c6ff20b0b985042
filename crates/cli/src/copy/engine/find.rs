//! Finding what is to be copied: several threads, each in a directory of its own.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use dafs_protocol::{Attr, FileKind};

use super::{Counts, Dir, Engine, Job, Meeting, again};
use crate::copy::like::{Like, identity};
use crate::copy::partial;
use crate::copy::rules::{There, Verdict};
use crate::copy::side::Entries;
use crate::failure::Cause;
use crate::place;

/// Mode of a directory while it is filled, and what that needs.
const OPEN: u32 = 0o700;

const INTO_ITSELF: &str = "cannot copy a directory into itself";

/// What is still to be looked into, the last found first: so there is little of it at a time.
pub struct Walk {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    open: Vec<Job>,
    /// Threads that may find more.
    busy: usize,
}

impl Walk {
    /// Begins with these.
    pub fn new(mut jobs: Vec<Job>) -> Walk {
        jobs.reverse();
        Walk { state: Mutex::new(State { open: jobs, busy: 0 }), changed: Condvar::new() }
    }

    /// The next; `None` when nothing is left and nobody can find more.
    fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.open.pop() {
                state.busy += 1;
                return Some(job);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn push(&self, job: Job) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open.push(job);
        self.changed.notify_one();
    }

    /// What was popped is done with.
    fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.busy -= 1;
        if state.busy == 0 {
            self.changed.notify_all();
        }
    }
}

/// What is at the target, by name; `None`: nobody wants to know.
type Names = Option<HashMap<Vec<u8>, Option<Attr>>>;

impl Engine<'_> {
    /// Looks into directories until there are no more.
    pub(super) fn find(&self, walk: &Walk) {
        while let Some(job) = walk.pop() {
            if !self.is_stopped() {
                self.found(job, walk);
            }
            walk.done();
        }
    }

    fn found(&self, job: Job, walk: &Walk) {
        if job.attr.kind == FileKind::Directory {
            return self.directory(job, walk);
        }
        Counts::add(&self.counts().files_found, 1);
        if job.attr.kind == FileKind::File {
            Counts::add(&self.counts().bytes_found, job.attr.size);
        }
        // What needs no look at its bytes and no other of its names is done with here.
        if job.attr.links < 2 {
            match self.rules().judge(&self.like(&job.attr), &job.there) {
                Verdict::Same => return self.unchanged(job),
                Verdict::Keep => return self.kept(job),
                _ => {}
            }
        }
        self.queue.push(job);
    }

    fn directory(&self, job: Job, walk: &Walk) {
        if let Err(text) = self.is_new(&job) {
            self.failed(&self.from, &job.from, text.into());
            return self.leave(job.dir);
        }
        let entries = match self.from.list(&job.from, self.rules().follow) {
            Ok(entries) => entries,
            Err(cause) => {
                self.failed(&self.from, &job.from, cause);
                return self.leave(job.dir);
            }
        };
        let Some((there, names)) = self.enter(&job) else { return self.leave(job.dir) };
        if let Err(cause) = self.entered(&job, there.as_ref()) {
            self.failed(&self.to, &job.to, cause);
            return self.leave(job.dir);
        }
        Counts::add(&self.counts().directories, 1);
        let opened = there.is_some_and(|at| self.opens(&at));
        let dir = Arc::new(Dir {
            from: job.from,
            to: job.to,
            attr: job.attr,
            there,
            touched: AtomicBool::new(opened),
            bequeaths: OnceLock::new(),
            parent: job.dir,
        });
        self.entries(&dir, entries, names, walk);
        self.leave(Some(dir));
    }

    /// A directory within itself, or within the target, would never end.
    fn is_new(&self, job: &Job) -> Result<(), &'static str> {
        let here = identity(&job.attr);
        let is_copy =
            |meeting: &Meeting| meeting.into == Some(here) || meeting.copy.get() == Some(&here);
        if self.meeting.as_ref().is_some_and(is_copy) {
            return Err(INTO_ITSELF);
        }
        let id = (job.attr.device, job.attr.inode);
        let mut above = job.dir.as_ref().filter(|_| self.rules().follow);
        while let Some(dir) = above {
            if (dir.attr.device, dir.attr.inode) == id {
                return Err("a symbolic link leads back to a directory that it lies in");
            }
            above = dir.parent.as_ref();
        }
        Ok(())
    }

    /// A directory of the copy was found `there`, or made: the first is its top, and none may be
    /// the origin's.
    fn entered(&self, job: &Job, there: Option<&Attr>) -> Result<(), Cause> {
        let Some(meeting) = &self.meeting else { return Ok(()) };
        if there.is_some_and(|there| self.is_origin(there)) {
            return Err(INTO_ITSELF.into());
        }
        if job.dir.is_none() && !(there.is_none() && self.rules().dry_run) {
            let top = there.map_or_else(|| self.to.stat(&job.to), |there| Ok(*there))?;
            let _ = meeting.copy.set(identity(&top));
        }
        Ok(())
    }

    /// True for the top of what is copied, met on the other side.
    pub(super) fn is_origin(&self, attr: &Attr) -> bool {
        self.meeting.as_ref().is_some_and(|meeting| meeting.origin == identity(attr))
    }

    /// The directory to copy into: what it was before, if it was there, and what is in it. `None`:
    /// there is none; that is reported.
    fn enter(&self, job: &Job) -> Option<(Option<Attr>, Names)> {
        let entered = self.make_directory(job).and_then(|there| {
            let Some(at) = there else { return Ok((None, self.rules().ask().then(HashMap::new))) };
            if !self.rules().ask() {
                return Ok((Some(at), None));
            }
            let mut names = HashMap::new();
            for entry in self.to.list(&job.to, false)? {
                let (name, attr) = entry?;
                names.insert(name, attr);
            }
            Ok((Some(at), Some(names)))
        });
        entered.map_err(|cause| self.failed(&self.to, &job.to, cause)).ok()
    }

    /// Makes the directory, or finds it.
    fn make_directory(&self, job: &Job) -> Result<Option<Attr>, Cause> {
        if let There::Is(at) = &job.there {
            if at.kind == FileKind::Directory {
                return self.open_directory(&job.to, *at).map(Some);
            }
            if !self.rules().clear {
                return Err("cannot overwrite a non-directory with a directory".into());
            }
            self.make_way(job)?;
        }
        if self.rules().dry_run {
            Counts::add(&self.counts().made, 1);
            self.say_copied(job);
            return Ok(None);
        }
        let mut tries = 0;
        let made = again(|| {
            tries += 1;
            self.to.mkdir(&job.to, OPEN)
        });
        // Made by the first of several, perhaps.
        if made.is_ok() || tries > 1 {
            self.touch(job);
        }
        match made {
            Ok(()) => {
                Counts::add(&self.counts().made, 1);
                self.say_copied(job);
                Ok(None)
            }
            Err(cause) if cause.is_final() => Err(cause),
            // Whatever the reason was: is there one?
            Err(cause) => match self.to.lstat(&job.to) {
                Ok(at) if at.kind == FileKind::Directory => {
                    self.open_directory(&job.to, at).map(Some)
                }
                Ok(_) => Err("cannot overwrite a non-directory with a directory".into()),
                Err(_) => Err(cause),
            },
        }
    }

    /// A directory of one's own that one may not write to is opened as long as it is filled, or emptied.
    fn opens(&self, at: &Attr) -> bool {
        at.mode & OPEN != OPEN && at.uid == self.uid && self.uid != 0 && !self.rules().dry_run
    }

    pub(super) fn open_directory(&self, path: &[u8], at: Attr) -> Result<Attr, Cause> {
        if self.opens(&at) {
            self.change_mode(path, &at, &self.while_filled(at))?;
        }
        Ok(at)
    }

    /// One that was opened is as it was, with what is left in it.
    pub(super) fn close_directory(&self, path: &[u8], at: &Attr) -> Result<(), Cause> {
        match self.opens(at) {
            true => self.change_mode(path, &self.while_filled(*at), at),
            false => Ok(()),
        }
    }

    fn change_mode(&self, path: &[u8], from: &Attr, to: &Attr) -> Result<(), Cause> {
        let like = Like { owner: None, mode: to.mode & 0o7777, ..self.like(to) };
        self.to.dress(path, &like, Some(from))
    }

    /// What a directory that was there has until it is finished.
    pub(super) fn while_filled(&self, mut at: Attr) -> Attr {
        if self.opens(&at) {
            at.mode |= OPEN;
        }
        at
    }

    fn touch(&self, job: &Job) {
        if let Some(dir) = &job.dir {
            dir.touched.store(true, Ordering::Relaxed);
        }
    }

    fn entries(&self, dir: &Arc<Dir>, entries: Entries, mut names: Names, walk: &Walk) {
        let mut complete = true;
        let mut partials = HashSet::new();
        for entry in entries {
            if self.is_stopped() {
                return;
            }
            let found = entry.map_err(|cause| (dir.from.clone(), cause));
            let found = found.and_then(|(name, attr)| {
                let path = place::join(&dir.from, &name);
                match self.attr_of_entry(&path, attr) {
                    Ok(attr) => Ok((name, path, attr)),
                    // Removed since it was listed.
                    Err(cause) if attr.is_none() && cause.errno() == libc::ENOENT => {
                        Err((Vec::new(), cause))
                    }
                    Err(cause) => Err((path, cause)),
                }
            });
            let (name, from, attr) = match found {
                Ok(found) => found,
                Err((path, _)) if path.is_empty() => continue,
                Err((path, cause)) => {
                    complete = false;
                    self.failed(&self.from, &path, cause);
                    continue;
                }
            };
            if attr.kind == FileKind::File && partial::is_name(&name) {
                continue;
            }
            let there = match names.as_mut().map(|names| names.remove(&name)) {
                None => There::Unknown,
                Some(None) => There::Missing,
                Some(Some(Some(attr))) => There::Is(attr),
                Some(Some(None)) => self.look(&place::join(&dir.to, &name)),
            };
            if self.excludes(&from, attr.kind) {
                continue;
            }
            let to = place::join(&dir.to, &name);
            if self.rules().delete && attr.size >= partial::BYTES_MIN {
                partials.insert(place::name(&partial::name(&to)).to_vec());
            }
            let job = Job { dir: Some(dir.clone()), ..Job::new(from, to, attr, there) };
            match attr.kind {
                FileKind::Directory => walk.push(job),
                _ => self.found(job, walk),
            }
        }
        if !self.rules().delete {
            return;
        }
        let Some(names) = names else { return };
        if names.is_empty() {
            return;
        }
        let wrong = match (complete, self.is_still_there(dir)) {
            (true, true) => return self.remove_others(dir, names, &partials),
            (true, false) => "it is not there any more: nothing is removed from its copy",
            (false, _) => "not all of it can be read: nothing is removed from its copy",
        };
        self.failed(&self.from, &dir.from, wrong.into());
    }

    /// A directory that was removed is empty for whoever has it open.
    fn is_still_there(&self, dir: &Dir) -> bool {
        let follow = dir.parent.is_none() || self.rules().follow;
        let now = self.from.attr(&dir.from, follow);
        now.is_ok_and(|now| now.links > 0 && identity(&now) == identity(&dir.attr))
    }

    fn attr_of_entry(&self, path: &[u8], attr: Option<Attr>) -> Result<Attr, Cause> {
        match attr {
            Some(attr) if attr.kind == FileKind::Symlink && self.rules().follow => {
                self.from.stat(path)
            }
            Some(attr) => Ok(attr),
            None => self.from.attr(path, self.rules().follow),
        }
    }

    /// What is there, where the list did not say.
    fn look(&self, path: &[u8]) -> There {
        self.to.lstat(path).map_or(There::Missing, There::Is)
    }

    pub(super) fn excludes(&self, from: &[u8], kind: FileKind) -> bool {
        let filter = &self.rules().filter;
        if filter.is_empty() {
            return false;
        }
        let below = from.get(self.top.len()..).unwrap_or_default();
        let start = below.iter().position(|byte| *byte != b'/').unwrap_or(below.len());
        let below = below.get(start..).unwrap_or_default();
        filter.excludes(below, kind == FileKind::Directory)
    }

    /// Removes what the origin lacks; neither what is excluded, nor what a copy of now goes on with.
    fn remove_others(
        &self,
        dir: &Arc<Dir>,
        names: HashMap<Vec<u8>, Option<Attr>>,
        partials: &HashSet<Vec<u8>>,
    ) {
        for (name, attr) in names {
            if self.is_stopped() {
                return;
            }
            let to = place::join(&dir.to, &name);
            let attr = match attr.map_or_else(|| self.to.lstat(&to), Ok) {
                Ok(attr) => attr,
                Err(cause) if cause.errno() == libc::ENOENT => continue,
                Err(cause) => {
                    self.failed(&self.to, &to, cause);
                    continue;
                }
            };
            let from = place::join(&dir.from, &name);
            if partials.contains(&name) || self.excludes(&from, attr.kind) {
                continue;
            }
            dir.touched.store(true, Ordering::Relaxed);
            if let Err(cause) = self.remove(&to, &from, &attr) {
                self.failed(&self.to, &to, cause);
            }
        }
    }
}
