//! Reads of a client from a server in one thread, each end in a function that a profiler can
//! tell from all else.

use std::time::Duration;

use dafs_client::core::{Core, CoreConfig, FileKey, Memory, Owner, Place, Work};
use dafs_client::{OpenOptions, Output, SessionOptions};
use dafs_fabric::{Address, Buffer, Domain};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Identity, Stability};
use dafs_server::{Limits, Proof, Worker};
use dafs_store::memory::MemoryStore;
use dafs_tests::in_process::shared;

const DEPTH: usize = 32;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;
const WRITE: usize = 1024 * 1024;
const ROUNDS: usize = 64;

/// That are counted.
pub(crate) const READS: usize = DEPTH * ROUNDS;

struct Pair {
    core: Core,
    worker: Worker,
    listener: Box<dyn dafs_fabric::Listener>,
    now: Duration,
    buffers: Vec<Buffer>,
}

/// What the profiler looks for.
#[inline(never)]
fn counted_server(worker: &mut Worker, now: Duration) -> bool {
    worker.progress(now)
}

/// What the profiler looks for: asks for reads of so many buffers, and takes what has come.
#[inline(never)]
fn counted_client(
    core: &mut Core,
    now: Duration,
    asked: &mut Vec<(u64, Work, Buffer)>,
    back: &mut Vec<Buffer>,
) -> bool {
    for (tag, work, buffer) in asked.drain(..) {
        core.submit(Owner(1), tag, work, Memory::Buffer(buffer.post()));
    }
    let busy = core.progress(now);
    while let Some(done) = core.next_done() {
        assert!(matches!(done.result, Ok(Output::Read { bytes: BLOCK, .. })), "{:?}", done.result);
        back.extend(done.buffer);
    }
    busy
}

impl Pair {
    fn new() -> Pair {
        let domain = Domain::open(&TcpProvider::default()).expect("device");
        let address = Address::parse("tcp://127.0.0.1:0").expect("address");
        let listener = domain.device().listen(&address).expect("listen");
        let node = Node::new(domain.clone(), NodeConfig::default()).expect("node");
        let worker = Worker::new(0, node, shared(MemoryStore::new(), Limits::default(), 64 << 20));
        let node = Node::new(domain, NodeConfig::default()).expect("node");
        let config = CoreConfig::new(&listener.address(), &SessionOptions::default());
        let core = Core::new(node, config, Box::new(|nonce| nonce.fill(7)));
        let buffers = Buffer::many(DEPTH, BLOCK).expect("buffers");
        Pair { core, worker, listener, now: Duration::ZERO, buffers }
    }

    fn step(&mut self) -> bool {
        self.now += Duration::from_micros(10);
        while let Some(incoming) = self.listener.poll_accept() {
            self.worker.accept(incoming, Proof::Kernel(Identity::root()));
        }
        self.worker.progress(self.now) | self.core.progress(self.now)
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

    /// Reads as many blocks at a time as there are buffers; `counted`: where the profiler looks.
    fn rounds(&mut self, file: FileKey, rounds: usize) {
        let (mut asked, mut block) = (Vec::with_capacity(DEPTH), 0);
        for _ in 0..rounds {
            for buffer in self.buffers.drain(..) {
                block = (block + 409) % BLOCKS;
                let offset = block * BLOCK as u64;
                asked.push((block, Work::Read { file, offset, len: BLOCK as u32 }, buffer));
            }
            while self.buffers.len() < DEPTH {
                self.now += Duration::from_micros(10);
                counted_client(&mut self.core, self.now, &mut asked, &mut self.buffers);
                counted_server(&mut self.worker, self.now);
            }
        }
    }
}

/// Runs what is counted.
pub(crate) fn run() {
    let mut pair = Pair::new();
    let place = Place::new(b"file").expect("a name");
    let options = OpenOptions { read: true, ..OpenOptions::write() };
    let Output::File(file, _) = pair.call(Work::Open { place, options }, Memory::None) else {
        panic!("no file")
    };
    // In few requests: calls are counted before the reads, too.
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
    pair.rounds(file, ROUNDS);
}
