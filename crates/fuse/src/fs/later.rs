//! What is set of a new file, and told to the server with its close: a program that unpacks files
//! sets times, owner and mode of each before it closes it, and takes no notice of when that is done.
//!
//! It is told before anything else is done with the file, and a moment later at the latest. What it
//! fails with is told as errors of writes are: by the close.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use dafs_client::Error;
use dafs_protocol::{Attr, SetAttr};

use super::DafsFs;
use super::error::Errno;
use super::names::CAPABILITY;
use super::nodes::{Due, Node, OpenFile};
use crate::kernel::{Answer, Caller, Op};

/// What is set is told after twice this time, if nothing makes it be told before.
const WAIT: Duration = Duration::from_millis(10);

/// Files of which something is to be set.
#[derive(Default)]
pub(super) struct Laters {
    /// So many.
    count: AtomicUsize,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Whether there is a thread that looks after them.
    looked_after: OnceLock<bool>,
}

#[derive(Default)]
struct Queue {
    files: VecDeque<(Instant, Arc<Node>)>,
    over: bool,
}

impl Laters {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, node: &Arc<Node>) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let mut queue = self.queue();
        queue.files.push_back((Instant::now(), node.clone()));
        if queue.files.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Those that have waited, when there are some; `None`: at the end.
    fn overdue(&self) -> Option<Vec<Arc<Node>>> {
        let mut queue = self.queue();
        while queue.files.is_empty() && !queue.over {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if !queue.over {
            let woken = self.changed.wait_timeout(queue, WAIT);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.over {
            return None;
        }
        let waited = queue.files.iter().take_while(|(since, _)| since.elapsed() >= WAIT).count();
        Some(queue.files.drain(..waited).map(|(_, node)| node).collect())
    }

    /// Nobody looks after them any more.
    pub(super) fn end(&self) {
        self.queue().over = true;
        self.changed.notify_all();
    }
}

fn look_after(laters: &Laters, fs: &Weak<DafsFs>) {
    while let Some(files) = laters.overdue() {
        let Some(fs) = fs.upgrade() else { return };
        for node in files {
            // Nothing interrupts this thread.
            let _ = fs.settle(&node);
        }
    }
}

impl DafsFs {
    fn is_looked_after(&self) -> bool {
        *self.laters.looked_after.get_or_init(|| {
            let (laters, fs) = (self.laters.clone(), self.itself.clone());
            let thread = std::thread::Builder::new().name("fuse-later".into());
            thread.spawn(move || look_after(&laters, &fs)).is_ok()
        })
    }

    /// Attributes of a file that the caller makes are set with its close, where that makes no
    /// difference: to be believed for no time, since the server's clock says when it was changed.
    pub(super) fn set_later(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        set: &SetAttr,
    ) -> Option<Answer> {
        if !node.may_be_new() || self.options.sync || !self.is_looked_after() {
            return None;
        }
        let user = (self.as_caller(caller), caller.uid);
        let (attr, first) = node.set_later(user, set, self.options.attr_timeout)?;
        if first {
            self.laters.add(node);
        }
        Some(Answer::Attr(self.node_attr(&attr), Duration::ZERO))
    }

    /// What is set at once, and what was to be set later by the same user, in one request. `None`: it
    /// is to be done otherwise; whatever failed is met again there.
    pub(super) fn set_with_later(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        set: &SetAttr,
    ) -> Result<Option<Attr>, Errno> {
        let by_caller = |due: &Due| due.is_by(caller.uid) && set.size.is_none();
        let Some(due) = node.due().filter(by_caller) else { return Ok(None) };
        let (_change, asked) = (node.change(), Instant::now());
        match self.set_now(due.session(), node, None, due.and(set)) {
            Ok(attr) => {
                self.did(node, &due, Some((attr, asked)));
                Ok(Some(attr))
            }
            Err(Errno::INTR) => Err(Errno::INTR),
            Err(_) => Ok(None),
        }
    }

    fn did(&self, node: &Node, due: &Due, answer: Option<(Attr, Instant)>) {
        if node.did(due, answer) {
            self.laters.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Before anything is done that could tell that something is to be set.
    pub(super) fn settle_before(&self, node: u64, op: &Op<'_>) -> Result<(), Errno> {
        if self.laters.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let named = |dir, name| self.nodes.named(dir, name);
        let of = |number| self.nodes.get(number).ok();
        let files = match *op {
            // These see to it themselves, or do not look at the file.
            Op::SetAttr(_) | Op::Flush { .. } | Op::Release { .. } | Op::Read { .. } => {
                return Ok(());
            }
            // A chown(2) asks for it first.
            Op::GetXattr { name: CAPABILITY, .. } => return Ok(()),
            Op::Lookup { name } | Op::Unlink { name } => [named(node, name), None],
            Op::Create { name, .. } => [named(node, name), None],
            Op::Rename { name, to_dir, to, .. } => [named(node, name), named(to_dir, to)],
            Op::Link { from, .. } => [of(from), None],
            Op::CopyFileRange { to_node, .. } => [of(node), of(to_node)],
            Op::SyncFs => return self.settle_all(),
            _ => [of(node), None],
        };
        files.into_iter().flatten().try_for_each(|node| self.settle(&node))
    }

    fn settle_all(&self) -> Result<(), Errno> {
        let files: Vec<_> =
            self.laters.queue().files.iter().map(|(_, node)| node.clone()).collect();
        files.iter().try_for_each(|node| self.settle(node))
    }

    /// Tells the server what is to be set of a file, in one round trip with a flush of what was
    /// written. Who comes meanwhile waits. What it fails with is told by the close.
    ///
    /// # Errors
    /// `EINTR`.
    pub(super) fn settle(&self, node: &Arc<Node>) -> Result<(), Errno> {
        if !node.has_later() {
            return Ok(());
        }
        let Some(maker) = node.maker() else { return Ok(()) };
        let (mut turn, before) = maker.flushes.turn()?;
        if let Err(errno) = before {
            maker.set_failed(errno);
        }
        let Some(due) = node.due() else { return Ok(()) };
        let (_change, asked) = (node.change(), Instant::now());
        let answer = match self.set_and_flush(due.session(), &maker, &mut turn, (None, due.set())) {
            Ok(attr) => Ok(attr),
            Err(Error::Interrupted) => return Err(Errno::INTR),
            Err(_) => self.set_otherwise(node, &maker, &due),
        };
        match answer {
            Err(Errno::INTR) => return Err(Errno::INTR),
            Err(errno) => maker.set_failed(errno),
            Ok(_) => {}
        }
        self.did(node, &due, answer.ok().map(|attr| (attr, asked)));
        Ok(())
    }

    /// By its handle, or as an open file that has no name any more.
    fn set_otherwise(&self, node: &Arc<Node>, maker: &OpenFile, due: &Due) -> Result<Attr, Errno> {
        let (session, set) = (due.session(), due.set());
        let by_handle = || self.on_handle(node, |handle| session.set_attr_of(handle, set));
        match self.repeated(by_handle) {
            Err(Errno::STALE) => self.repeated(|| {
                let set = session.set_attr_open(&maker.file, None, set, false);
                Ok(set.map(|(attr, _)| attr))
            }),
            other => other,
        }
    }
}
