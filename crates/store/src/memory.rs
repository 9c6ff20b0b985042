//! A tree of files in memory: the whole meaning of [`Store`](crate::Store) without a disk, for
//! tests and for the simulation of the system.
//!
//! Deterministic: times come from the caller's clock, numbers from counters, and with a
//! [`Scheduler`] the caller decides when, and in which order, calls happen.

mod change;
mod data;
mod file;
mod modify;
mod node;
mod open_file;
mod rights;
mod store;
mod tree;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use dafs_protocol::{Status, Timestamp};

use crate::{Answer, Pending, pending};
use node::Content;
use tree::Tree;

/// Where times come from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Work of a store call that is still to be done.
pub type Job = Box<dyn FnOnce() + Send>;

/// Is handed each call's work, to be run when and where it likes. A job that is dropped leaves
/// its caller waiting for ever (a panic in [`Pending`]).
pub type Scheduler = Arc<dyn Fn(Job) + Send + Sync>;

/// How a [`MemoryStore`] is made.
#[derive(Clone)]
pub struct MemoryOptions {
    /// Times of files.
    pub clock: Clock,
    /// Runs the calls; `None`: each is done at once, in the calling thread.
    pub scheduler: Option<Scheduler>,
    /// Bytes of all files' data, in blocks of 4 KiB.
    pub capacity_bytes: u64,
    /// All files and directories.
    pub files_max: u64,
    /// Refuses changes.
    pub read_only: bool,
    /// What files answer when asked whether they are direct.
    pub direct: bool,
    /// Part of handles and `Attr::device`: tells stores of one server apart.
    pub id: u64,
    /// The root directory's owner.
    pub uid: u32,
    /// The root directory's group.
    pub gid: u32,
    /// The root directory's permission bits.
    pub root_mode: u32,
}

impl Default for MemoryOptions {
    /// The system's clock, calls done at once, 1 GiB, a root directory open to everybody.
    fn default() -> MemoryOptions {
        MemoryOptions {
            clock: Arc::new(system_time),
            scheduler: None,
            capacity_bytes: 1 << 30,
            files_max: 1 << 20,
            read_only: false,
            direct: false,
            id: 1,
            uid: 0,
            gid: 0,
            root_mode: 0o777,
        }
    }
}

fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}

/// Which calls an injected fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// [`File::read_at`](crate::File::read_at).
    Read,
    /// [`File::write_at`](crate::File::write_at): nothing is written.
    Write,
    /// As `Write`, but the first half of the bytes is written.
    ShortWrite,
    /// [`File::sync`](crate::File::sync) and [`Store::sync_fs`](crate::Store::sync_fs): nothing
    /// becomes durable.
    Sync,
    /// All that changes names or attributes.
    Change,
}

/// A tree of files in memory.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    scheduler: Option<Scheduler>,
}

struct State {
    tree: Tree,
    /// Counts crashes: files opened before are dead after.
    boot: u64,
    faults: Vec<Fault>,
}

struct Fault {
    kind: FaultKind,
    skip: u64,
    count: u64,
    status: Status,
}

impl MemoryStore {
    /// An empty tree as [`MemoryOptions::default`] has it.
    pub fn new() -> MemoryStore {
        MemoryStore::with_options(MemoryOptions::default())
    }

    /// As [`new`](Self::new), with calls run by `scheduler`.
    pub fn with_scheduler(scheduler: Scheduler) -> MemoryStore {
        let options = MemoryOptions { scheduler: Some(scheduler), ..MemoryOptions::default() };
        MemoryStore::with_options(options)
    }

    /// An empty tree.
    pub fn with_options(options: MemoryOptions) -> MemoryStore {
        let scheduler = options.scheduler.clone();
        let state = State { tree: Tree::new(options), boot: 0, faults: Vec::new() };
        MemoryStore { shared: Arc::new(Shared { state: Mutex::new(state), scheduler }) }
    }

    /// The machine fails and starts again. Each file's data (with its size) is what it was at
    /// its last sync; names and attributes stay, as if their journal had been written. Files
    /// open before answer STALE from now on, calls not yet run answer IO, handles stay good,
    /// files without a name are gone.
    pub fn crash(&self) {
        let mut state = self.shared.lock();
        state.boot += 1;
        let mut used = 0;
        for node in state.tree.nodes_mut() {
            if let Content::File { data, durable, open } = &mut node.content {
                data.clone_from(durable);
                *open = std::sync::Weak::new();
                used += data.blocks();
            }
        }
        state.tree.used_blocks = used;
        state.tree.reclaim_all();
    }

    /// The next `count` calls of `kind`, after `skip` good ones, fail with `status`.
    pub fn inject(&self, kind: FaultKind, skip: u64, count: u64, status: Status) {
        self.shared.lock().faults.push(Fault { kind, skip, count, status });
    }

    /// Forgets faults that have not happened yet; answers how many calls they would have hit.
    pub fn clear_faults(&self) -> u64 {
        self.shared.lock().faults.drain(..).map(|fault| fault.count).sum()
    }

    /// Changes how much data fits. What is there stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.lock().tree.options.capacity_bytes = bytes;
    }

    /// Bytes of data, in whole blocks.
    pub fn used_bytes(&self) -> u64 {
        self.shared.lock().tree.used_blocks * data::BLOCK
    }

    /// Files and directories, also those without a name that are open.
    pub fn files(&self) -> u64 {
        self.shared.lock().tree.node_count()
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` now or by the scheduler. Work that runs after a crash is not done.
    fn call<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut State) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let Some(scheduler) = &self.scheduler else {
            return Pending::ready(work(&mut self.lock()));
        };
        let (completer, answer) = pending();
        let (shared, boot) = (self.clone(), self.lock().boot);
        scheduler(Box::new(move || {
            let mut state = shared.lock();
            let result = if state.boot == boot { work(&mut state) } else { Err(Status::Io) };
            // Not under the lock: the waiter may call the store at once.
            drop(state);
            completer.complete(result);
        }));
        answer
    }
}

impl State {
    /// Fails if a fault of this kind is due.
    fn fault(&mut self, kind: FaultKind) -> Result<(), Status> {
        let Some(at) = self.faults.iter().position(|fault| fault.kind == kind) else {
            return Ok(());
        };
        let fault = &mut self.faults[at];
        if fault.skip > 0 {
            fault.skip -= 1;
            return Ok(());
        }
        let status = fault.status;
        fault.count = fault.count.saturating_sub(1);
        if fault.count == 0 {
            self.faults.remove(at);
        }
        Err(status)
    }

    /// Before anything that changes names or attributes.
    fn may_change(&mut self) -> Result<(), Status> {
        if self.tree.options.read_only {
            return Err(Status::RoFs);
        }
        self.fault(FaultKind::Change)
    }

    /// Room for `blocks` more.
    fn room(&self, blocks: u64) -> Result<(), Status> {
        let capacity = self.tree.options.capacity_bytes / data::BLOCK;
        let fits = self.tree.used_blocks.checked_add(blocks).is_some_and(|used| used <= capacity);
        if fits { Ok(()) } else { Err(Status::NoSpc) }
    }
}
