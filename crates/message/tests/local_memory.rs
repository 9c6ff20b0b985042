//! Devices that must know the memory that they are given.

mod support;

use std::sync::Arc;

use support::{Pair, Plan};

use dafs_fabric::mem::lend_mut;
use dafs_fabric::sim::{FaultConfig, SimConfig, SimNet};
use dafs_fabric::{
    Address, Arena, Buffer, Domain, Listener, PostedBuffer, SgList, SharedPool, Span,
};
use dafs_message::{
    ConnId, ConnOptions, Counters, Event, Node, NodeConfig, RequestId, SubmitError,
};

/// In which way data moves: by tags, by RDMA, in pieces.
const WAYS: [(bool, bool); 3] = [(true, true), (false, true), (false, false)];

fn device((tags, rdma): (bool, bool)) -> SimConfig {
    let mut sim = SimConfig::new(7);
    (sim.attr.local_registration, sim.attr.registration_pins) = (true, true);
    (sim.attr.tag_match, sim.attr.rdma_read, sim.attr.rdma_write) = (tags, rdma, rdma);
    sim
}

fn run(seed: u64, change: impl Fn(&mut Plan)) -> [Counters; 2] {
    let mut plan = Plan::new(seed);
    change(&mut plan);
    let mut pair = Pair::new(plan, seed);
    pair.run();
    [0, 1].map(|side| {
        assert_eq!(pair.sides[side].breaks, 0, "seed {seed}");
        pair.sides[side].node.stats().counters
    })
}

#[test]
fn buffers_are_registered_when_they_are_first_used() {
    for (seed, way) in (0..12).zip(WAYS.into_iter().cycle()) {
        for side in run(seed, |plan| plan.sim.attr = device(way).attr) {
            assert_eq!(side.data_pushed > 0, way.0);
            assert_eq!(side.replies_written > 0, way == (false, true));
        }
    }
}

#[test]
fn what_the_device_refuses_is_copied() {
    for (seed, way) in (0..12).zip(WAYS.into_iter().cycle()) {
        let sides = run(seed, |plan| {
            plan.sim.attr = device(way).attr;
            // What is pushed cannot wait: one after the other, as far as there is a reserve for.
            if way.0 {
                plan.depth = 1;
            }
            plan.sim.faults.refuse_registration_per_million = 700_000;
        });
        assert!(sides.iter().all(|side| side.copied_bytes > 100_000), "seed {seed} {sides:?}");
    }
}

struct Two {
    net: Arc<SimNet>,
    domain: Arc<Domain>,
    server: Node,
    client: Node,
    conn: ConnId,
    listener: Box<dyn Listener>,
}

impl Two {
    fn new(sim: SimConfig) -> Two {
        let net = SimNet::new(sim);
        let config = NodeConfig { receives_max: 128, ..NodeConfig::default() };
        let open = |node| Domain::open(&net.provider(node)).expect("a device");
        let (one, domain) = (open(1), open(2));
        let address = Address::parse("sim://1").expect("an address");
        let listener = one.device().listen(&address).expect("a listener");
        let server = Node::new(one, config.clone()).expect("a node");
        let mut client = Node::new(domain.clone(), config).expect("a node");
        let conn = client.connect(&address, b"", ConnOptions::default()).expect("a connection");
        let mut two = Two { net, domain, server, client, conn, listener };
        two.turn_until(|two| two.client.request_header_max(conn) > 0);
        two
    }

    /// The server answers requests with what they bring, each byte one more.
    fn turn(&mut self) {
        self.net.step();
        if let Some(incoming) = self.listener.poll_accept() {
            self.server.accept(incoming, b"", ConnOptions::default()).expect("accepted");
        }
        self.server.poll();
        while let Some(event) = self.server.next_event() {
            let Event::Request { id, data_len, reply_max, .. } = event else { continue };
            let len = data_len.max(reply_max) as usize;
            let mut buffer = Buffer::new(len).expect("memory").post();
            self.server.fetch(id, SgList::from_iter([buffer.span().part(0, data_len as usize)]));
            buffer = self.fetched(buffer);
            let data = SgList::from_iter([buffer.span().part(0, reply_max as usize)]);
            self.server.reply(id, b"yes", data, 1);
        }
        self.server.ring();
        self.client.poll();
        self.client.ring();
    }

