//! A worker whose passes and time a test decides, and a node of clients, over TCP.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::{Address, Arena, Domain, Listener, SgList};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};
use dafs_protocol::*;
use dafs_server::{
    DataPath, Export, Exports, Limits, MemoryRecords, Optimistic, Proof, Shared, SharedOptions,
    ShownCaches, Worker,
};
use dafs_store::memory::MemoryStore;
use dafs_unifier::Unifier;

const ARENA_BYTES: usize = 16 << 20;

pub fn shared(limits: Limits, optimistic: Optimistic) -> Arc<Shared> {
    let arena = Arena::new(ARENA_BYTES).expect("arena");
    let config = dafs_unifier::Config::new(arena.len(), Arc::new(Timestamp::default));
    let export = Export {
        name: String::new(),
        store: Arc::new(MemoryStore::new()),
        read_only: false,
        policy: dafs_unifier::Policy::Lru,
        data_path: DataPath::Unifier,
        path: "memory".into(),
        domain: dafs_unifier::DomainId::FIRST,
        share_cache: false,
        optimistic,
    };
    let next = std::sync::atomic::AtomicU64::new(1);
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier: Arc::new(Unifier::new(arena, config, WriteVerifier([7; 16])).into()),
        shown: ShownCaches::default(),
        scopes: None,
        page_cache: None,
        arena_bytes: ARENA_BYTES,
        limits,
        key: None,
        own: Identity::root(),
        intent_log: None,
        end_mark: None,
        numbers: None,
        recorder: None,
        records: Box::<MemoryRecords>::default(),
        entropy: Box::new(move |bytes| {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_le_bytes();
            bytes.iter_mut().zip(number.into_iter().cycle()).for_each(|(to, from)| *to = from);
        }),
        process_stats: Box::new(|| (0, 0)),
        addresses: Vec::new(),
        same_host: None,
        stopwatch: Box::new(|| Duration::ZERO),
        thread_time: Box::new(|| Duration::ZERO),
    })
}

fn node(domain: Arc<Domain>) -> Node {
    let config = NodeConfig { receives_max: 1 << 15, ..NodeConfig::default() };
    Node::new(domain, config).expect("node")
}

pub struct Driven {
    pub worker: Worker,
    pub listener: Box<dyn Listener>,
    pub shared: Arc<Shared>,
    pub now: Duration,
    pub clients: Node,
    sessions: u128,
}

impl Driven {
    pub fn new(limits: Limits, optimistic: Optimistic) -> Driven {
        let shared = shared(limits, optimistic);
        let domain = Domain::open(&TcpProvider::default()).expect("device");
        let address = Address::parse("tcp://127.0.0.1:0").expect("address");
        let listener = domain.device().listen(&address).expect("listen");
        let worker = Worker::new(0, node(domain), shared.clone());
        let clients = node(Domain::open(&TcpProvider::default()).expect("device"));
        Driven { worker, listener, shared, now: Duration::ZERO, clients, sessions: 0 }
    }

    /// A pass of the worker, so much later than the one before.
    pub fn pass(&mut self, later: Duration) {
        self.now += later;
        while let Some(incoming) = self.listener.poll_accept() {
            self.worker.accept(incoming, Proof::Kernel(Identity::root()));
        }
        self.worker.progress(self.now);
    }

    /// What the clients hear next, while the worker runs.
    pub fn event(&mut self) -> Event {
        for _ in 0..1_000_000 {
            self.clients.poll();
            if let Some(event) = self.clients.next_event() {
                return event;
            }
            self.pass(Duration::ZERO);
        }
        panic!("nobody answers");
    }

    /// A session of a client that knows of these features, and its connection.
    pub fn session(&mut self, features: Features) -> (ConnId, SessionId) {
        let options = ConnOptions::default();
        let conn = self.clients.connect(&self.listener.address(), &[], options).expect("connect");
        assert!(matches!(self.event(), Event::Connected { .. }));
        let attr = SessionAttr {
            slots: 2,
            data_bytes_max: 65_536,
            inline_bytes: 512,
            wait: WaitMode::Sleeping,
            lease_ms: 0,
            tagged: true,
            rdma_read: true,
            read_ahead: false,
        };
        self.sessions += 1;
        let purpose = Purpose::Create { attr, client: ClientId(self.sessions.to_le_bytes()) };
        let mut hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
        if let SetupRequest::Hello { features: says, .. } = &mut hello {
            *says = features;
        }
        let mut header = Vec::new();
        encode_setup_request(&hello, &mut header);
        self.send(conn, &header);
        let Event::Reply { header, .. } = self.event() else { panic!("no reply") };
        let Ok(SetupReply::Ready { session, .. }) = decode_setup_reply(&header) else {
            panic!("refused")
        };
        (conn, session)
    }

    /// A message without data, and without room for an answer's.
    pub fn send(&mut self, conn: ConnId, header: &[u8]) {
        self.clients.submit(conn, 1, header, SgList::new(), SgList::new()).expect("submit");
        self.clients.ring();
    }
}
