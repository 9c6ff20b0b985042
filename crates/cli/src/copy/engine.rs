//! Copies trees: some threads find files, some copy them, many at a time.
//!
//! A directory is made before its entries and gets its mode and times when the last thing below
//! it is done: each job holds a share of the directory that it is in, each directory one of its
//! parent, and whoever lets go of the last share finishes the directory. So memory does not
//! depend on the number of files.

mod counts;
mod find;
mod large;
mod links;
mod remove;
mod small;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dafs_protocol::{Attr, FileKind, Timestamp};

use super::ends::{Source, are_same};
use super::like::{Like, identity};
use super::limit::Limit;
use super::queue::Queue;
use super::rules::{Rules, There, Verdict};
use super::side::Side;
use super::xattr;
use crate::failure::{self, Cause, Failure};
use crate::progress::{self, Progress};
use crate::{interrupt, place};
pub use counts::Counts;
use links::{End, Links};
use small::Small;

/// Jobs found ahead.
const QUEUE_MAX: usize = 1024;
/// Threads that copy, each with many small files under way, unless the user says how many.
const WORKERS: usize = 4;
/// Threads that look into directories.
const FINDERS: u64 = 4;
/// How often something is begun when the server restarts meanwhile.
const TRIES_MAX: u32 = 5;
/// How long is waited for room in a session that others fill, before that is tried again.
const ROOM_WAIT: Duration = Duration::from_millis(100);
/// Files up to this size are copied whole, in one request.
const SMALL_BYTES_MAX: usize = 128 << 10;

/// A directory of the copy, not yet finished.
pub struct Dir {
    from: Vec<u8>,
    to: Vec<u8>,
    attr: Attr,
    /// As it was found; `None`: it was made.
    there: Option<Attr>,
    /// Names in it were changed, and so its times.
    touched: AtomicBool,
    /// What is made in it gets an access control list from it; asked when it matters.
    bequeaths: OnceLock<bool>,
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
    /// What is there.
    pub there: There,
    /// The directory it is in, if that is copied too.
    pub dir: Option<Arc<Dir>>,
    /// How often it was begun in vain.
    pub tries: u32,
}

impl Job {
    /// To be begun.
    pub fn new(from: Vec<u8>, to: Vec<u8>, attr: Attr, there: There) -> Job {
        Job { from, to, attr, there, dir: None, tries: 0 }
    }
}

/// What all copies of one command have together.
#[derive(Debug, Default)]
pub struct Shared {
    /// How they are made.
    pub rules: Rules,
    /// What is done.
    pub counts: Counts,
    /// How fast it may be.
    pub limit: Option<Limit>,
}

/// How a copy ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It has its name.
    Done,
    /// Something else has it, which is not to be replaced.
    Kept,
}

/// A copy from one side to the other.
pub struct Engine<'a> {
    /// Where files are.
    pub from: Side,
    /// Where they go.
    pub to: Side,
    /// The user that copies are made by.
    uid: u32,
    /// Of the command.
    pub shared: &'a Shared,
    links: &'a Links,
    queue: Queue<Job>,
    stopped: AtomicBool,
    /// Where both sides may show the same directories.
    meeting: Option<Meeting>,
    /// What paths of filters are below of.
    top: Vec<u8>,
}

/// Directories that can be met on both sides.
struct Meeting {
    /// The top of what is copied.
    origin: (u64, Timestamp),
    /// What the copy is put into.
    into: Option<(u64, Timestamp)>,
    /// The top of the copy, once it is there.
    copy: OnceLock<(u64, Timestamp)>,
}

/// What copies remember of files with several names: of one origin, however many are made from it.
#[derive(Default)]
pub struct Origin(Links);

