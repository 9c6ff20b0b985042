//! A worker over a store in memory, on a thread of this process, over loopback TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dafs_fabric::{Address, Arena, Provider};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Identity, Timestamp, WriteVerifier};
use dafs_server::{Export, Exports, Limits, Proof, Shared, SharedOptions, Worker};
use dafs_store::memory::MemoryStore;
use dafs_unifier::Unifier;

fn shared(store: MemoryStore, limits: Limits) -> Arc<Shared> {
    let arena = Arena::new(64 << 20).expect("arena");
    let clock = Arc::new(Timestamp::default);
    let config = dafs_unifier::Config::new(arena.len(), clock);
    let arena_bytes = arena.len();
    let unifier = Unifier::new(arena, config, WriteVerifier([7; 16]));
    let export = Export {
        name: String::new(),
        store: Arc::new(store),
        read_only: false,
        path: "memory".into(),
    };
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier,
        arena_bytes,
        limits,
        key: None,
        entropy: Box::new(|bytes| bytes.fill(3)),
        process_stats: Box::new(|| (0, 0)),
    })
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

/// Serves a store on a free port.
///
/// # Panics
/// When the system refuses.
pub fn serve(store: MemoryStore, limits: Limits) -> InProcess {
    let device = TcpProvider::default().open().expect("device");
    let address = Address::parse("tcp://127.0.0.1:0").expect("address");
    let mut listener = device.listen(&address).expect("listen");
    let address = listener.address();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let engine = device.engine().expect("engine");
        let node = Node::new(device, engine, NodeConfig::default()).expect("node");
        let mut worker = Worker::new(0, node, shared(store, limits));
        let start = Instant::now();
        while !stopped.load(Ordering::SeqCst) {
            while let Some(incoming) = listener.poll_accept() {
                worker.accept(incoming, Proof::Kernel(Identity::root()));
            }
            worker.progress(start.elapsed());
        }
    });
    InProcess { address, stop, thread: Some(thread) }
}
