//! Reads of a client from a server in one thread, each end in a function that a profiler can
//! tell from all else.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::core::{Core, CoreConfig, FileKey, Memory, Owner, Place, Work};
use dafs_client::{OpenOptions, Output, SessionOptions};
use dafs_fabric::{Address, Buffer, Domain, Provider, SharedPool};
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Identity, Stability};
use dafs_server::{Limits, Optimistic, Proof, Worker};
use dafs_store::memory::MemoryStore;
use dafs_store::{Disk, Store, ThreadIo};
use dafs_store_posix::{HandleKey, OpenStoreError, PosixOptions, PosixStore};
use dafs_tests::in_process::shared_as;

/// Reads at a time, where it is not one.
const DEPTH: usize = 32;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;
const WRITE: usize = 1024 * 1024;
const ROUNDS: usize = 64;

/// Of what client and server share.
const POOL_BYTES: usize = 16 << 20;
/// The cache of cold reads, and blocks of their file, eight times as many.
const COLD_ARENA: usize = 16 << 20;
const COLD_BLOCKS: u64 = 8 * (COLD_ARENA / BLOCK) as u64;
/// Cold reads before those that are counted.
const COLD_BEFORE: usize = 2 * COLD_ARENA / BLOCK;
/// The cache of cached reads: as many as are under way fit into a session's share of it, seven times, so that none by a
/// reference is refused, and becomes a request.
const CACHED_ARENA: usize = 512 << 20;
/// Cached reads before those that are counted: what grows with use has grown then.
const READS_BEFORE: usize = 8 * DEPTH;
/// How long the disk may take for what it is asked for together. What is later costs another look,
/// which is counted.
const DISK_LATENCY: Duration = Duration::from_millis(5);

/// That are counted.
pub(crate) const READS: usize = DEPTH * ROUNDS;

/// What is between the two ends.
pub(crate) struct Network {
    provider: Box<dyn Provider>,
    address: String,
    /// Where buffers lie that the server writes to.
    pool: Option<SharedPool>,
    options: SessionOptions,
    /// What the server gives.
    optimistic: Optimistic,
}

impl Network {
    /// By its name; `None`: there is none of that name.
    pub(crate) fn named(name: &str) -> Option<Network> {
        let tcp = |tags, optimistic| Network {
            optimistic: if optimistic { Optimistic::Checked } else { Optimistic::Off },
            provider: Box::new(TcpProvider::default()),
            address: "tcp://127.0.0.1:0".into(),
            pool: None,
            options: SessionOptions { tags, optimistic, ..SessionOptions::default() },
        };
        match name {
            "tcp" => Some(tcp(true, false)),
            // Reads by a reference, without requests.
            "named" => Some(tcp(true, true)),
            // What networks do that match no tags: the server writes to the client's memory.
            "untagged" => Some(tcp(false, false)),
            "shm" => Some(Network {
                optimistic: Optimistic::default(),
                provider: Box::new(ShmProvider::new()),
                address: format!("shm:@{:032x}", std::process::id()),
                pool: Some(SharedPool::new(POOL_BYTES)),
                options: SessionOptions::default(),
            }),
            _ => None,
        }
    }

    /// Reads go by a reference.
    fn is_named(&self) -> bool {
        self.optimistic == Optimistic::Checked
    }

    /// So many buffers for reads.
    fn buffers(&self, count: usize) -> Vec<Buffer> {
        match &self.pool {
            Some(pool) => (0..count).map(|_| pool.buffer(BLOCK).expect("buffer")).collect(),
            None => Buffer::many(count, BLOCK).expect("buffers"),
        }
    }
}

struct Pair {
    core: Core,
    worker: Worker,
    /// What the store does in this thread.
    store_io: Option<Box<dyn ThreadIo>>,
    listener: Box<dyn dafs_fabric::Listener>,
    now: Duration,
    buffers: Vec<Buffer>,
}