impl<'a> Engine<'a> {
    /// Nothing under way.
    pub fn new(from: Side, to: Side, shared: &'a Shared, origin: &'a Origin) -> Engine<'a> {
        Engine {
            uid: to.uid(),
            from,
            to,
            shared,
            links: &origin.0,
            queue: Queue::new(QUEUE_MAX),
            stopped: AtomicBool::new(false),
            meeting: None,
            top: Vec::new(),
        }
    }

    /// Both sides may show the same directories: a copy of `origin` is not made within itself, nor
    /// within the directory `into` that it is put into, and removes nothing of the origin.
    pub fn may_meet(&mut self, origin: &Attr, into: Option<&Attr>) {
        let into = into.map(identity);
        self.meeting = Some(Meeting { origin: identity(origin), into, copy: OnceLock::new() });
    }

    fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Copies all of `jobs`, with what is below them; of directories one at most. Failures are
    /// reported.
    pub fn run(&mut self, jobs: Vec<Job>, progress: &Progress) {
        let is_tree = jobs.iter().any(|job| job.attr.kind == FileKind::Directory);
        let many = if self.rules().transfers > 0 { self.rules().transfers } else { WORKERS };
        let workers = if jobs.len() == 1 && !is_tree { 1 } else { many };
        let finders = if is_tree { FINDERS } else { 1 };
        if let Some(top) = jobs.iter().find(|job| job.attr.kind == FileKind::Directory) {
            self.top.clone_from(&top.from);
        }
        let engine = &*self;
        let running = AtomicU64::new(workers as u64);
        let finding = AtomicU64::new(finders);
        let walk = find::Walk::new(jobs);
        std::thread::scope(|scope| {
            for _ in 0..finders {
                scope.spawn(|| {
                    engine.find(&walk);
                    if finding.fetch_sub(1, Ordering::AcqRel) == 1 {
                        engine.queue.close();
                    }
                });
            }
            for _ in 0..workers {
                scope.spawn(|| {
                    if let Err(failure) = engine.work() {
                        engine.stop(&failure);
                        // Finders may wait for room.
                        while engine.queue.pop().is_some() {}
                    }
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while progress.is_shown() && running.load(Ordering::Acquire) > 0 {
                engine.counts().show(progress);
                interrupt::sleep(Duration::from_millis(100));
            }
        });
        self.counts().show(progress);
    }

    /// True when nothing more is to be begun.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || interrupt::requested()
    }

    /// What the copy of `attr` is to look like.
    fn like(&self, attr: &Attr) -> Like {
        Like::new(attr, self.uid)
    }

    fn stop(&self, failure: &Failure) {
        if !self.stopped.swap(true, Ordering::Relaxed) {
            failure::report(failure);
        }
    }

    /// Reports; a failure after which nothing else can work ends the copy.
    fn failed(&self, side: &Side, path: &[u8], cause: Cause) {
        Counts::add(&self.counts().failed, 1);
        let is_final = cause.is_final();
        let failure = side.failure(path, cause);
        if is_final { self.stop(&failure) } else { failure::report(&failure) }
    }

    /// A failure of one of the job's two names: of that whose side the error is from, else of the
    /// new one, which is missing now.
    fn job_failed(&self, job: &Job, cause: Cause) {
        if self.from.is_at_fault(&self.to, &cause) {
            self.failed(&self.from, &job.from, cause);
        } else {
            self.failed(&self.to, &job.to, cause);
        }
    }

    /// Tells what is done, where the user wants to know.
    fn say(&self, text: impl FnOnce() -> String) {
        if (self.rules().verbose || self.rules().dry_run)
            && let Err(error) = progress::line(&text())
        {
            self.stop(&Failure::from(error));
        }
    }

    fn say_copied(&self, job: &Job) {
        self.say(|| format!("{} -> {}", self.from.name(&job.from), self.to.name(&job.to)));
    }

    /// Lets go of a share of a directory; the last one finishes it, and so on upwards.
    fn leave(&self, mut share: Option<Arc<Dir>>) {
        while let Some(dir) = share.and_then(Arc::into_inner) {
            if !self.stopped.load(Ordering::Relaxed)
                && let Err(cause) = again(|| self.finish(&dir))
            {
                self.failed(&self.to, &dir.to, cause);
            }
            share = dir.parent;
        }
    }

    fn finish(&self, dir: &Dir) -> Result<(), Cause> {
        let like = self.like(&dir.attr);
        let touched = dir.touched.load(Ordering::Relaxed);
        let is_like = dir.there.as_ref().is_some_and(|there| like.is_like(there));
        if is_like && !touched && !self.rules().checksum {
            return Ok(());
        }
        if !is_like && dir.there.is_some() {
            self.say(|| format!("attributes {}", self.to.name(&dir.to)));
            Counts::add(&self.counts().updated, 1);
        }
        if self.rules().dry_run {
            return Ok(());
        }
        if self.rules().xattrs && (!is_like || self.rules().checksum) {
            let have = dir.there.is_some() || self.inherits(&dir.to, dir.parent.as_deref());
            self.copy_xattrs(&dir.from, &dir.to, have);
        }
        let mut there = dir.there.map(|at| self.while_filled(at));
        if touched && let Some(there) = &mut there {
            // Whatever it was, it is another one now.
            there.modified.nanoseconds = u32::MAX;
        }
        self.to.dress(&dir.to, &like, there.as_ref())
    }

    /// True where what is made as `to`, in the directory `dir` of the copy, may have an access control
    /// list from there that the original has not.
    fn inherits(&self, to: &[u8], dir: Option<&Dir>) -> bool {
        let look = |path: &[u8]| xattr::are_inherited(&self.to, path);
        match dir {
            _ if !self.rules().xattrs => false,
            Some(dir) => *dir.bequeaths.get_or_init(|| look(&dir.to)),
            None => look(&self.to.directory_of(to)),
        }
    }

    /// An attribute that cannot be kept is told, and keeps nothing else back. `have`: there may be
    /// others already.
    fn copy_xattrs(&self, from: &[u8], to: &[u8], have: bool) -> bool {
        match xattr::copy((&self.from, from), (&self.to, to), have) {
            Ok(changed) => changed,
            Err(cause) => {
                self.failed(&self.to, to, cause);
                false
            }
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
                let verdict = self.verdict(&job);
                let whole = matches!(verdict, Ok(Verdict::Copy)) && self.is_small(&job);
                if whole && !self.rules().dry_run {
                    self.begin(&job);
                    if let Some(limit) = &self.shared.limit {
                        limit.take(job.attr.size);
                    }
                    small.start(job);
                } else {
                    small.drain();
                    self.single_as(job, verdict);
                }
            }
            if small.is_idle() {
                return Ok(());
            }
            small.collect();
        }
    }

    /// True for files that are copied whole. Those with holes are not, they would be filled, nor
    /// those that get an access control list, which must go before others can open them.
    fn is_small(&self, job: &Job) -> bool {
        job.attr.kind == FileKind::File
            && job.attr.size <= SMALL_BYTES_MAX as u64
            && job.attr.allocated >= job.attr.size
            && !self.rules().checksum
            && !(self.rules().clear && is_directory(&job.there))
            && !self.inherits(&job.to, job.dir.as_deref())
    }

    fn verdict(&self, job: &Job) -> Result<Verdict, Cause> {
        let like = self.like(&job.attr);
        let verdict = self.rules().judge(&like, &job.there);
        let There::Is(at) = &job.there else { return Ok(verdict) };
        if verdict != Verdict::Compare {
            return Ok(verdict);
        }
        let from = Source::open(&self.from, &job.from, self.rules().follow)?;
        let to = Source::open(&self.to, &job.to, false)?;
        let same = are_same(&from, &to, &|| self.is_stopped())?;
        let xattrs =
            !self.rules().xattrs || xattr::are_same((&self.from, &job.from), (&self.to, &job.to))?;
        Ok(match same {
            true if xattrs => self.rules().dressed(&like, at),
            true => Verdict::Dress,
            false => Verdict::Copy,
        })
    }

    /// Copies one thing of any kind, and waits for it.
    fn single(&self, job: Job) {
        let verdict = self.verdict(&job);
        self.single_as(job, verdict);
    }

    fn single_as(&self, job: Job, verdict: Result<Verdict, Cause>) {
        match verdict {
            Ok(Verdict::Keep) => self.kept(job),
            Ok(Verdict::Same) => self.unchanged(job),
            Ok(Verdict::Dress) => self.dress(job),
            Ok(Verdict::Copy | Verdict::Compare) if self.rules().dry_run => {
                if job.attr.kind == FileKind::File {
                    Counts::add(&self.counts().bytes, job.attr.size);
                }
                self.finished(job, Ok(Placed::Done));
            }
            Ok(Verdict::Copy | Verdict::Compare) => {
                self.begin(&job);
                let result = self.copy(&job);
                self.finished(job, result);
            }
            Err(cause) => self.finished(job, Err(cause)),
        }
    }

    /// The directory that the job is in gets another time now.
    fn begin(&self, job: &Job) {
        if let Some(dir) = &job.dir {
            dir.touched.store(true, Ordering::Relaxed);
        }
    }

    fn copy(&self, job: &Job) -> Result<Placed, Cause> {
        match job.attr.kind {
            FileKind::File => large::copy(self, job),
            FileKind::Symlink => self
                .from
                .read_link(&job.from)
                .and_then(|target| self.make(job, &|path| self.to.symlink(&target, path))),
            _ => self.make(job, &|path| self.to.make_node(&job.attr, path)),
        }
    }

    /// Makes something with `make`, under its name, or where that is taken under another one
    /// that then replaces it.
    fn make(&self, job: &Job, make: &dyn Fn(&[u8]) -> Result<(), Cause>) -> Result<Placed, Cause> {
        let like = self.like(&job.attr);
        match make(&job.to) {
            Ok(()) => return self.to.dress(&job.to, &like, None).map(|()| Placed::Done),
            Err(cause) if cause.errno() != libc::EEXIST => return Err(cause),
            Err(_) => {}
        }
        let temporary = place::temporary(&job.to).map_err(|failure| Cause::Text(failure.text))?;
        let made = make(&temporary)
            .and_then(|()| self.to.dress(&temporary, &like, None))
            .and_then(|()| self.put_in_place(&temporary, job));
        made.inspect_err(|cause| self.discard(&temporary, cause))
    }

    /// Gives a complete copy its name; where that is taken by what is not to be replaced, the copy
    /// goes. A directory in its way is removed only now that nothing can be missing.
    fn put_in_place(&self, temporary: &[u8], job: &Job) -> Result<Placed, Cause> {
        if self.rules().clear && is_directory(&job.there) {
            self.make_way(job)?;
        }
        if self.rules().may_replace(&job.there) {
            return self.to.rename(temporary, &job.to).map(|()| Placed::Done);
        }
        match self.to.rename_new(temporary, &job.to) {
            Err(cause) if cause.errno() == libc::EEXIST => {}
            other => return other.map(|()| Placed::Done),
        }
        let at = self.to.lstat(&job.to)?;
        let like = self.like(&job.attr);
        if self.rules().judge(&like, &There::Is(at)) == Verdict::Keep {
            self.to.remove(temporary)?;
            return Ok(Placed::Kept);
        }
        self.to.rename(temporary, &job.to).map(|()| Placed::Done)
    }

    /// The job ended: counts it, makes the links that wait for it, lets go of its directory.
    fn finished(&self, mut job: Job, result: Result<Placed, Cause>) {
        let lost = matches!(&result, Err(cause) if cause.is_lost_by_restart());
        if lost && job.tries < TRIES_MAX && !self.is_stopped() {
            // Under another temporary name: no harm if it was done after all.
            job.tries += 1;
            return self.single(job);
        }
        match result {
            Ok(Placed::Done) => {
                self.say_copied(&job);
                Counts::add(&self.counts().files, 1);
                self.settle(job, End::Copied);
            }
            Ok(Placed::Kept) => self.kept(job),
            Err(cause) => {
                self.job_failed(&job, cause);
                self.settle(job, End::Failed);
            }
        }
    }

    /// What is there is not to be replaced.
    fn kept(&self, job: Job) {
        Counts::add(&self.counts().skipped, 1);
        self.settle(job, End::Failed);
    }

    /// What is there is as it should be.
    fn unchanged(&self, job: Job) {
        Counts::add(&self.counts().skipped, 1);
        self.settle(job, End::Unchanged);
    }

    fn dress(&self, job: Job) {
        self.say(|| format!("attributes {}", self.to.name(&job.to)));
        let like = self.like(&job.attr);
        let result = if self.rules().dry_run {
            Ok(())
        } else {
            let is_link = job.attr.kind == FileKind::Symlink;
            if self.rules().xattrs && !is_link {
                self.copy_xattrs(&job.from, &job.to, true);
            }
            again(|| self.to.dress(&job.to, &like, job.there.attr()))
        };
        match result {
            Ok(()) => Counts::add(&self.counts().updated, 1),
            Err(cause) => self.failed(&self.to, &job.to, cause),
        }
        self.settle(job, End::Unchanged);
    }

    /// The job ended in a failure that is reported already.
    fn abandoned(&self, job: Job) {
        self.settle(job, End::Failed);
    }

    fn settle(&self, job: Job, end: End) {
        for waiting in self.links.settle(&job, end) {
            match self.first_of_its_links(waiting) {
                Some(next) if !self.is_stopped() => self.single(next),
                Some(next) => self.leave(next.dir),
                None => {}
            }
        }
        self.leave(job.dir);
    }

    /// Removes what `cause` left half made under a temporary name, if it is there. It stays where
    /// the server is gone: that was waited for once.
    fn discard(&self, temporary: &[u8], cause: &Cause) {
        if !self.to.is_gone(cause) {
            let _ = again(|| self.to.remove(temporary));
        }
    }
}

fn is_directory(there: &There) -> bool {
    there.attr().is_some_and(|attr| attr.kind == FileKind::Directory)
}

/// Does what does no harm when it is done twice, again when the server restarted meanwhile.
fn again<T>(mut act: impl FnMut() -> Result<T, Cause>) -> Result<T, Cause> {
    let mut result = act();
    for _ in 0..TRIES_MAX {
        match &result {
            Err(cause) if cause.is_lost_by_restart() => result = act(),
            _ => break,
        }
    }
    result
}
