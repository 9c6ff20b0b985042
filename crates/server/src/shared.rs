//! What all workers of a server share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_protocol::{Dialled, Identity, SessionId, Status, WriteVerifier};
use dafs_store::Caller;
use dafs_unifier::Unifier;

use crate::budget::{AllGranted, Budgets, Needs, UserShare};
use crate::clients::{ClientRecords, Clients};
use crate::exports::Exports;
use crate::intent_log::{IntentLog, LogStore, Name};
use crate::limits::Limits;
use crate::locks::{Grace, LockLimits, Locks};
use crate::mailbox::{Mailbox, Message};
use crate::metrics::{Kind, Metrics};
use crate::name_lock::NameLocks;
use crate::numbers::Numbers;
use crate::paths::{DataPath, PageCache};
use crate::recorder::Recorder;

/// Fills bytes with randomness; injected so that a simulation is repeatable.
pub type Entropy = Box<dyn Fn(&mut [u8]) + Send + Sync>;
/// The process's own CPU time (nanoseconds) and resident bytes.
pub type ProcessStats = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// The time since some moment.
pub type Stopwatch = Box<dyn Fn() -> Duration + Send + Sync>;

/// A pre-shared key and who its holders are.
pub struct Key {
    /// The secret bytes.
    pub bytes: Vec<u8>,
    /// The owner of the key file.
    pub who: Identity,
    /// Addresses that holders may have dialled, beside that of the server's end of the connection.
    pub known_as: Vec<Dialled>,
}

/// What a [`Shared`] is made of.
pub struct SharedOptions {
    /// What is served.
    pub exports: Exports,
    /// The cache.
    pub unifier: Arc<Unifier>,
    /// For exports whose data path is another.
    pub page_cache: Option<Arc<PageCache>>,
    /// Bytes of its arena.
    pub arena_bytes: usize,
    /// Limits.
    pub limits: Limits,
    /// A pre-shared key.
    pub key: Option<Key>,
    /// Where it listens, for clients that choose how to come.
    pub addresses: Vec<String>,
    /// As whom the server acts for itself.
    pub own: Identity,
    /// Which clients may have locks, over restarts.
    pub records: Box<dyn ClientRecords>,
    /// What became of changes, over ends of the process; `None`: nobody is told.
    pub intent_log: Option<Box<dyn LogStore>>,
    /// Where numbers of objects are kept over restarts. Nobody else writes it.
    pub numbers: Option<std::fs::File>,
    /// Takes down what is read and written.
    pub recorder: Option<Recorder>,
    /// Randomness.
    pub entropy: Entropy,
    /// For SESSION_STATS.
    pub process_stats: ProcessStats,
    /// Any clock that only goes on, to tell how long requests take.
    pub stopwatch: Stopwatch,
}

/// How long a server that starts looks what became of changes; of others nobody knows.
const LOOKS_TIME: Duration = Duration::from_secs(5);

/// What all workers share.
pub struct Shared {
    pub(crate) exports: Exports,
    pub(crate) unifier: Arc<Unifier>,
    /// For exports whose data path is not the unifier.
    pub(crate) page_cache: Option<Arc<PageCache>>,
    pub(crate) arena_bytes: usize,
    pub(crate) limits: Limits,
    pub(crate) key: Option<Key>,
    pub(crate) addresses: Vec<String>,
    pub(crate) verifier: WriteVerifier,
    /// Ended sessions that are still to be told of an error.
    pub(crate) ended: EndedSessions,
    pub(crate) clients: Clients,
    pub(crate) locks: Locks,
    pub(crate) intent_log: Option<IntentLog>,
    pub(crate) numbers: Numbers,
    pub(crate) name_locks: Arc<NameLocks>,
    pub(crate) budgets: Budgets,
    pub(crate) recorder: Option<Recorder>,
    /// By the workers' numbers.
    mailboxes: Mutex<BTreeMap<u16, Arc<Mailbox>>>,
    entropy: Entropy,
    pub(crate) process_stats: ProcessStats,
    pub(crate) stopwatch: Stopwatch,
    pub(crate) metrics: Metrics,
    /// Counters, for the admin port.
    pub counters: Counters,
    /// Files whose data could not be written when the server ended.
    pub(crate) unflushed: AtomicU64,
}

