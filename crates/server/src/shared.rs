//! What all workers of a server share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use dafs_protocol::{
    Dialled, Identity, RequestOutcome, SameHostToken, SessionId, SlotId, Status, ToldReads,
    WriteVerifier,
};
use dafs_store::Caller;
use dafs_unifier::{CacheDomains, DomainId, LEAST_BYTES};

use crate::budget::{AllGranted, Budgets, Needs, UserShare};
use crate::clean_end::{CleanEnd, EndMark};
use crate::clients::{ClientRecords, Clients};
use crate::ended_sessions::EndedSessions;
use crate::exports::Exports;
use crate::intent_log::{IntentLog, LogStore, Name};
use crate::limits::Limits;
use crate::locks::{Client, Grace, LockLimits, Locks};
use crate::mailbox::{Mailbox, Message};
use crate::metrics::{Kind, Metrics, WorkerCounters};
use crate::name_lock::NameLocks;
use crate::numbers::Numbers;
use crate::optimistic::{Shown, ShownCaches};
use crate::own_reads::AllTold;
use crate::paths::{DataPath, PageCache};
use crate::process::{Entropy, Process, ProcessStats, Stopwatch};
use crate::recorder::Recorder;
use crate::references::Quotas;
use crate::scopes::Scopes;

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
    pub unifier: Arc<CacheDomains>,
    /// What clients of this host may read of it by themselves.
    pub shown: ShownCaches,
    /// What makes caches of what users may open.
    pub scopes: Option<Box<Scopes>>,
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
    /// By what clients of its host find it, where it listens for them ([`listen_same_host`](crate::listen_same_host)).
    pub same_host: Option<SameHostToken>,
    /// As whom the server acts for itself.
    pub own: Identity,
    /// Which clients may have locks, over restarts.
    pub records: Box<dyn ClientRecords>,
    /// What became of changes, over ends of the process; `None`: nobody is told.
    pub intent_log: Option<Box<dyn LogStore>>,
    /// Where the next server is told of an end in order; `None`: it is not.
    pub end_mark: Option<Box<dyn EndMark>>,
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
    /// What the calling thread has taken of the processor's time.
    pub thread_time: Stopwatch,
}

/// How long a server that starts looks what became of changes; of others nobody knows.
const LOOKS_TIME: Duration = Duration::from_secs(5);

/// What all workers share.
pub struct Shared {
    pub(crate) exports: Exports,
    /// Ends before the cache.
    pub(crate) shown: ShownCaches,
    pub(crate) scopes: Option<Box<Scopes>>,
    pub(crate) unifier: Arc<CacheDomains>,
    /// For exports whose data path is not the unifier.
    pub(crate) page_cache: Option<Arc<PageCache>>,
    pub(crate) limits: Limits,
    pub(crate) greeting: Greeting,
    pub(crate) sessions: Sessions,
    pub(crate) locks: Locks,
    pub(crate) changes: Changes,
    pub(crate) numbers: Numbers,
    pub(crate) budgets: Budgets,
    /// Of clients that read the cache by themselves.
    pub(crate) quotas: Quotas,
    pub(crate) recorder: Option<Recorder>,
    /// By the workers' numbers.
    mailboxes: Mutex<BTreeMap<u16, Arc<Mailbox>>>,
    /// Workers that have ended what they did.
    drained: Mutex<usize>,
    one_more_drained: Condvar,
    pub(crate) process: Process,
    pub(crate) metrics: Metrics,
    /// Counters, for the admin port.
    pub counters: Counters,
}

/// What clients are asked and told in their set-up.
pub(crate) struct Greeting {
    pub key: Option<Key>,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// By what clients of its host find it.
    pub same_host: Option<SameHostToken>,
}

impl Greeting {
    /// Clients may prove that they have the key.
    pub(crate) fn is_keyed(&self) -> bool {
        self.key.is_some()
    }
}

/// Sessions of all workers.
pub(crate) struct Sessions {
    /// Whose they are.
    pub clients: Clients,
    /// Those that ended and are still to be told of an error.
    pub ended: EndedSessions,
    /// What is to be safe at an end in order.
    pub clean_end: CleanEnd,
}

/// Changes that must not be done twice.
pub(crate) struct Changes {
    /// What becomes of them.
    pub log: Option<IntentLog>,
    /// Those of the same name are done one at a time.
    pub name_locks: Arc<NameLocks>,
}

impl Changes {
    /// What became of a change of a session that was lost.
    pub(crate) fn outcome(
        &self,
        client: Client,
        session: SessionId,
        slot: SlotId,
        sequence: u32,
    ) -> RequestOutcome {
        let outcome = |log: &IntentLog| log.request_outcome(client, session, slot, sequence);
        self.log.as_ref().map_or(RequestOutcome::Unknown, outcome)
    }
}

/// Cumulative counters and gauges of a server.
#[derive(Debug, Default)]
#[allow(missing_docs)] // names and help texts are in the admin module
pub struct Counters {
    pub sessions: AtomicUsize,
    pub sessions_total: AtomicU64,
    pub opens: AtomicUsize,
    pub replays: AtomicU64,
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
    /// Places of blocks that clients were told, to read them without asking.
    pub references_told: AtomicU64,
    /// Named references that clients were told.
    pub named_told: AtomicU64,
    /// Reads by themselves, as clients tell: it is shown, and nothing else is done with it.
    pub(crate) all_told: AllTold,
    /// Those that each worker has for itself.
    workers: Mutex<Vec<Arc<WorkerCounters>>>,
}