    fn fetched(&mut self, buffer: PostedBuffer) -> PostedBuffer {
        loop {
            self.server.ring();
            self.net.step();
            self.client.poll();
            self.client.ring();
            self.server.poll();
            match self.server.next_event() {
                Some(Event::Fetched { placed: Some(len), .. }) => {
                    let mut bytes = vec![0; len as usize];
                    buffer.span().copy_to(0, &mut bytes);
                    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                    buffer.span().copy_from(0, &bytes);
                    return buffer;
                }
                Some(Event::Fetched { placed: None, .. }) => panic!("the data did not come"),
                _ => {}
            }
        }
    }

    fn turn_until(&mut self, done: impl Fn(&Two) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("no progress");
    }

    fn submit(&mut self, tag: u32, span: &Span) -> Result<(), SubmitError> {
        let list = || SgList::from_iter([span.clone()]);
        self.client.submit(self.conn, tag, b"?", list(), list())
    }

    fn reply(&mut self) -> u32 {
        for _ in 0..100_000 {
            match self.client.next_event() {
                Some(Event::Reply { data_len, .. }) => return data_len,
                Some(Event::Disconnected { reason, .. }) => panic!("{reason}"),
                _ => self.turn(),
            }
        }
        panic!("no reply");
    }
}

/// Memory of a blocking call, which nobody can register for longer than the call.
#[test]
fn lent_memory_goes_the_bulk_way() {
    for way in WAYS {
        for (knows, shared) in [(true, false), (false, false), (false, true)] {
            let mut sim = device(way);
            (sim.attr.local_registration, sim.attr.shared_memory) = (knows, shared);
            let mut two = Two::new(sim);
            for len in [1, 300, 70_000, 1 << 20] {
                let mut memory: Vec<u8> = (0..len).map(|at| at as u8).collect();
                lend_mut(&mut memory, |span| {
                    two.submit(1, span).expect("submitted");
                    assert_eq!(two.reply() as usize, len);
                });
                let is_right =
                    memory.iter().zip(0..).all(|(byte, at)| *byte == (at as u8).wrapping_add(1));
                assert!(is_right, "{way:?} {knows} {shared} {len}");
            }
            let [client, server] = [&two.client, &two.server].map(|node| node.stats().counters);
            let in_pieces = client.data_pieces + server.replies_pieces;
            assert_eq!(in_pieces > 0, way == (false, false), "{way:?} {knows} {shared}");
            assert_eq!(two.net.violations(), [""; 0]);
        }
    }
}

/// A network of one host, whose peers reach what they can map: private memory is stood in for, by one
/// registration for all, and buffers of a pool have one as well.
#[test]
fn peers_of_the_host_reach_all_memory_by_a_few_registrations() {
    let mut sim = device((false, true));
    (sim.attr.local_registration, sim.attr.shared_memory) = (false, true);
    let mut two = Two::new(sim);
    let pool = SharedPool::new(64 << 20);
    let private: Vec<_> = (0..8).map(|_| Buffer::new(100_000).expect("memory")).collect();
    let shared: Vec<_> = (0..8).map(|_| pool.buffer(100_000).expect("memory")).collect();
    for (number, buffers) in [(1, private), (2, shared)] {
        for mut buffer in buffers {
            buffer.fill(7);
            let posted = buffer.post();
            two.submit(1, posted.span()).expect("submitted");
            assert_eq!(two.reply(), 100_000);
            let buffer = posted.take_back().expect("nobody has it");
            assert!(buffer.iter().all(|byte| *byte == 8));
        }
        // To be read, and to be written.
        assert_eq!(two.client.stats().registrations, 2 * number);
    }
}

