//! A worker over a store in memory, on a thread of this process, over loopback TCP.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dafs_fabric::{Address, Arena, Domain, Provider};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Identity, Timestamp, WriteVerifier};
use dafs_server::{
    DataPath, Entropy, Export, Exports, Limits, MemoryRecords, Optimistic, Proof, Shared,
    SharedOptions, ShownCaches, Worker,
};
use dafs_store::Store;
use dafs_store::memory::MemoryStore;
use dafs_unifier::{DomainId, Unifier};

/// What a worker over this store shares with others.
///
/// # Panics
/// When the system refuses.
pub fn shared(store: Arc<dyn Store>, limits: Limits, arena_bytes: usize) -> Arc<Shared> {
    shared_as(Optimistic::default(), store, limits, arena_bytes)
}

/// The same, which tells so much of its cache.
///
/// # Panics
/// As of [`shared`].
pub fn shared_as(
    optimistic: Optimistic,
    store: Arc<dyn Store>,
    limits: Limits,
    arena_bytes: usize,
) -> Arc<Shared> {
    let arena = Arena::new(arena_bytes).expect("arena");
    let clock = Arc::new(Timestamp::default);
    let config = dafs_unifier::Config::new(arena.len(), clock);
    let unifier = Unifier::new(arena, config, WriteVerifier([7; 16]));
    let export = Export {
        name: String::new(),
        store,
        read_only: false,
        policy: dafs_unifier::Policy::default(),
        domain: DomainId::FIRST,
        share_cache: false,
        optimistic,
        data_path: DataPath::Unifier,
        path: "in process".into(),
    };
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier: Arc::new(unifier.into()),
        shown: ShownCaches::default(),
        scopes: None,
        page_cache: None,
        arena_bytes,
        limits,
        key: None,
        own: Identity::root(),
        intent_log: None,
        end_mark: None,
        numbers: None,
        recorder: None,
        records: Box::new(MemoryRecords::default()),
        entropy: entropy(),
        process_stats: Box::new(|| (0, 0)),
        addresses: Vec::new(),
        same_host: None,
        stopwatch: Box::new(|| std::time::Duration::ZERO),
        thread_time: Box::new(|| std::time::Duration::ZERO),
    })
}

/// The same in every run, and other bytes each time: sessions have names of their own.
fn entropy() -> Entropy {
    let next = AtomicU8::new(1);
    Box::new(move |bytes| bytes.fill(next.fetch_add(1, Ordering::Relaxed)))
}

/// A server that runs until it is dropped. Every caller is root.
#[derive(Debug)]
pub struct InProcess {
    /// Where it listens.
    pub address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves a store on a free port, with a cache of 64 MiB.
///
/// # Panics
/// When the system refuses.
pub fn serve(store: MemoryStore, limits: Limits) -> InProcess {
    serve_with_arena(store, limits, 64 << 20)
}

/// A store that answers later, in another thread; one call in four takes up to 0.3 ms.
pub fn late_store() -> MemoryStore {
    let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
    std::thread::spawn(move || {
        let mut number = 77u64;
        for job in jobs {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if number >> 62 == 0 {
                std::thread::sleep(Duration::from_micros((number >> 33) % 300));
            }
            job();
        }
    });
    MemoryStore::with_scheduler(Arc::new(move |job| {
        let _ = sender.send(job);
    }))
}

/// As [`serve`], with a cache of `arena_bytes`.
///
/// # Panics
/// When the system refuses.
pub fn serve_with_arena(store: MemoryStore, limits: Limits, arena_bytes: usize) -> InProcess {
    serve_on(&TcpProvider::default(), store, limits, arena_bytes)
}

/// As [`serve_with_arena`], on another network, whose device is not told of the cache.
///
/// # Panics
/// When the system refuses.
pub fn serve_on(
    provider: &dyn Provider,
    store: MemoryStore,
    limits: Limits,
    arena_bytes: usize,
) -> InProcess {
    let domain = Domain::open(provider).expect("device");
    let address = Address::parse("tcp://127.0.0.1:0").expect("address");
    let mut listener = domain.device().listen(&address).expect("listen");
    let address = listener.address();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let node = Node::new(domain, NodeConfig::default()).expect("node");
        let shared = shared(Arc::new(store), limits, arena_bytes);
        let mut worker = Worker::new(0, node, shared);
        let start = Instant::now();
        while !stopped.load(Ordering::SeqCst) {
            while let Some(incoming) = listener.poll_accept() {
                worker.accept(incoming, Proof::Kernel(Identity::root()));
            }
            worker.progress(start.elapsed());
        }
        // In order, as a server ends: work under way holds the cache until it is done.
        worker.shut_down();
        let patience = Instant::now();
        while worker.running() > 0 && patience.elapsed() < Duration::from_secs(30) {
            worker.progress(start.elapsed());
        }
    });
    InProcess { address, stop, thread: Some(thread) }
}
