//! The server: its workers, which crash and come back over the same store.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_fabric::mem::Life;
use dafs_fabric::sim::Rng;
use dafs_fabric::{Arena, ArenaError, Domain, Listener, Readers, Words, poison};
use dafs_message::{Node, incoming_private_data};
use dafs_protocol::{Identity, LIFE_SERVER, SameHostToken, SessionId, WriteVerifier};
use dafs_server::{
    DataPath, Export, Exports, Key, MemoryLog, MemoryMark, Proof, Shared, SharedOptions,
    ShownCaches, Worker, first_verifier, listen_same_host, shown_entries,
};
use dafs_store::Store;
use dafs_unifier::{Config, Unifier};

use crate::networks::Networks;
use crate::plan::Plan;
use crate::records::Records;
use crate::storage::{Clock, Storage};

/// The server's node.
pub const NODE: u32 = 1;

/// Entries of a cache that clients read by themselves, and the life that they have.
type Shown = (Arc<Arena>, Life);

/// A server that runs.
struct Running {
    /// On each network.
    listeners: Vec<Box<dyn Listener>>,
    workers: Vec<Worker>,
    /// Who gets the next session.
    next: usize,
    shared: Arc<Shared>,
    /// What clients look at who read the cache by themselves.
    entries: Option<Arc<Arena>>,
}

/// The server, running or not.
pub struct SimServer {
    net: Arc<Networks>,
    clock: Clock,
    /// Where its files are.
    pub storage: Storage,
    running: Option<Running>,
    stopping: bool,
    boots: u64,
    /// When it was started last.
    pub started: Duration,
    /// Starts of its machine.
    pub machine_runs: u64,
    /// Which clients may have locks; not lost with it.
    records: Records,
    /// What became of changes; not lost with it.
    intent_log: MemoryLog,
    /// That the last one ended in order.
    end_mark: MemoryMark,
    /// The verifier of the server that runs.
    pub verifier: Option<WriteVerifier>,
    /// Until then it is busy with other things.
    pub awake_at: Duration,
}

impl SimServer {
    /// One that is down.
    pub fn new(net: Arc<Networks>, clock: Clock, storage: Storage) -> SimServer {
        let records = Records::new(&storage);
        let time = net.clone();
        let intent_log = MemoryLog::new(Arc::new(move || time.now()));
        SimServer {
            net,
            clock,
            storage,
            running: None,
            stopping: false,
            boots: 0,
            started: Duration::ZERO,
            machine_runs: 0,
            records,
            intent_log,
            end_mark: MemoryMark::default(),
            verifier: None,
            awake_at: Duration::ZERO,
        }
    }