fn server(worker: &mut Worker, store_io: Option<&dyn ThreadIo>, now: Duration) -> bool {
    worker.progress(now) | store_io.is_some_and(ThreadIo::poll)
}

/// What the profiler looks for: what was before does not count.
#[inline(never)]
fn counting_begins() {
    std::hint::black_box(&DEPTH);
}

/// What the profiler looks for.
#[inline(never)]
fn counted_server(worker: &mut Worker, store_io: Option<&dyn ThreadIo>, now: Duration) -> bool {
    server(worker, store_io, now)
}

/// What the profiler looks for: takes what has come, and asks for reads of these blocks, the last ones first, as far
/// as there are buffers.
#[inline(never)]
fn counted_client(
    core: &mut Core,
    now: Duration,
    file: FileKey,
    asked: &mut Vec<u64>,
    buffers: &mut Vec<Buffer>,
) {
    core.progress(now);
    while let Some(done) = core.next_done() {
        assert!(matches!(done.result, Ok(Output::Read { bytes: BLOCK, .. })), "{:?}", done.result);
        if let Some(buffer) = done.buffer {
            buffers.push(buffer);
        }
        // It holds nothing, which is not known where it is dropped.
        std::mem::forget(done.result);
    }
    while !asked.is_empty()
        && let Some(buffer) = buffers.pop()
        && let Some(block) = asked.pop()
    {
        let work = Work::Read { file, offset: block * BLOCK as u64, len: BLOCK as u32 };
        core.submit(Owner(1), block, work, Memory::Buffer(buffer.post()));
    }
    core.ring();
}

impl Pair {
    /// With a cache of `arena_bytes`, and memory for `depth` reads.
    fn new(network: &Network, store: Arc<dyn Store>, arena_bytes: usize, depth: usize) -> Pair {
        let domain = Domain::open(&*network.provider).expect("device");
        let address = Address::parse(&network.address).expect("address");
        let listener = domain.device().listen(&address).expect("listen");
        let node = Node::new(domain.clone(), NodeConfig::default()).expect("node");
        let store_io = store.attach_thread().expect("a ring");
        let shared = shared_as(network.optimistic, store, Limits::default(), arena_bytes);
        let worker = Worker::new(0, node, shared);
        let node = Node::new(domain, NodeConfig::default()).expect("node");
        let config = CoreConfig::new(&listener.address(), &network.options);
        let core = Core::new(node, config, Box::new(|nonce| nonce.fill(7)));
        let buffers = network.buffers(depth);
        Pair { core, worker, store_io, listener, now: Duration::ZERO, buffers }
    }

    fn step(&mut self) -> bool {
        self.now += Duration::from_micros(10);
        while let Some(incoming) = self.listener.poll_accept() {
            self.worker.accept(incoming, Proof::Kernel(myself()));
        }
        server(&mut self.worker, self.store_io.as_deref(), self.now) | self.core.progress(self.now)
    }

    fn call(&mut self, work: Work, memory: Memory) -> Output<FileKey> {
        self.core.submit(Owner(0), 0, work, memory);
        loop {
            self.step();
            if let Some(done) = self.core.next_done() {
                return done.result.expect("no error");
            }
        }
    }

    fn open(&mut self, options: OpenOptions) -> FileKey {
        let place = Place::new(b"file").expect("a name");
        match self.call(Work::Open { place, options }, Memory::None) {
            Output::File(file, _) => file,
            _ => panic!("no file"),
        }
    }

    /// Reads as many of these blocks at a time as there are buffers, the ends by turns: in its turn the client takes what
    /// has come and asks for as many more.
    fn reads(&mut self, file: FileKey, blocks: &mut impl Iterator<Item = u64>, reads: usize) {
        let (depth, mut left) = (self.buffers.len(), reads);
        let mut asked = Vec::with_capacity(depth);
        while left > 0 || !asked.is_empty() || self.buffers.len() < depth {
            let more = left.min(depth - asked.len());
            asked.extend(blocks.take(more));
            left -= more;
            self.now += Duration::from_micros(10);
            counted_client(&mut self.core, self.now, file, &mut asked, &mut self.buffers);
            counted_server(&mut self.worker, self.store_io.as_deref(), self.now);
            self.wait_for_disk();
        }
    }