/// Caches: once for all nodes of the domain.
#[test]
fn what_the_domain_knows_is_not_registered_again() {
    for way in WAYS {
        let mut two = Two::new(device(way));
        let arena = Arena::new(1 << 20).expect("memory");
        two.domain.register(&arena.span(0, arena.len())).expect("registered");
        two.net.set_faults(FaultConfig {
            refuse_registration_per_million: 1_000_000,
            ..two.net.faults()
        });
        // What stays below the size of bulk data is not told to the peer.
        let span = arena.span(5000, 400);
        two.submit(1, &span).expect("submitted");
        assert_eq!(two.reply(), 400);
        assert_eq!(two.client.stats().registrations, 0);
        drop(span);
        assert!(two.domain.forget(&arena.span(0, arena.len())), "nobody holds it");
        arena.discard(0, arena.len()).expect("given back");
    }
}

#[test]
fn memory_that_stands_in_has_a_bound() {
    let mut two = Two::new(device((true, true)));
    let refuse = |two: &Two, rate| {
        let faults = two.net.faults();
        two.net.set_faults(FaultConfig { refuse_registration_per_million: rate, ..faults });
    };
    refuse(&two, 1_000_000);
    let mut memory = vec![7; 600_000];
    lend_mut(&mut memory, |span| {
        // Its data and its reply take what is in reserve.
        two.submit(1, span).expect("submitted");
        assert_eq!(two.submit(2, span), Err(SubmitError::QueueFull));
        assert_eq!(two.submit(2, span), Err(SubmitError::QueueFull));
        two.reply();
        two.submit(2, span).expect("it came back");
        two.reply();
    });
    let mut large = vec![7; (1 << 20) + 1];
    lend_mut(&mut large, |span| {
        assert_eq!(two.submit(3, span), Err(SubmitError::NoMemory), "nothing would come back");
        refuse(&two, 0);
        two.submit(3, span).expect("registered");
        two.reply();
    });
    // 64 MiB for all.
    let mut huge = vec![7; 40 << 20];
    lend_mut(&mut huge, |span| {
        let bulk = two.client.data_bytes_max();
        let span = span.part(0, span.len().min(bulk));
        assert_eq!(two.submit(4, &span), Err(SubmitError::NoMemory));
    });
    two.submit(5, &Buffer::new(100).expect("memory").post().span().clone()).expect("submitted");
    two.reply();
}

/// A server, and clients of it that are moved one by one.
struct Many {
    net: Arc<SimNet>,
    domain: Arc<Domain>,
    server: Node,
    clients: Vec<(Node, ConnId)>,
    listener: Box<dyn Listener>,
    /// Requests in the order in which they came.
    requests: Vec<RequestId>,
    /// What the server is told otherwise.
    told: Vec<Event>,
}

impl Many {
    fn new(clients: u32) -> Many {
        let net = SimNet::new(device((true, true)));
        let config = NodeConfig { receives_max: 256, ..NodeConfig::default() };
        let open = |node| Domain::open(&net.provider(node)).expect("a device");
        let (one, domain) = (open(1), open(1));
        let address = Address::parse("sim://1").expect("an address");
        let listener = one.device().listen(&address).expect("a listener");
        let connect = |number| {
            let mut node = Node::new(open(2 + number), config.clone()).expect("a node");
            let conn = node.connect(&address, b"", ConnOptions::default()).expect("a connection");
            (node, conn)
        };
        let clients = (0..clients).map(connect).collect();
        let server = Node::new(domain.clone(), config.clone()).expect("a node");
        let (requests, told) = (Vec::new(), Vec::new());
        Many { net, domain, server, clients, listener, requests, told }
    }