    /// True while it serves.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Starts it, with a verifier of its own where the last one did not end in order.
    ///
    /// # Errors
    /// What refused.
    pub fn start(&mut self, plan: &Plan) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        self.boots += 1;
        self.started = self.net.now();
        let mut rng = self.net.rng(1000 + self.boots);
        let mut process = [0; 8];
        process.copy_from_slice(&rng.bytes(8));
        let verifier = WriteVerifier::new(self.machine_runs.to_le_bytes(), process);
        let verifier = first_verifier(&self.end_mark, verifier);
        let mut token = SameHostToken::default();
        token.copy_from_slice(&self.net.rng(2_000_000 + self.boots).bytes(16));
        let domain = Domain::open_all(&self.net.providers(NODE)).map_err(|e| text(&e))?;
        let (arena, shown) = memory(plan, &domain).map_err(|e| text(&e))?;
        let (entries, life) = shown.unzip();
        let epoch = self.boots as u32;
        let clock = self.clock.clone();
        let config = Config {
            dirty_bytes_max: plan.dirty_bytes_max,
            dirty_age: plan.dirty_age,
            least_bytes: plan.least_bytes,
            domain: Some(domain.clone()),
            epoch,
            entries: entries.clone(),
            ..Config::new(plan.arena_bytes, Arc::new(move || clock.timestamp()))
        };
        let unifier = Unifier::new(arena.clone(), config, verifier);
        let shown = life.map(|life| ShownCaches::one(&arena, &unifier, life, epoch));
        let shown = shown.unwrap_or_default();
        let store: Arc<dyn Store> = Arc::new(self.storage.store.clone());
        let export = Export {
            name: String::new(),
            store,
            read_only: false,
            policy: dafs_unifier::Policy::Lru,
            data_path: DataPath::Unifier,
            path: "memory".into(),
            domain: dafs_unifier::DomainId::FIRST,
            share_cache: false,
            optimistic: dafs_server::Optimistic::Both,
        };
        let key = plan.options.key.clone().filter(|_| plan.key);
        let options = SharedOptions {
            exports: Exports::new(vec![export]),
            unifier: Arc::new(unifier.into()),
            shown,
            scopes: None,
            page_cache: None,
            arena_bytes: plan.arena_bytes,
            limits: plan.limits.clone(),
            key: key.map(|bytes| Key { bytes, who: Identity::root(), known_as: Vec::new() }),
            own: Identity::root(),
            records: Box::new(self.records.clone()),
            intent_log: Some(Box::new(self.intent_log.clone())),
            end_mark: Some(Box::new(self.end_mark.clone())),
            numbers: None,
            recorder: None,
            entropy: entropy(rng),
            process_stats: Box::new(|| (0, 0)),
            addresses: Vec::new(),
            same_host: Some(token),
            stopwatch: Box::new(|| std::time::Duration::ZERO),
            thread_time: Box::new(|| std::time::Duration::ZERO),
        };
        // It looks what became of changes before it serves.
        let shared = self.storage.at_once(|| Shared::new(options));
        let at = self.net.addresses(NODE);
        let listeners: Result<Vec<_>, _> =
            at.iter().map(|address| domain.listen(address)).collect();
        let mut listeners = listeners.map_err(|e| text(&e))?;
        listeners.extend(listen_same_host(&domain, token).into_iter().map(|near| near.listener));
        let worker = |number| {
            let node = self.net.gently(|| node(plan, domain.clone()))?;
            Ok(Worker::new(number, node, shared.clone()))
        };
        let workers = (0..plan.workers).map(worker).collect::<Result<_, String>>()?;
        self.running = Some(Running { listeners, workers, next: 0, shared, entries });
        self.stopping = false;
        self.verifier = Some(verifier);
        Ok(())
    }

    /// Does what can be done now.
    pub fn progress(&mut self, key: bool) -> bool {
        let now = self.net.now();
        let Some(Running { listeners, workers, next, .. }) = &mut self.running else {
            return false;
        };
        let mut busy = false;
        for incoming in listeners.iter_mut().flat_map(|l| std::iter::from_fn(|| l.poll_accept())) {
            let proof = if key { Proof::Key } else { Proof::Kernel(Identity::root()) };
            // A session names its worker.
            let named = incoming_private_data(&incoming).and_then(|p| p.first_chunk::<2>());
            let number = named.map(|number| usize::from(u16::from_le_bytes(*number)));
            *next = (*next + 1) % workers.len();
            let worker = &mut workers[number.unwrap_or(*next)];
            if !self.stopping {
                worker.accept(incoming, proof);
            }
            busy = true;
        }
        for worker in workers {
            busy |= worker.progress(now);
        }
        busy
    }

    /// When it wants to be called next.
    pub fn next_at(&self) -> Option<Duration> {
        let workers = self.running.iter().flat_map(|running| &running.workers);
        workers.map(Worker::next_timeout).chain(self.storage.next_at()).min()
    }

    /// Ends all sessions, in order; [`is_drained`](Self::is_drained) follows.
    pub fn shut_down(&mut self) {
        self.stopping = true;
        if let Some(running) = &mut self.running {
            running.workers.iter_mut().for_each(Worker::shut_down);
        }
    }

    /// Nothing runs any more.
    pub fn is_drained(&self) -> bool {
        let mut workers = self.running.iter().flat_map(|running| &running.workers);
        workers.all(|worker| worker.running() == 0)
    }

    /// All sessions have ended in order: tells the next one, if all is safe.
    pub fn conclude(&self) -> bool {
        let shared = self.running.as_ref().map(|running| &running.shared);
        shared.is_some_and(|shared| self.storage.at_once(|| shared.conclude()))
    }

    /// It is gone, whatever it was doing. Who has its memory mapped sees it as it was, but for what the kernel
    /// does: it tells there that the process is dead.
    pub fn die(&mut self) {
        self.net.crash(NODE);
        let entries = self.running.as_ref().and_then(|running| running.entries.clone());
        let words = entries.as_ref().map(Words::new);
        let load = |words: &Words| -> Vec<u64> {
            (0..words.len()).map(|number| words.load(number, Ordering::Relaxed)).collect()
        };
        let before = words.as_ref().map_or(Vec::new(), load);
        self.running = None;
        self.verifier = None;
        let was = before.into_iter().enumerate().filter(|(number, _)| *number != LIFE_SERVER);
        for ((number, word), words) in was.zip(words.iter().cycle()) {
            words.store(number, word, Ordering::Relaxed);
        }
    }

    /// A session of this life of the server stands by this word.
    pub fn stands_for(&self, (epoch, word): (u32, u64)) -> bool {
        let mut workers = self.running.iter().flat_map(|running| &running.workers);
        u64::from(epoch) == self.boots && workers.any(|worker| worker.stands_for(word))
    }

    /// Changes that were begun when it died, and may have been done.
    pub fn begun(&self) -> Vec<(usize, SessionId, u32)> {
        self.intent_log.begun()
    }

    /// The cache is to take so many bytes; how many it takes.
    pub fn resize(&self, bytes: u64) -> Option<u64> {
        self.running.as_ref().map(|running| running.shared.unifier().resize(bytes))
    }

    /// Goes on to give memory back.
    pub fn shrink_on(&self) {
        if let Some(running) = &self.running
            && let Some(bytes) = running.shared.unifier().shrinks_to()
        {
            running.shared.unifier().resize(bytes);
        }
    }

    /// For people: what it holds.
    pub fn state(&self) -> String {
        let Some(Running { workers, shared, .. }) = &self.running else { return "down".into() };
        let sessions: Vec<_> = workers.iter().map(Worker::session_count).collect();
        let chains: Vec<_> = workers.iter().map(Worker::running).collect();
        format!("{sessions:?} sessions, {chains:?} chains, {:?}", shared.unifier().stats())
    }

    /// What must not be left when all sessions have ended.
    pub fn leftovers(&self) -> Vec<String> {
        let Some(Running { workers, shared, .. }) = &self.running else { return Vec::new() };
        let of = |count: fn(&Worker) -> usize| workers.iter().map(count).sum::<usize>() as u64;
        shared.unifier().resize(u64::MAX);
        let stats = shared.unifier().stats();
        let counters = &shared.counters;
        [
            ("sessions", of(Worker::session_count)),
            ("sessions counted", counters.sessions.load(Ordering::Relaxed) as u64),
            ("open files", counters.opens.load(Ordering::Relaxed) as u64),
            ("running chains", of(Worker::running)),
            ("faults of honest peers", counters.peer_faults.load(Ordering::Relaxed)),
            ("dirty bytes", stats.dirty_bytes),
            ("bytes held by nobody", stats.orphan_bytes),
            ("bytes of the arena not fetched back", stats.decommitted_bytes),
            ("locks, waits and their ends", shared.locks_left()),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect()
    }
}