impl Counters {
    /// Those of one more worker.
    pub(crate) fn of_worker(&self) -> Arc<WorkerCounters> {
        let counters = Arc::new(WorkerCounters::default());
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        counters
    }

    fn sum(&self, of: impl Fn(&WorkerCounters) -> &AtomicU64) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(|worker| of(worker).load(Ordering::Relaxed)).sum()
    }

    /// Requests received.
    pub fn requests(&self) -> u64 {
        self.sum(|worker| &worker.requests)
    }

    /// Bytes read by clients.
    pub fn bytes_read(&self) -> u64 {
        self.sum(|worker| &worker.bytes_read)
    }

    /// Reads by a reference that were answered, and that were refused.
    pub fn named_reads(&self) -> [u64; 2] {
        [self.sum(|worker| &worker.named_reads), self.sum(|worker| &worker.named_refused)]
    }

    /// What reads by a reference took of the processor's time, estimated, in nanoseconds.
    pub fn data_plane_ns(&self) -> u64 {
        self.sum(|worker| &worker.data_plane_ns)
    }

    /// Reads by clients themselves, as they tell.
    pub fn told_reads(&self) -> ToldReads {
        self.all_told.sum()
    }

    /// Reads that the cache answered at once, beside those that it counts itself.
    pub(crate) fn cache_hits(&self) -> u64 {
        self.sum(|worker| &worker.cache_hits)
    }
}

impl Shared {
    /// Puts it together.
    ///
    /// # Panics
    /// When an export has a data path other than the unifier, and there is no page cache.
    pub fn new(options: SharedOptions) -> Arc<Shared> {
        let SharedOptions { exports, unifier, page_cache, arena_bytes, limits, .. } = options;
        let SharedOptions { key, records, intent_log, recorder, end_mark, .. } = options;
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
        let least = arena_bytes / unifier.iter().count();
        let shared = exports.iter().any(|export| export.share_cache).then_some(least);
        // Those that are made later begin small.
        let scoped = options.scopes.as_ref().map(|_| LEAST_BYTES.min(least));
        let quotas = Quotas::new(options.own.uid, least, scoped.or(shared));
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
        let log =
            intent_log.map(|store| IntentLog::load(store, verifier, slots, logged, lease, &look));
        let counters = Counters::default();
        Arc::new(Shared {
            exports,
            shown: options.shown,
            scopes: options.scopes,
            unifier,
            page_cache,
            limits,
            greeting: Greeting { key, addresses: options.addresses, same_host: options.same_host },
            sessions: Sessions {
                clients,
                ended: EndedSessions::default(),
                clean_end: CleanEnd::new(end_mark),
            },
            locks,
            changes: Changes { log, name_locks: Arc::default() },
            numbers: Numbers::load(options.numbers),
            budgets,
            quotas,
            recorder,
            mailboxes: Mutex::default(),
            drained: Mutex::default(),
            one_more_drained: Condvar::new(),
            process: Process::new(
                entropy,
                process_stats,
                (stopwatch, options.thread_time),
                arena_bytes,
            ),
            metrics: Metrics::default(),
            counters,
        })
    }

    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        self.process.random()
    }

    /// Changes when the server restarts, unless it ended in order.
    #[inline]
    pub(crate) fn verifier(&self) -> WriteVerifier {
        self.unifier.verifier()
    }

    /// What clients of this host may read of a cache domain by themselves.
    pub(crate) fn shown(&self, domain: DomainId) -> Option<&Shown> {
        self.shown.of(domain)
    }

    pub(crate) fn join(&self, worker: u16, mailbox: Arc<Mailbox>) {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, mailbox);
    }

    /// A worker has ended what it did.
    pub(crate) fn drained(&self) {
        *self.drained.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.one_more_drained.notify_all();
    }

    /// Waits until all have, but no longer than this.
    pub(crate) fn wait_until_drained(&self, longest: Duration) {
        let workers = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).len();
        let drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let are_some_left = |drained: &mut usize| *drained < workers;
        drop(self.one_more_drained.wait_timeout_while(drained, longest, are_some_left));
    }

    /// A request that came at `start` is answered now.
    pub(crate) fn note_time(&self, kind: Kind, start: Duration) {
        self.metrics.latency.note(kind, self.process.now().saturating_sub(start));
    }

    /// Leaves something for another worker.
    pub(crate) fn send(&self, worker: u16, message: Message) {
        let mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = mailboxes.get(&worker) {
            mailbox.put(message);
        }
    }

    /// Gives back what was taken for a request.
    #[inline]
    pub(crate) fn give(&self, user: &UserShare, needs: Needs) {
        if self.budgets.give(user, needs) {
            self.send_granted(self.budgets.granted(user));
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

    /// To be called when all workers have ended and nobody is answered any more: syncs what was
    /// written, and tells the next server that all of it is safe. Blocks. False: it is not.
    pub fn conclude(&self) -> bool {
        let written = !self.unifier.has_lost() && self.unifier.stats().dirty_bytes == 0;
        let Sessions { ended, clean_end, .. } = &self.sessions;
        clean_end.conclude(&self.exports, ended, (self.verifier(), written))
    }

    /// The exports.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// The cache.
    pub fn unifier(&self) -> &Arc<CacheDomains> {
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
