//! Hard links: the names of a file that has several.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{Counts, Engine, Job, again};
use crate::copy::rules::{Replace, There, Verdict};
use crate::failure::Cause;
use crate::place;

/// The names of a file that has several.
enum Link {
    /// The first is being copied; these wait for it.
    UnderWay(Vec<Job>),
    /// It is copied.
    Done(First),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its name leads to a new copy.
    Copied,
    /// Its name leads to what it led to before, which is right.
    Unchanged,
    /// Neither.
    Failed,
}

/// The copy that further names are made of.
#[derive(Clone)]
struct First {
    path: Vec<u8>,
    /// Device and inode, where it was there before.
    there: Option<(u64, u64)>,
}

/// By device and inode.
#[derive(Default)]
pub struct Links(Mutex<HashMap<(u64, u64), Link>>);

enum Found {
    First,
    Waits,
    Known(First),
}

impl Links {
    fn find(&self, job: Job) -> (Found, Option<Job>) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (job.attr.device, job.attr.inode);
        match links.get_mut(&key) {
            None => {
                links.insert(key, Link::UnderWay(Vec::new()));
                (Found::First, Some(job))
            }
            Some(Link::UnderWay(waiting)) => {
                waiting.push(job);
                (Found::Waits, None)
            }
            Some(Link::Done(first)) => (Found::Known(first.clone()), Some(job)),
        }
    }

    /// Tells the other names of the file; those that waited are to be tried again.
    pub fn settle(&self, job: &Job, end: End) -> Vec<Job> {
        if job.attr.links < 2 {
            return Vec::new();
        }
        let key = (job.attr.device, job.attr.inode);
        let there = job.there.attr().map(|attr| (attr.device, attr.inode));
        let there = there.filter(|_| end == End::Unchanged);
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match end {
            End::Failed => links.remove(&key),
            _ => links.insert(key, Link::Done(First { path: job.to.clone(), there })),
        };
        match before {
            Some(Link::UnderWay(waiting)) => waiting,
            _ => Vec::new(),
        }
    }
}

impl Engine<'_> {
    /// The job again, if its data is to be copied; a further name of a file that is copied
    /// already is linked, one that is being copied waits.
    pub(super) fn first_of_its_links(&self, job: Job) -> Option<Job> {
        if job.attr.links < 2 {
            return Some(job);
        }
        match self.links.find(job) {
            (Found::First, job) => job,
            (Found::Waits, _) => None,
            (Found::Known(first), Some(job)) => {
                self.linked(job, &first);
                None
            }
            (Found::Known(_), None) => None,
        }
    }

    fn linked(&self, job: Job, first: &First) {
        let keep = self.rules().judge(&self.like(&job.attr), &job.there) == Verdict::Keep;
        let there = job.there.attr().map(|attr| (attr.device, attr.inode));
        let is_same = there.is_some() && there == first.there;
        if keep || (is_same && self.rules().replace == Replace::Changed) {
            Counts::add(&self.counts().skipped, 1);
            return self.leave(job.dir);
        }
        let made = if self.rules().dry_run {
            Ok(true)
        } else {
            if let Some(dir) = &job.dir {
                dir.touched.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            again(|| self.link(&first.path, &job))
        };
        match made {
            Ok(true) => {
                self.say_copied(&job);
                Counts::add(&self.counts().files, 1);
                Counts::add(&self.counts().bytes, job.attr.size);
            }
            Ok(false) => Counts::add(&self.counts().skipped, 1),
            Err(cause) => self.job_failed(&job, cause),
        }
        self.leave(job.dir);
    }

    /// False: the name is taken by what is not to be replaced.
    fn link(&self, first: &[u8], job: &Job) -> Result<bool, Cause> {
        if self.rules().clear && super::is_directory(&job.there) {
            self.make_way(job)?;
        }
        match self.to.link(first, &job.to) {
            Err(cause) if cause.errno() == libc::EEXIST => {}
            other => return other.map(|()| true),
        }
        if !self.rules().may_replace(&job.there) {
            let at = self.to.lstat(&job.to)?;
            if self.rules().judge(&self.like(&job.attr), &There::Is(at)) == Verdict::Keep {
                return Ok(false);
            }
        }
        self.replace_by_link(first, &job.to).map(|()| true)
    }

    fn replace_by_link(&self, first: &[u8], to: &[u8]) -> Result<(), Cause> {
        let temporary = place::temporary(to).map_err(|failure| Cause::Text(failure.text))?;
        let renamed = self.to.link(first, &temporary).and_then(|()| self.to.rename(&temporary, to));
        // Gone after the renaming, or both were names of the same file already, or a server that
        // restarted does not know whether it made the link.
        if !matches!(&renamed, Err(cause) if self.to.is_gone(cause)) {
            let _ = self.to.remove(&temporary);
        }
        renamed
    }
}