/// Sessions that ended with open files: which are being flushed, and which could not be. Their
/// clients are told when they come back. Bounded: the oldest are forgotten.
#[derive(Debug, Default)]
pub(crate) struct EndedSessions {
    left: Mutex<VecDeque<(SessionId, EndedState)>>,
}

/// What is left of a session that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedState {
    /// Its files are being flushed.
    Flushing,
    /// Some could not be flushed.
    Lost,
}

const ENDED_SESSIONS_MAX: usize = 65_536;

impl EndedSessions {
    pub(crate) fn flushing(&self, id: SessionId) {
        let mut left = self.left();
        if left.len() >= ENDED_SESSIONS_MAX {
            left.pop_front();
        }
        left.push_back((id, EndedState::Flushing));
    }

    pub(crate) fn lost(&self, id: SessionId) {
        let mut left = self.left();
        left.iter_mut()
            .filter(|(known, _)| *known == id)
            .for_each(|(_, what)| *what = EndedState::Lost);
    }

    pub(crate) fn forget(&self, id: SessionId) {
        self.left().retain(|(known, _)| *known != id);
    }

    pub(crate) fn find(&self, id: SessionId) -> Option<EndedState> {
        self.left().iter().find(|(known, _)| *known == id).map(|(_, what)| *what)
    }

    fn left(&self) -> MutexGuard<'_, VecDeque<(SessionId, EndedState)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cumulative counters and gauges of a server.
#[derive(Debug, Default)]
#[allow(missing_docs)] // names and help texts are in the admin module
pub struct Counters {
    pub sessions: AtomicUsize,
    pub sessions_total: AtomicU64,
    pub opens: AtomicUsize,
    pub requests: AtomicU64,
    pub replays: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub refused: AtomicU64,
    /// Requests that waited for their session's, their user's or the whole's share.
    pub delayed: AtomicU64,
    pub peer_faults: AtomicU64,
    /// Connections ended since what was under way on them did not go on.
    pub transfers_given_up: AtomicU64,
    /// Transfers that placed fewer bytes than there was memory for: refused, never used.
    pub short_transfers: AtomicU64,
    pub leases_expired: AtomicU64,
    pub system_calls: AtomicU64,
    pub callbacks: AtomicU64,
}

impl Shared {
    /// Puts it together.
    ///
    /// # Panics
    /// When an export has a data path other than the unifier, and there is no page cache.
    pub fn new(options: SharedOptions) -> Arc<Shared> {
        let SharedOptions { exports, unifier, page_cache, arena_bytes, limits, .. } = options;
        let SharedOptions { key, records, intent_log, recorder, .. } = options;
        let is_unified = exports.iter().all(|export| export.data_path == DataPath::Unifier);
        assert!(is_unified || page_cache.is_some(), "a data path without its buffers");
        let (entropy, process_stats) = (options.entropy, options.process_stats);
        let stopwatch = options.stopwatch;
        let (clients, recorded) = Clients::load(records, limits.lock_clients);
        let lock_limits = LockLimits {
            locks_per_session: limits.locks_per_session,
            waits_per_session: limits.lock_waits_per_session,
            waits_per_file: limits.lock_waits_per_file,
            files: limits.lock_files,
        };
        let locks = Locks::new(lock_limits, Grace::after(recorded.as_ref()));
        let verifier = unifier.verifier();
        // What readers hold never is so much that writers would wait for it, and what writers
        // wait for leaves room to those whose data is there.
        let pages = arena_bytes / 4;
        let budgets = Budgets::new(Needs { pages, memory: limits.request_bytes }, options.own.uid);
        let lease = Duration::from_secs(u64::from(limits.lease_seconds));
        let (slots, logged) = (limits.slots, limits.logged_sessions);
        let who: Caller = Arc::new(options.own);
        let begin = stopwatch();
        let look = |name: &Name| {
            if stopwatch().saturating_sub(begin) > LOOKS_TIME {
                return None;
            }
            let (_, export, dir) = exports.of(&name.dir).ok()?;
            match export.store.object(&who, &dir, &name.name).wait() {
                Ok(attr) => Some(Some(dafs_store::FileId::from(&attr))),
                Err(Status::NoEnt) => Some(None),
                Err(_) => None,
            }
        };
        let intent_log =
            intent_log.map(|store| IntentLog::load(store, verifier, slots, logged, lease, &look));
        let counters = Counters::default();
        Arc::new(Shared {
            exports,
            unifier,
            page_cache,
            arena_bytes,
            limits,
            key,
            addresses: options.addresses,
            verifier,
            ended: EndedSessions::default(),
            clients,
            locks,
            intent_log,
            numbers: Numbers::load(options.numbers),
            name_locks: Arc::default(),
            budgets,
            recorder,
            mailboxes: Mutex::default(),
            entropy,
            process_stats,
            stopwatch,
            metrics: Metrics::default(),
            counters,
            unflushed: AtomicU64::new(0),
        })
    }

    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.entropy)(&mut bytes);
        bytes
    }

    pub(crate) fn join(&self, worker: u16, mailbox: Arc<Mailbox>) {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, mailbox);
    }

    /// A request that came at `start` is answered now.
    pub(crate) fn note_time(&self, kind: Kind, start: Duration) {
        self.metrics.latency.note(kind, (self.stopwatch)().saturating_sub(start));
    }

    /// Leaves something for another worker.
    pub(crate) fn send(&self, worker: u16, message: Message) {
        let mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = mailboxes.get(&worker) {
            mailbox.put(message);
        }
    }

    /// Gives back what was taken for a request.
    pub(crate) fn give(&self, user: &UserShare, needs: Needs) {
        let granted = self.budgets.give(user, needs);
        if !granted.is_empty() {
            self.send_granted(granted);
        }
    }

    /// Tells the workers of those who can go on.
    pub(crate) fn send_granted(&self, granted: AllGranted) {
        for granted in granted {
            self.send(granted.worker, Message::Granted(granted));
        }
    }

    /// Locks that are held or waited for, and ended waits that nobody confirmed.
    pub fn locks_left(&self) -> u64 {
        let stats = self.locks.stats();
        stats.held + stats.waiting + stats.unreported
    }

    /// The exports.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// The cache.
    pub fn unifier(&self) -> &Arc<Unifier> {
        &self.unifier
    }
}

