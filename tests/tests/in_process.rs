//! A worker over a store in memory and a client, in one process over loopback TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session, SessionOptions};
use dafs_fabric::{Address, Arena, Provider};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{Node, NodeConfig};
use dafs_protocol::{Identity, Timestamp, WriteVerifier};
use dafs_server::{Export, Exports, Limits, Proof, Shared, SharedOptions, Worker};
use dafs_store::memory::MemoryStore;
use dafs_tests::tree::pattern;
use dafs_unifier::Unifier;

fn shared() -> Arc<Shared> {
    let arena = Arena::new(64 << 20).expect("arena");
    let clock = Arc::new(Timestamp::default);
    let config = dafs_unifier::Config::new(arena.len(), clock);
    let arena_bytes = arena.len();
    let unifier = Unifier::new(arena, config, WriteVerifier([7; 16]));
    let store = Arc::new(MemoryStore::new());
    let export = Export { name: String::new(), store, read_only: false, path: "memory".into() };
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier,
        arena_bytes,
        limits: Limits::default(),
        key: None,
        entropy: Box::new(|bytes| bytes.fill(3)),
        process_stats: Box::new(|| (0, 0)),
    })
}

struct Running {
    address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve() -> Running {
    let device = TcpProvider::default().open().expect("device");
    let address = Address::parse("tcp://127.0.0.1:0").expect("address");
    let mut listener = device.listen(&address).expect("listen");
    let address = listener.address();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let engine = device.engine().expect("engine");
        let node = Node::new(device, engine, NodeConfig::default()).expect("node");
        let mut worker = Worker::new(0, node, shared());
        let start = Instant::now();
        while !stopped.load(Ordering::SeqCst) {
            while let Some(incoming) = listener.poll_accept() {
                worker.accept(incoming, Proof::Kernel(Identity::root()));
            }
            worker.progress(start.elapsed());
        }
    });
    Running { address, stop, thread: Some(thread) }
}

fn connect(running: &Running) -> Session {
    let options = SessionOptions { retry: Duration::from_secs(2), ..SessionOptions::default() };
    Session::connect(Arc::new(TcpProvider::default()), &running.address, options).expect("connect")
}

#[test]
fn files_of_all_sizes_come_back_as_written() {
    let running = serve();
    let session = connect(&running);
    for (i, len) in [0, 1, 511, 4096, 4097, 65_536, 1_000_003, 9_000_001].into_iter().enumerate() {
        let name = format!("file-{i}");
        let data = pattern(i as u64, len);
        let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
        let file = session.open(name.as_bytes(), options).expect("open");
        assert_eq!(file.write_at(&data, 0).expect("write"), len);
        let mut back = vec![0; len + 10];
        assert_eq!(file.read_at(&mut back, 0).expect("read"), len);
        assert!(back[..len] == data[..], "file of {len} bytes");
        assert_eq!(file.close().expect("close").size, len as u64);
        assert_eq!(session.stat(name.as_bytes()).expect("stat").size, len as u64);
    }
}

#[test]
fn names_follow_the_rules() {
    let running = serve();
    let session = connect(&running);
    session.mkdir(b"dir", 0o755).expect("mkdir");
    assert!(session.mkdir(b"dir", 0o755).is_err());
    session.symlink(b"dir", b"link").expect("symlink");
    assert_eq!(session.read_link(b"link").expect("readlink"), b"dir");
    session.rename(b"dir", b"other").expect("rename");
    assert!(session.stat(b"dir").is_err());
    let names: Vec<_> =
        session.read_dir(b"").expect("list").map(|entry| entry.expect("entry").name).collect();
    assert_eq!(names.len(), 2);
    session.remove_dir(b"other").expect("rmdir");
    session.remove(b"link").expect("remove");
    assert_eq!(session.read_dir(b"").expect("list").count(), 0);
}