    /// Until it has done what it was asked for, a look at the disk is no work to be counted.
    fn wait_for_disk(&self) {
        if self.store_io.is_some() && self.worker.running() > 0 {
            std::thread::sleep(DISK_LATENCY);
        }
    }
}

/// Each block of a file once, in an order without a pattern: an additive congruential walk would be
/// read ahead.
fn scattered() -> impl Iterator<Item = u64> {
    // A multiplier of the form 4k + 1 and an odd increment: a full period for a power of two.
    assert!(COLD_BLOCKS.is_power_of_two());
    std::iter::successors(Some(1), |block: &u64| {
        Some((block * 1_664_525 + 1_013_904_223) % COLD_BLOCKS)
    })
    .map(|block| block.reverse_bits() >> (u64::BITS - COLD_BLOCKS.ilog2()))
    .take(COLD_BLOCKS as usize)
}

/// Runs what is counted: reads of what the cache holds, so many at a time.
pub(crate) fn cached(network: &Network, depth: usize) {
    let mut pair = Pair::new(network, Arc::new(MemoryStore::new()), CACHED_ARENA, depth);
    let file = pair.open(OpenOptions { read: true, ..OpenOptions::write() });
    for write in 0..BLOCKS * BLOCK as u64 / WRITE as u64 {
        let data = Buffer::new(WRITE).expect("buffer").post();
        let (offset, len) = (write * WRITE as u64, WRITE as u32);
        let stability = Stability::Unstable;
        let work = Work::Write { file, offset, len, stability, within: false };
        pair.call(work, Memory::Buffer(data));
    }
    // The network has noticed that no more writes come.
    for block in 0..32 {
        let (offset, len) = (block * BLOCK as u64, BLOCK as u32);
        let into = Buffer::new(BLOCK).expect("buffer").post();
        pair.call(Work::Read { file, offset, len }, Memory::Buffer(into));
    }
    let mut blocks = (0..).map(|number| (number + 1) * 409 % BLOCKS);
    pair.reads(file, &mut blocks, READS_BEFORE);
    let before = pair.core.facts().named;
    counting_begins();
    pair.reads(file, &mut blocks, READS);
    let named = pair.core.facts().named;
    let by_name = if network.is_named() { READS as u64 } else { 0 };
    assert_eq!((named.hits - before.hits, named.refused - before.refused), (by_name, 0));
}

/// Who may use what this process may.
fn myself() -> Identity {
    let of = std::fs::metadata("/proc/self").expect("this process");
    Identity { uid: of.uid(), gid: of.gid(), groups: Vec::new() }
}

/// A store that asks the disk itself.
///
/// # Errors
/// There is no such disk here, or no io_uring.
pub(crate) fn direct(dir: &Path) -> Result<Arc<PosixStore>, OpenStoreError> {
    let key = Some(HandleKey([7; 16]));
    PosixStore::open(dir, PosixOptions { disk: Disk::Direct, key, ..PosixOptions::default() })
}

/// Runs what is counted: reads of what the disk must be asked for, with a file in `dir`.
pub(crate) fn cold(network: &Network, dir: &Path) {
    let file = std::fs::File::create(dir.join("file")).expect("file");
    std::io::copy(&mut std::io::repeat(7).take(COLD_BLOCKS * BLOCK as u64), &mut &file)
        .and_then(|_| file.sync_all())
        .expect("written");
    let mut pair = Pair::new(network, direct(dir).expect("direct I/O"), COLD_ARENA, DEPTH);
    let file = pair.open(OpenOptions::read());
    let mut blocks = scattered();
    // Until the cache is full: then what comes in displaces something.
    pair.reads(file, &mut blocks, COLD_BEFORE);
    counting_begins();
    pair.reads(file, &mut blocks, READS);
}
