//! Copies trees: one thread finds files, some copy them, many at a time.
//!
//! A directory is made before its entries and gets its mode and times when the last thing below
//! it is done: each job holds a share of the directory that it is in, each directory one of its
//! parent, and whoever lets go of the last share finishes the directory. So memory does not
//! depend on the size of the tree.

pub mod large;
mod small;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_protocol::{Attr, FileKind};

use super::queue::Queue;
use super::side::{Entries, Like, Side};
use crate::failure::{self, Cause, Failure};
use crate::progress::Progress;
use crate::{interrupt, place};
use small::Small;

/// Jobs found ahead.
const QUEUE_MAX: usize = 1024;
/// Threads that copy, each with many small files under way.
const WORKERS: usize = 4;
/// How often something is begun when the server restarts meanwhile.
const TRIES_MAX: u32 = 5;
/// Files up to this size are copied whole, in one request.
pub const SMALL_BYTES_MAX: usize = 128 << 10;

/// A directory of the copy, not yet finished.
pub struct Dir {
    to: Vec<u8>,
    attr: Attr,
    parent: Option<Arc<Dir>>,
}

/// One thing to copy.
pub struct Job {
    /// On the side copied from.
    pub from: Vec<u8>,
    /// On the side copied to.
    pub to: Vec<u8>,
    /// What it is.
    pub attr: Attr,
    /// The directory it is in, if that is copied too.
    pub dir: Option<Arc<Dir>>,
    /// How often it was begun in vain.
    pub tries: u32,
}

/// What was found and what is done.
#[derive(Debug, Default)]
pub struct Counts {
    /// Everything but directories.
    pub files: AtomicU64,
    /// Found so far.
    pub files_found: AtomicU64,
    /// Directories.
    pub directories: AtomicU64,
    /// Of files.
    pub bytes: AtomicU64,
    /// Found so far.
    pub bytes_found: AtomicU64,
    /// Not copied.
    pub failed: AtomicU64,
}

/// The names of a file that has several.
enum Link {
    /// The first is being copied; these wait for it.
    UnderWay(Vec<Job>),
    /// It is copied, under this name.
    Done(Vec<u8>),
}

/// A copy from one side to the other.
pub struct Engine<'a> {
    /// Where files are.
    pub from: Side,
    /// Where they go.
    pub to: Side,
    /// The user that copies are made by.
    uid: u32,
    /// Shared with other copies of the same command.
    pub counts: &'a Counts,
    links: Mutex<HashMap<(u64, u64), Link>>,
    queue: Queue<Job>,
    stopped: AtomicBool,
    /// The directory copied into, where it can be met on the way: device and inode.
    pub target: Mutex<Option<(u64, u64)>>,
}

impl<'a> Engine<'a> {
    /// Nothing under way.
    pub fn new(from: Side, to: Side, counts: &'a Counts) -> Engine<'a> {
        Engine {
            uid: to.uid(),
            from,
            to,
            counts,
            links: Mutex::new(HashMap::new()),
            queue: Queue::new(QUEUE_MAX),
            stopped: AtomicBool::new(false),
            target: Mutex::new(None),
        }
    }

    /// Copies all of `jobs`, with what is below them. Failures are reported.
    pub fn run(&self, jobs: Vec<Job>, progress: &Progress) {
        let is_one = jobs.len() == 1 && jobs.iter().all(|j| j.attr.kind != FileKind::Directory);
        let workers = if is_one { 1 } else { WORKERS };
        let running = AtomicU64::new(workers as u64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                jobs.into_iter().for_each(|job| self.find(job));
                self.queue.close();
            });
            for _ in 0..workers {
                scope.spawn(|| {
                    if let Err(failure) = self.work() {
                        self.stop(&failure);
                        // The finder may wait for room.
                        while self.queue.pop().is_some() {}
                    }
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while progress.is_shown() && running.load(Ordering::Acquire) > 0 {
                self.show(progress);
                interrupt::sleep(std::time::Duration::from_millis(100));
            }
        });
        self.show(progress);
    }

    fn show(&self, progress: &Progress) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let c = self.counts;
        progress.show(read(&c.files), read(&c.files_found), read(&c.bytes), read(&c.bytes_found));
    }