    /// Many steps, of these clients only. The replies that came to them.
    fn turns(&mut self, clients: &[usize]) -> usize {
        let mut replies = 0;
        for _ in 0..3000 {
            self.net.step();
            if let Some(incoming) = self.listener.poll_accept() {
                self.server.accept(incoming, b"", ConnOptions::default()).expect("accepted");
            }
            self.server.poll();
            while let Some(event) = self.server.next_event() {
                match event {
                    Event::Request { id, .. } => self.requests.push(id),
                    other => self.told.push(other),
                }
            }
            self.server.ring();
            for at in clients {
                let node = &mut self.clients[*at].0;
                node.poll();
                while let Some(event) = node.next_event() {
                    replies += usize::from(matches!(event, Event::Reply { .. }));
                    assert!(!matches!(event, Event::Disconnected { .. }), "{at}: {event:?}");
                }
                node.ring();
            }
        }
        replies
    }

    fn ask(&mut self, client: usize, tag: u32, into: SgList) {
        let (node, conn) = &mut self.clients[client];
        node.submit(*conn, tag, b"?", SgList::new(), into).expect("submitted");
    }

    fn refuse(&self, rate: u32) {
        let faults = self.net.faults();
        self.net.set_faults(FaultConfig { refuse_registration_per_million: rate, ..faults });
    }
}

#[test]
fn who_takes_no_replies_ends_nobody_else() {
    let mut many = Many::new(3);
    many.turns(&[0, 1, 2]);
    let into: Vec<_> = (0..8).map(|_| Buffer::new(4096).expect("memory").post()).collect();
    for (tag, into) in into.iter().enumerate() {
        // Those of the first two are not taken.
        many.ask(tag % 3, tag as u32, SgList::from_iter([into.span().clone()]));
        many.turns(&[tag % 3]);
    }
    assert_eq!(many.requests.len(), 8);
    many.refuse(1_000_000);
    let cache = Arena::in_segments(2 << 20, 2 << 20).expect("memory");
    assert!(many.domain.register(&cache.segment(0)).is_err());
    for (at, id) in many.requests.clone().into_iter().enumerate() {
        let data = SgList::from_iter([cache.span(at * 4096, 4096)]);
        many.server.reply(id, b"yes", data, at as u64);
    }
    assert_eq!(many.turns(&[2]), 2);
    assert_eq!(many.turns(&[0, 1]), 6);
    assert!(many.told.iter().all(|event| !matches!(event, Event::Disconnected { .. })));
}

#[test]
fn nobody_registers_what_the_domain_was_refused() {
    let mut many = Many::new(1);
    many.turns(&[0]);
    let cache = Arena::in_segments(4 << 20, 2 << 20).expect("memory");
    many.refuse(1_000_000);
    assert!(many.domain.register(&cache.segment(0)).is_err());
    many.refuse(0);
    let into = Buffer::new(4096).expect("memory").post();
    many.ask(0, 1, SgList::from_iter([into.span().clone()]));
    many.turns(&[0]);
    many.server.reply(many.requests[0], b"yes", SgList::from_iter([cache.span(0, 4096)]), 1);
    assert_eq!(many.turns(&[0]), 1);
    assert!(many.domain.forget(&cache.segment(0)));
    cache.discard(0, 2 << 20).expect("nobody holds it");
}

#[test]
fn memory_that_its_owner_dropped_is_let_go() {
    let mut many = Many::new(1);
    many.turns(&[0]);
    let into = Buffer::new(1 << 20).expect("memory").post();
    let mut scratch = Vec::new();
    for tag in 0..10 {
        many.ask(0, tag, SgList::from_iter([into.span().clone()]));
        many.turns(&[0]);
        let arena = Arena::new(1 << 20).expect("memory");
        scratch.push(Arc::downgrade(&arena));
        let id = many.requests.pop().expect("a request");
        many.server.reply(id, b"yes", SgList::from_iter([arena.span(0, 1 << 20)]), 1);
        assert_eq!(many.turns(&[0]), 1);
    }
    let alive = scratch.iter().filter(|arena| arena.strong_count() > 0).count();
    assert!(alive <= 1, "{alive} stay");
}
