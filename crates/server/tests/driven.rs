//! A worker whose passes and time a test decides, with clients over TCP.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::{Address, Arena, Domain, Listener, SgList};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};
use dafs_protocol::*;
use dafs_server::{
    DataPath, Export, Exports, Limits, MemoryRecords, Proof, Shared, SharedOptions, ShownCaches,
    Worker,
};
use dafs_store::memory::MemoryStore;
use dafs_unifier::Unifier;

const ARENA_BYTES: usize = 16 << 20;

struct Driven {
    worker: Worker,
    listener: Box<dyn Listener>,
    shared: Arc<Shared>,
    now: Duration,
    clients: Node,
    conns: Vec<ConnId>,
}

fn shared(limits: Limits) -> Arc<Shared> {
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
        optimistic: Default::default(),
    };
    let next = std::sync::atomic::AtomicU64::new(1);
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier: Arc::new(Unifier::new(arena, config, WriteVerifier([7; 16])).into()),
        shown: ShownCaches::default(),
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
    })
}

fn node(domain: Arc<Domain>) -> Node {
    let config = NodeConfig { receives_max: 1 << 15, ..NodeConfig::default() };
    Node::new(domain, config).expect("node")
}

impl Driven {
    fn new(limits: Limits) -> Driven {
        let shared = shared(limits);
        let domain = Domain::open(&TcpProvider::default()).expect("device");
        let address = Address::parse("tcp://127.0.0.1:0").expect("address");
        let listener = domain.device().listen(&address).expect("listen");
        let worker = Worker::new(0, node(domain), shared.clone());
        let now = Duration::ZERO;
        let clients = node(Domain::open(&TcpProvider::default()).expect("device"));
        Driven { worker, listener, shared, now, clients, conns: Vec::new() }
    }

    /// A pass of the worker, so much later than the one before.
    fn pass(&mut self, later: Duration) {
        self.now += later;
        while let Some(incoming) = self.listener.poll_accept() {
            self.worker.accept(incoming, Proof::Kernel(Identity::root()));
        }
        self.worker.progress(self.now);
    }

    /// What the clients hear next, while the worker runs.
    fn event(&mut self) -> Event {
        for _ in 0..1_000_000 {
            self.clients.poll();
            if let Some(event) = self.clients.next_event() {
                return event;
            }
            self.pass(Duration::ZERO);
        }
        panic!("nobody answers");
    }

    fn session(&mut self) {
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
            read_ahead: true,
        };
        let client = ClientId((self.conns.len() as u128 + 1).to_le_bytes());
        let purpose = Purpose::Create { attr, client };
        let hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
        let mut header = Vec::new();
        encode_setup_request(&hello, &mut header);
        self.ask(conn, &header);
        let Event::Reply { header, .. } = self.event() else { panic!("no reply") };
        assert!(matches!(decode_setup_reply(&header), Ok(SetupReply::Ready { .. })));
        self.conns.push(conn);
    }

    fn ask(&mut self, conn: ConnId, header: &[u8]) {
        self.clients.submit(conn, 1, header, SgList::new(), SgList::new()).expect("submit");
        self.clients.ring();
    }

    /// Every client asks something, and the worker does not run.
    fn all_ask(&mut self) {
        let head = RequestHead { slot: SlotId(0), sequence: 1, cred: CredHandle(0) };
        let mut header = Vec::new();
        encode_request(&head, &[Operation::GetRoot { export: b"" }], &mut header).expect("encode");
        for conn in self.conns.clone() {
            self.ask(conn, &header);
        }
    }

    fn sessions(&self) -> usize {
        self.worker.session_count()
    }
}

/// More than one look at the network tells of, three times.
const MANY: usize = 200;

fn with_many() -> Driven {
    let mut driven = Driven::new(Limits { lease_seconds: 2, ..Limits::default() });
    (0..MANY).for_each(|_| driven.session());
    driven
}

#[test]
fn a_pause_ends_no_session() {
    let mut driven = with_many();
    driven.all_ask();
    driven.pass(Duration::from_secs(60));
    assert_eq!(driven.sessions(), MANY);
    // They were heard, or will be in the next passes.
    (0..8).for_each(|_| driven.pass(Duration::from_millis(250)));
    assert_eq!(driven.sessions(), MANY);
}

#[test]
fn what_passes_while_the_worker_does_not_run_is_no_silence() {
    let mut driven = Driven::new(Limits { lease_seconds: 2, ..Limits::default() });
    driven.session();
    driven.pass(Duration::from_secs(60));
    (0..8).for_each(|_| driven.pass(Duration::from_millis(200)));
    assert_eq!(driven.sessions(), 1);
    (0..8).for_each(|_| driven.pass(Duration::from_millis(200)));
    assert_eq!(driven.sessions(), 0);
}

#[test]
fn a_session_whose_request_waits_in_its_socket_is_not_silent() {
    let mut driven = with_many();
    driven.all_ask();
    // Slow, but no pause: leases end while most sockets were not looked at.
    (0..5).for_each(|_| driven.pass(Duration::from_millis(900)));
    assert_eq!(driven.shared.counters.requests(), MANY as u64);
    assert_eq!(driven.sessions(), MANY);
    // Who is silent ends all the same.
    (0..8).for_each(|_| driven.pass(Duration::from_millis(900)));
    assert_eq!(driven.sessions(), 0);
}

#[test]
fn what_was_sent_behind_a_violation_is_no_other_one() {
    let mut driven = Driven::new(Limits::default());
    driven.session();
    let conn = driven.conns[0];
    for tag in 1..6 {
        driven.clients.submit(conn, tag, b"?", SgList::new(), SgList::new()).expect("submit");
    }
    driven.clients.ring();
    (0..9).for_each(|_| driven.pass(Duration::from_millis(1)));
    let violations = &driven.shared.counters.peer_faults;
    assert_eq!(violations.load(std::sync::atomic::Ordering::Relaxed), 1);
}