    /// True when nothing more is to be begun.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || interrupt::requested()
    }

    /// What the copy of `attr` is to look like.
    pub fn like(&self, attr: &Attr) -> Like {
        Like::new(attr, self.uid)
    }

    fn stop(&self, failure: &Failure) {
        if !self.stopped.swap(true, Ordering::Relaxed) {
            failure::report(failure);
        }
    }

    /// Reports; a failure after which nothing else can work ends the copy.
    pub fn failed(&self, side: &Side, path: &[u8], cause: Cause) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        let is_final = cause.is_final();
        let failure = side.failure(path, cause);
        if is_final { self.stop(&failure) } else { failure::report(&failure) }
    }

    // The finder.

    fn find(&self, job: Job) {
        let mut open: Vec<(Arc<Dir>, Vec<u8>, Entries)> = Vec::new();
        self.found(job, &mut open);
        while let Some((dir, from, entries)) = open.last_mut() {
            if self.is_stopped() {
                return;
            }
            let job = match entries.next() {
                Some(Ok((name, attr))) => {
                    let path = place::join(from, &name);
                    let to = place::join(&dir.to, &name);
                    match attr.map_or_else(|| self.from.lstat(&path), Ok) {
                        Ok(attr) => {
                            let dir = Some(dir.clone());
                            Some(Job { from: path, to, attr, dir, tries: 0 })
                        }
                        Err(cause) => {
                            self.failed(&self.from, &path, cause);
                            None
                        }
                    }
                }
                Some(Err(cause)) => {
                    self.failed(&self.from, from, cause);
                    None
                }
                None => {
                    if let Some((dir, ..)) = open.pop() {
                        self.leave(Some(dir));
                    }
                    None
                }
            };
            if let Some(job) = job {
                self.found(job, &mut open);
            }
        }
    }

    fn found(&self, job: Job, open: &mut Vec<(Arc<Dir>, Vec<u8>, Entries)>) {
        if job.attr.kind != FileKind::Directory {
            self.counts.files_found.fetch_add(1, Ordering::Relaxed);
            if job.attr.kind == FileKind::File {
                self.counts.bytes_found.fetch_add(job.attr.size, Ordering::Relaxed);
            }
            return self.queue.push(job);
        }
        match self.enter(&job) {
            Ok(entries) => {
                self.counts.directories.fetch_add(1, Ordering::Relaxed);
                let dir = Dir { to: job.to, attr: job.attr, parent: job.dir };
                open.push((Arc::new(dir), job.from, entries));
            }
            Err(()) => self.leave(job.dir),
        }
    }

    fn enter(&self, job: &Job) -> Result<Entries, ()> {
        let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if target == Some((job.attr.device, job.attr.inode)) {
            let text = "cannot copy a directory into itself";
            self.failed(&self.from, &job.from, text.into());
            return Err(());
        }
        let entries = self.from.list(&job.from).map_err(|cause| {
            self.failed(&self.from, &job.from, cause);
        })?;
        match again(|| self.to.mkdir(&job.to, 0o700)) {
            Ok(()) => Ok(entries),
            Err(cause) if cause.is_final() => {
                self.failed(&self.to, &job.to, cause);
                Err(())
            }
            // Whatever the reason was: is there one?
            Err(cause) => match self.to.stat(&job.to) {
                Ok(there) if there.kind == FileKind::Directory => Ok(entries),
                Ok(_) => {
                    let text = "cannot overwrite a non-directory with a directory";
                    self.failed(&self.to, &job.to, text.into());
                    Err(())
                }
                Err(_) => {
                    self.failed(&self.to, &job.to, cause);
                    Err(())
                }
            },
        }
    }

    /// Lets go of a share of a directory; the last one finishes it, and so on upwards.
    fn leave(&self, mut share: Option<Arc<Dir>>) {
        while let Some(dir) = share.and_then(Arc::into_inner) {
            if !self.stopped.load(Ordering::Relaxed)
                && let Err(cause) = again(|| self.to.dress(&dir.to, &self.like(&dir.attr)))
            {
                self.failed(&self.to, &dir.to, cause);
            }
            share = dir.parent;
        }
    }

    // The workers.

    fn work(&self) -> Result<(), Failure> {
        let mut small = Small::new(self)?;
        loop {
            while small.has_room() {
                let next = if small.is_idle() { self.queue.pop() } else { self.queue.try_pop() };
                let Some(job) = next else { break };
                if self.is_stopped() {
                    continue;
                }
                let Some(job) = self.first_of_its_links(job) else { continue };
                if is_small(&job.attr) {
                    small.start(job);
                } else {
                    small.drain();
                    self.single(job);
                }
            }
            if small.is_idle() {
                return Ok(());
            }
            small.collect();
        }
    }

    /// Copies one thing of any kind, and waits for it.
    pub fn single(&self, job: Job) {
        let result = match job.attr.kind {
            FileKind::File => large::copy(self, &job),
            FileKind::Symlink => self
                .from
                .read_link(&job.from)
                .and_then(|target| self.make(&job, &|path| self.to.symlink(&target, path))),
            _ => self.make(&job, &|path| self.to.make_node(&job.attr, path)),
        };
        self.finished(job, result);
    }

    /// Makes something with `make`, under its name, or where that is taken under another one
    /// that then replaces it.
    fn make(&self, job: &Job, make: &dyn Fn(&[u8]) -> Result<(), Cause>) -> Result<(), Cause> {
        let like = self.like(&job.attr);
        match make(&job.to) {
            Ok(()) => return self.to.dress(&job.to, &like),
            Err(cause) if cause.errno() != libc::EEXIST => return Err(cause),
            Err(_) => {}
        }
        let temporary = place::temporary(&job.to).map_err(|failure| Cause::Text(failure.text))?;
        let made = make(&temporary)
            .and_then(|()| self.to.dress(&temporary, &like))
            .and_then(|()| self.to.rename(&temporary, &job.to));
        made.inspect_err(|cause| self.discard(&temporary, cause))
    }

    /// The job ended: counts it, makes the links that wait for it, lets go of its directory.
    pub fn finished(&self, mut job: Job, result: Result<(), Cause>) {
        let done = result.is_ok();
        let lost = matches!(&result, Err(cause) if cause.is_lost_by_restart());
        if lost && job.tries < TRIES_MAX && !self.is_stopped() {
            // Under another temporary name: no harm if it was done after all.
            job.tries += 1;
            return self.single(job);
        }
        if let Err(cause) = result {
            // Of the two names the one that the error is about cannot be told; the new one says
            // what is missing now.
            self.failed(&self.to, &job.to, cause);
        } else {
            self.counts.files.fetch_add(1, Ordering::Relaxed);
        }
        self.settle(job, done);
    }

    /// The job ended in a failure that is reported already.
    pub fn abandoned(&self, job: Job) {
        self.settle(job, false);
    }

    fn settle(&self, job: Job, done: bool) {
        for waiting in self.settle_links(&job, done) {
            match self.first_of_its_links(waiting) {
                Some(next) if !self.is_stopped() => self.single(next),
                _ => {}
            }
        }
        self.leave(job.dir);
    }

    /// Removes what `cause` left half made under a temporary name, if it is there. It stays where
    /// the server is gone: that was waited for once.
    pub fn discard(&self, temporary: &[u8], cause: &Cause) {
        if !self.to.is_gone(cause) {
            let _ = again(|| self.to.remove(temporary));
        }
    }

    // Hard links.

    /// The job again, if its data is to be copied; a further name of a file that is copied
    /// already is linked, one that is being copied waits.
    fn first_of_its_links(&self, job: Job) -> Option<Job> {
        if job.attr.links < 2 {
            return Some(job);
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let first = match links.get_mut(&(job.attr.device, job.attr.inode)) {
            None => {
                links.insert((job.attr.device, job.attr.inode), Link::UnderWay(Vec::new()));
                return Some(job);
            }
            Some(Link::UnderWay(waiting)) => {
                waiting.push(job);
                return None;
            }
            Some(Link::Done(first)) => first.clone(),
        };
        drop(links);
        self.linked(job, &first);
        None
    }

    fn linked(&self, job: Job, first: &[u8]) {
        let result = again(|| match self.to.link(first, &job.to) {
            Err(cause) if cause.errno() == libc::EEXIST => self.replace_by_link(first, &job.to),
            other => other,
        });
        if let Err(cause) = result {
            self.failed(&self.to, &job.to, cause);
        } else {
            self.counts.files.fetch_add(1, Ordering::Relaxed);
            self.counts.bytes.fetch_add(job.attr.size, Ordering::Relaxed);
        }
        self.leave(job.dir);
    }

    fn replace_by_link(&self, first: &[u8], to: &[u8]) -> Result<(), Cause> {
        let temporary = place::temporary(to).map_err(|failure| Cause::Text(failure.text))?;
        self.to.link(first, &temporary)?;
        let renamed = self.to.rename(&temporary, to);
        // Gone after the renaming, or both were names of the same file already.
        if !matches!(&renamed, Err(cause) if self.to.is_gone(cause)) {
            let _ = self.to.remove(&temporary);
        }
        renamed
    }

    /// Tells the other names of the file; those that waited are to be tried again.
    fn settle_links(&self, job: &Job, done: bool) -> Vec<Job> {
        if job.attr.links < 2 {
            return Vec::new();
        }
        let key = (job.attr.device, job.attr.inode);
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let before =
            if done { links.insert(key, Link::Done(job.to.clone())) } else { links.remove(&key) };
        match before {
            Some(Link::UnderWay(waiting)) => waiting,
            _ => Vec::new(),
        }
    }
}

/// Does what does no harm when it is done twice, again when the server restarted meanwhile.
fn again(mut act: impl FnMut() -> Result<(), Cause>) -> Result<(), Cause> {
    let mut result = act();
    for _ in 0..TRIES_MAX {
        match &result {
            Err(cause) if cause.is_lost_by_restart() => result = act(),
            _ => break,
        }
    }
    result
}

/// True for files that are copied whole. Those with holes are not, they would be filled.
fn is_small(attr: &Attr) -> bool {
    attr.kind == FileKind::File
        && attr.size <= SMALL_BYTES_MAX as u64
        && attr.allocated >= attr.size
}