/// Adds one.
pub(crate) fn tick(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// What is counted, for all and for each user.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    Sessions,
    Opens,
}

impl Counted {
    fn of_all(self, counters: &Counters) -> &AtomicUsize {
        match self {
            Counted::Sessions => &counters.sessions,
            Counted::Opens => &counters.opens,
        }
    }

    fn of_user(self, user: &UserShare) -> &AtomicUsize {
        match self {
            Counted::Sessions => &user.sessions,
            Counted::Opens => &user.opens,
        }
    }
}

/// One of a limited number, of all and of a user; given back when dropped.
#[derive(Debug)]
pub(crate) struct LimitGuard {
    shared: Arc<Shared>,
    user: Arc<UserShare>,
    of: Counted,
}

impl LimitGuard {
    /// Takes one, where all have at most `max` and this user `of_user`.
    pub(crate) fn take(
        shared: &Arc<Shared>,
        user: &Arc<UserShare>,
        of: Counted,
        (max, of_user): (usize, usize),
    ) -> Option<LimitGuard> {
        let take = |counter: &AtomicUsize, max: usize| {
            let more = |taken: usize| (taken < max).then(|| taken + 1);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        };
        if !take(of.of_user(user), of_user) {
            return None;
        }
        if !take(of.of_all(&shared.counters), max) {
            of.of_user(user).fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(LimitGuard { shared: shared.clone(), user: user.clone(), of })
    }
}

impl Drop for LimitGuard {
    fn drop(&mut self) {
        self.of.of_all(&self.shared.counters).fetch_sub(1, Ordering::Relaxed);
        self.of.of_user(&self.user).fetch_sub(1, Ordering::Relaxed);
    }
}