/// The cache's, and its entries' with the life that they have, where clients read it by themselves.
fn memory(plan: &Plan, domain: &Domain) -> Result<(Arc<Arena>, Option<Shown>), ArenaError> {
    let (bytes, segment_bytes) = (plan.arena_bytes, plan.segment_bytes);
    let arena = match domain.shares_memory() {
        true => Arena::for_readers(bytes, segment_bytes, Readers::Own)?,
        false => Arena::in_segments(bytes, segment_bytes)?,
    };
    // Where a device does not take it, the server copies.
    let _ = domain.let_peers_read(&arena.span(0, arena.len()));
    // What was in memory before is no file's, and nothing is written where nobody reserved.
    poison::switch_on(std::array::from_fn(|at| (at * 37 + 11) as u8));
    poison::fill(&arena.span(0, arena.len()));
    let shown = match domain.shares_memory() {
        true => shown_entries(Readers::Own, domain, arena.len()).ok(),
        false => None,
    };
    Ok((arena, shown))
}

fn entropy(rng: Rng) -> dafs_server::Entropy {
    let rng = Mutex::new(rng);
    Box::new(move |bytes| {
        let mut rng = rng.lock().unwrap_or_else(PoisonError::into_inner);
        let random = rng.bytes(bytes.len());
        bytes.copy_from_slice(&random);
    })
}

/// A node of the message layer.
///
/// # Errors
/// What refused.
pub fn node(plan: &Plan, domain: Arc<Domain>) -> Result<Node, String> {
    Node::new(domain, plan.node.clone()).map_err(|error| error.to_string())
}
