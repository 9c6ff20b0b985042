//! Peers that lie: hand-made messages through a bare engine. Each lie ends the connection as the
//! peer's fault; nothing of it is delivered, and all memory comes back.

#![allow(clippy::unwrap_used)]

#[path = "hostile/raw.rs"]
mod raw;
#[path = "hostile/references.rs"]
mod references;

use std::sync::Arc;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{
    Address, Arena, Buffer, Device, Domain, Engine, Incoming, Listener, Opcode, Provider,
    QueuePair, QueuePairEvent, SgList, Span, Tag, WorkCompletion, WrId,
};
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};
use raw::*;

/// An attacker connected to a node.
struct Scene {
    net: Arc<SimNet>,
    /// Of the node, and of the attacker.
    domain: Arc<Domain>,
    device: Arc<dyn Device>,
    engine: Box<dyn Engine>,
    qp: QueuePair,
    memory: Arc<Arena>,
    completions: Vec<WorkCompletion>,
    node: Node,
    conn: ConnId,
    events: Vec<Event>,
    _listener: Box<dyn Listener>,
}

impl Scene {
    /// Flags of the attacker's set-up block: 1 tags, 2 reads, 4 writes, 8 references.
    fn new(flags: u8) -> Scene {
        Scene::of_user(flags, 0)
    }

    /// With a peer of this user.
    fn of_user(flags: u8, uid: u32) -> Scene {
        let mut sim = SimConfig::new(5);
        sim.peer_uid = uid;
        sim.attr.shared_memory = flags & 8 != 0;
        sim.attr.recoverable_access_fault |= flags & 8 != 0;
        let net = SimNet::new(sim);
        let domain = Domain::open(&net.provider(1)).unwrap();
        let address = Address::parse("sim://1").unwrap();
        let mut listener = domain.device().listen(&address).unwrap();
        let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
        let mut node = Node::new(domain.clone(), config).unwrap();
        let device = net.provider(2).open().unwrap();
        let mut engine = device.engine().unwrap();
        let qp = engine.connect(&address, &setup_block(flags)).unwrap();
        let incoming = next_request(&net, &mut *listener);
        let options = ConnOptions { credits: 8, push_bytes: 10_000, ..ConnOptions::default() };
        let conn = node.accept(incoming, b"", options).unwrap();
        let memory = Arena::new(1 << 20).unwrap();
        for i in 0..16 {
            engine.post_recv(WrId(i), sg(memory.span(i as usize * 4096, 4096))).unwrap();
        }
        let (completions, events) = (Vec::new(), Vec::new());
        let _listener = listener;
        let mut scene = Scene {
            net,
            domain,
            device,
            engine,
            qp,
            memory,
            completions,
            node,
            conn,
            events,
            _listener,
        };
        scene.settle();
        scene
    }

    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let stepped = self.net.step();
            self.engine.poll(&mut self.completions, 64);
            while self.engine.poll_event().is_some() {}
            self.node.poll();
            while let Some(event) = self.node.next_event() {
                self.events.push(event);
            }
            self.node.ring();
            idle = if stepped { 0 } else { idle + 1 };
        }
    }

    fn send(&mut self, raw: Raw, rest: &[u8]) {
        let mut message = raw.bytes();
        message.extend(rest);
        self.send_bytes(&message);
    }

    fn send_bytes(&mut self, message: &[u8]) {
        self.engine.post_send(self.qp, WrId(100), message, &mut SgList::new(), false).unwrap();
        self.engine.ring();
    }

    fn push(&mut self, tag: Tag, header: &[u8], len: usize) {
        let mut data = sg(self.memory.span(0, len));
        self.engine.post_tagged_send(self.qp, WrId(101), tag, header, &mut data, false).unwrap();
        self.engine.ring();
    }

    /// The node asks: 100 bytes of data (by `mode`, as the set-up allows), room for 5000.
    fn ask(&mut self, data: usize) -> u32 {
        let list = |len: usize| match len {
            0 => SgList::new(),
            _ => sg(Arena::new(len).unwrap().span(0, len)),
        };
        self.node.submit(self.conn, 3, b"question", list(data), list(5000)).unwrap();
        self.node.ring();
        self.settle();
        let got = self.completions.iter().find(|c| c.opcode == Opcode::Recv);
        let at = got.expect("the request arrived").wr_id.0 as usize;
        let mut first = [0; HEADER];
        self.memory.span(at * 4096, HEADER).copy_to(0, &mut first);
        assert_eq!(first[0], REQUEST);
        u32::from_le_bytes(first[4..8].try_into().unwrap())
    }

    fn requests(&self) -> usize {
        self.events.iter().filter(|e| matches!(e, Event::Request { .. })).count()
    }

    /// The lie was found, and the connection is gone without a trace.
    fn assert_found(&mut self, what: &str) {
        self.settle();
        let fault = self.events.iter().find_map(|event| match event {
            Event::Disconnected { reason, peer_fault, .. } => Some((reason.clone(), *peer_fault)),
            _ => None,
        });
        let (reason, peer_fault) = fault.unwrap_or_else(|| panic!("not found: {what}"));
        assert!(peer_fault, "{what}: {reason}");
        assert!(matches!(self.events.last(), Some(Event::Quiescent { .. })), "{what}");
        let replies = self.events.iter().filter(|e| matches!(e, Event::Reply { .. })).count();
        assert_eq!(replies, 0, "{what}");
        let stats = self.node.stats();
        assert_eq!((stats.connections, stats.requests_in_service), (0, 0), "{what}");
        assert_eq!(stats.counters.peer_faults, 1, "{what}");
    }

    fn assert_alive(&mut self) {
        self.settle();
        assert_eq!(self.node.stats().connections, 1);
        assert!(!self.events.iter().any(|e| matches!(e, Event::Disconnected { .. })));
    }
}

fn next_request(net: &SimNet, listener: &mut dyn Listener) -> Incoming {
    loop {
        if let Some(incoming) = listener.poll_accept() {
            return incoming;
        }
        assert!(net.step(), "no connection request");
    }
}

fn sg(span: Span) -> SgList {
    SgList::from_iter([span])
}

/// A lie: what it is, the attacker's set-up flags, and how it goes.
type Lie = (&'static str, u8, fn(&mut Scene));

fn expose(lies: &[Lie]) {
    for (what, flags, lie) in lies {
        let mut scene = Scene::new(*flags);
        lie(&mut scene);
        scene.assert_found(what);
    }
}

#[test]
fn well_formed_messages_are_taken() {
    let mut s = Scene::new(7);
    let request = Raw { header_len: 5, room: 100, ..Raw::new(REQUEST, slot(0)) };
    s.send(request, b"hello");
    s.settle();
    let Some(Event::Request { id, header, data_len: 0, reply_max: 100, .. }) = s.events.pop()
    else {
        panic!("no request: {:?}", s.events);
    };
    assert_eq!(header, b"hello");
    let pushed = Raw { mode: TAGGED, data_len: 3000, ..Raw::new(REQUEST, slot(1)) };
    s.send(pushed, b"");
    s.push(push_tag(slot(1)), b"", 3000);
    s.settle();
    let Some(Event::Request { id: second, data_len: 3000, .. }) = s.events.pop() else {
        panic!("no request: {:?}", s.events);
    };
    let pages = Buffer::new(3000).unwrap().post();
    s.node.fetch(second, sg(pages.span().clone()));
    s.assert_alive();
    assert!(matches!(s.events.pop(), Some(Event::Fetched { placed: Some(_), .. })));
    pages.take_back().unwrap();
    let wire = s.ask(0);
    let reply = Raw { header_len: 2, data_len: 40, mode: TAGGED, ..Raw::new(REPLY, wire) };
    let mut message = reply.bytes();
    message.extend(b"ok");
    s.push(reply_tag(wire), &message, 40);
    s.settle();
    let got = s
        .events
        .iter()
        .any(|e| matches!(e, Event::Reply { tag: 3, header, data_len: 40, .. } if header == b"ok"));
    assert!(got, "{:?}", s.events);
    s.assert_alive();
    // Room for both replies; the slots are free again.
    for (id, tag) in [(id, slot(0)), (second, slot(1))] {
        let header = Some(s.memory.span(1 << 19, 4096));
        let wr = WrId(200 + u64::from(tag));
        s.engine.post_tagged_recv(s.qp, wr, reply_tag(tag), header, &mut SgList::new()).unwrap();
        s.node.reply(id, b"", SgList::new(), 0);
        s.node.ring();
        s.settle();
        assert!(s.completions.iter().any(|c| c.wr_id == wr && c.header_len as usize == HEADER));
        s.send(Raw::new(REQUEST, tag + 1), b"");
    }
    s.assert_alive();
    assert_eq!(s.requests(), 2);
}

#[test]
fn malformed_messages() {
    expose(&[
        ("empty", 7, |s| s.send_bytes(b"")),
        ("shorter than a header", 7, |s| s.send_bytes(&Raw::new(REQUEST, 0).bytes()[..27])),
        ("unknown kind", 7, |s| s.send(Raw::new(9, 0), b"")),
        ("unknown mode", 7, |s| s.send(Raw { mode: 9, ..Raw::new(REQUEST, 0) }, b"")),
        ("unknown flag", 7, |s| s.send(Raw { flags: 64, ..Raw::new(REQUEST, 0) }, b"")),
        ("too many descriptors", 7, |s| s.send(Raw { reads: 17, ..Raw::new(REQUEST, 0) }, b"")),
        ("longer than it says", 7, |s| s.send(Raw::new(REQUEST, 0), b"x")),
        ("shorter than it says", 7, |s| {
            s.send(Raw { header_len: 600, ..Raw::new(REQUEST, 0) }, &[0; 599]);
        }),
        ("lengths that overflow", 7, |s| {
            s.send(Raw { mode: INLINE, data_len: u32::MAX, ..Raw::new(REQUEST, 0) }, &[0; 99]);
        }),
        ("a grant with more than a header", 7, |s| s.send(Raw::new(GRANT, 0), b"x")),
        ("credits with more than a header", 7, |s| s.send(Raw::new(CREDIT, 0), b"x")),
    ]);
}

#[test]
fn lying_requests() {
    expose(&[
        ("a slot it does not have", 7, |s| s.send(Raw::new(REQUEST, slot(9)), b"")),
        ("a slot in use", 7, |s| {
            s.send(Raw::new(REQUEST, slot(2)), b"");
            s.send(Raw::new(REQUEST, slot(2) | 1), b"");
        }),
        ("more than its credits", 7, |s| {
            for i in 0..10 {
                s.send(Raw::new(REQUEST, slot(i % 9) | u32::from(i)), b"");
            }
            s.settle();
            assert_eq!(s.requests(), 9);
        }),
        ("more than its byte credits", 7, |s| {
            let half = Raw { mode: TAGGED, data_len: 6000, ..Raw::new(REQUEST, 0) };
            s.send(half, b"");
            s.send(Raw { tag: slot(1), ..half }, b"");
        }),
        ("data without a mode", 7, |s| s.send(Raw { data_len: 5, ..Raw::new(REQUEST, 0) }, b"")),
        ("a mode without data", 7, |s| s.send(Raw { mode: TAGGED, ..Raw::new(REQUEST, 0) }, b"")),
        ("a reply's mode", 7, |s| {
            s.send(Raw { mode: WRITE, data_len: 5, ..Raw::new(REQUEST, 0) }, b"");
        }),
        ("tags that were not agreed", 6, |s| {
            let raw = Raw::new(REQUEST, 0);
            s.send(Raw { mode: PUSH_AFTER_GRANT, reply_mode: INLINE, data_len: 5, ..raw }, b"");
        }),
        ("a tagged reply that was not agreed", 6, |s| s.send(Raw::new(REQUEST, 0), b"")),
        ("an untagged reply where tags were agreed", 7, |s| {
            s.send(Raw { reply_mode: INLINE, ..Raw::new(REQUEST, 0) }, b"");
        }),
        ("reads that were not agreed", 1, |s| {
            let raw = Raw { mode: READ, reads: 1, data_len: 5, ..Raw::new(REQUEST, 0) };
            let mut descriptor = [0; 20];
            descriptor[16] = 5;
            s.send(raw, &descriptor);
        }),
        ("descriptors that do not cover the data", 6, |s| {
            let raw = Raw { mode: READ, reads: 1, data_len: 5, ..Raw::new(REQUEST, 0) };
            let mut descriptor = [0; 20];
            descriptor[16] = 4;
            s.send(Raw { reply_mode: INLINE, ..raw }, &descriptor);
        }),
        ("descriptors without use", 7, |s| {
            s.send(Raw { writes: 1, ..Raw::new(REQUEST, 0) }, &[0; 20]);
        }),
        ("more data than a device moves", 7, |s| {
            let raw = Raw { mode: PUSH_AFTER_GRANT, data_len: u32::MAX, ..Raw::new(REQUEST, 0) };
            s.send(raw, b"");
        }),
        ("more room than a device moves", 7, |s| {
            s.send(Raw { room: u32::MAX, ..Raw::new(REQUEST, 0) }, b"");
        }),
    ]);
}

/// Sends requests and has each answered, until the node ends the connection. Returns how many
/// were answered.
fn ask_without_end(s: &mut Scene, raw: Raw) -> usize {
    for round in 0..3000u32 {
        let tag = slot((round % 9) as u16) | (round / 9);
        s.send(Raw { tag, ..raw }, b"");
        s.settle();
        match s.events.pop() {
            Some(Event::Request { id, .. }) => s.node.reply(id, b"so", SgList::new(), 0),
            other => {
                s.events.extend(other);
                return round as usize;
            }
        }
    }
    panic!("thousands of answers are kept");
}

#[test]
fn a_peer_that_never_takes_its_replies() {
    let mut s = Scene::new(0);
    let answered = ask_without_end(&mut s, Raw { reply_mode: INLINE, ..Raw::new(REQUEST, 0) });
    // What the network and the send queue hold, and a window of 9.
    assert!(answered < 600, "{answered}");
    s.assert_found("replies that are not taken");
}

#[test]
fn announced_data_that_never_comes() {
    let mut s = Scene::new(7);
    let answered =
        ask_without_end(&mut s, Raw { mode: TAGGED, data_len: 1, ..Raw::new(REQUEST, 0) });
    assert_eq!(answered, 2 * 9 + 1);
    s.assert_found("data that does not come");
}

#[test]
fn lying_data() {
    let fetch_with: fn(&mut Scene, u8, u32) = |s, mode, data_len| {
        let reply_mode = if mode == PIECES { INLINE } else { TAGGED };
        s.send(Raw { mode, reply_mode, data_len, ..Raw::new(REQUEST, 0) }, b"");
        s.settle();
        let Some(Event::Request { id, .. }) = s.events.pop() else { panic!("no request") };
        let pages = Arena::new(data_len as usize).unwrap();
        s.node.fetch(id, sg(pages.span(0, data_len as usize)));
        s.settle();
    };
    // Fetches end in `Fetched { placed: None }`, after the connection is quiescent.
    let fetches: [Lie; 6] = [
        ("pushed too little", TAGGED, |s| s.push(push_tag(0), b"", 99)),
        ("pushed with a header", TAGGED, |s| s.push(push_tag(0), b"x", 99)),
        ("granted, pushed too little", PUSH_AFTER_GRANT, |s| s.push(push_tag(0), b"", 9999)),
        ("pieces beyond the grant", PIECES, |s| {
            s.send(Raw { data_len: 101, ..Raw::new(PIECE, 0) }, &[0; 101]);
        }),
        ("pieces at another place", PIECES, |s| {
            s.send(Raw { data_len: 9, room: 1, ..Raw::new(PIECE, 0) }, &[0; 9]);
        }),
        ("pieces of another length", PIECES, |s| {
            s.send(Raw { data_len: 9, ..Raw::new(PIECE, 0) }, &[0; 10]);
        }),
    ];
    for (what, mode, lie) in fetches {
        let mut s = Scene::new(if mode == PIECES { 0 } else { 7 });
        fetch_with(&mut s, mode, if mode == PUSH_AFTER_GRANT { 10_000 } else { 100 });
        lie(&mut s);
        s.assert_found(what);
        let told = s.events.iter().filter(|e| matches!(e, Event::Fetched { placed: None, .. }));
        assert_eq!(told.count(), 1, "{what}");
    }
    expose(&[
        ("a tag that nobody announced", 7, |s| s.push(push_tag(5), b"", 10)),
        ("a tag of no kind", 7, |s| s.push(Tag(5), b"", 10)),
        ("a push that was not granted", 7, |s| {
            let raw = Raw { mode: PUSH_AFTER_GRANT, data_len: 10, ..Raw::new(REQUEST, 0) };
            s.send(raw, b"");
            s.push(push_tag(0), b"", 10);
        }),
        ("a piece that nobody granted", 0, |s| {
            let raw = Raw { mode: PIECES, data_len: 9, ..Raw::new(REQUEST, 0) };
            s.send(Raw { reply_mode: INLINE, ..raw }, b"");
            s.send(Raw { data_len: 9, ..Raw::new(PIECE, 0) }, &[0; 9]);
        }),
        ("thrown-away data of another length", 7, |s| {
            s.send(Raw { mode: TAGGED, data_len: 100, ..Raw::new(REQUEST, 0) }, b"");
            s.settle();
            let Some(Event::Request { id, .. }) = s.events.pop() else { panic!("no request") };
            s.node.reply(id, b"", SgList::new(), 0);
            s.push(push_tag(0), b"", 99);
        }),
    ]);
}

#[test]
fn lying_replies() {
    expose(&[
        ("a reply to nothing", 7, |s| s.send(Raw::new(REPLY, 0), b"")),
        ("a tagged reply to nothing", 7, |s| s.push(reply_tag(0), &Raw::new(REPLY, 0).bytes(), 0)),
        ("a reply of another generation", 6, |s| {
            let wire = s.ask(0);
            s.send(Raw::new(REPLY, wire + 1), b"");
        }),
        ("a message where a tag was asked for", 7, |s| {
            let wire = s.ask(0);
            s.send(Raw::new(REPLY, wire), b"");
        }),
        ("a tagged reply without a header", 7, |s| {
            let wire = s.ask(0);
            s.push(reply_tag(wire), b"short", 0);
        }),
        ("a tagged reply that says another length", 7, |s| {
            let wire = s.ask(0);
            let raw = Raw { mode: TAGGED, data_len: 11, ..Raw::new(REPLY, wire) };
            s.push(reply_tag(wire), &raw.bytes(), 10);
        }),
        ("a tagged reply to another tag", 7, |s| {
            let wire = s.ask(0);
            s.push(reply_tag(wire), &Raw::new(REPLY, wire + 1).bytes(), 0);
        }),
        ("a request where a reply belongs", 7, |s| {
            let wire = s.ask(0);
            s.push(reply_tag(wire), &Raw::new(REQUEST, wire).bytes(), 0);
        }),
        ("more inline data than room", 6, |s| {
            let wire = s.ask(0);
            let raw = Raw { mode: INLINE, data_len: 5001, ..Raw::new(REPLY, wire) };
            s.send(raw, &[0; 900]);
        }),
        ("pieces that are missing", 0, |s| {
            let wire = s.ask(0);
            s.send(Raw { flags: 2, data_len: 9, ..Raw::new(PIECE, wire) }, &[0; 9]);
            s.send(Raw { mode: PIECES, data_len: 10, ..Raw::new(REPLY, wire) }, b"");
        }),
        ("a piece twice", 0, |s| {
            let wire = s.ask(0);
            s.send(Raw { flags: 2, data_len: 9, ..Raw::new(PIECE, wire) }, &[0; 9]);
            s.send(Raw { flags: 2, data_len: 9, ..Raw::new(PIECE, wire) }, &[0; 9]);
        }),
        ("a header of pieces without end", 0, |s| {
            let wire = s.ask(0);
            for i in 0..5 {
                let raw = Raw { flags: 6, data_len: 900, room: i * 900, ..Raw::new(PIECE, wire) };
                s.send(raw, &[0; 900]);
            }
        }),
        ("a write that was not asked for", 0, |s| {
            let wire = s.ask(0);
            s.send(Raw { mode: WRITE, data_len: 5, ..Raw::new(REPLY, wire) }, b"");
        }),
        ("a grant for nothing", 7, |s| s.send(Raw { data_len: 5, ..Raw::new(GRANT, 0) }, b"")),
        ("a grant for data that is pushed", 7, |s| {
            let wire = s.ask(1000);
            s.send(Raw { data_len: 1000, ..Raw::new(GRANT, wire) }, b"");
        }),
        ("a grant for more than there is", 0, |s| {
            let wire = s.ask(1000);
            s.send(Raw { data_len: 1001, ..Raw::new(GRANT, wire) }, b"");
        }),
        ("a grant twice", 0, |s| {
            let wire = s.ask(1000);
            s.send(Raw { data_len: 1000, ..Raw::new(GRANT, wire) }, b"");
            s.send(Raw { data_len: 1000, ..Raw::new(GRANT, wire) }, b"");
        }),
        ("credits given twice", 7, |s| s.send(Raw { credits: 10, ..Raw::new(CREDIT, 0) }, b"")),
        ("byte credits given twice", 7, |s| {
            s.send(Raw { push: (1 << 16) + 1, ..Raw::new(CREDIT, 0) }, b"");
        }),
    ]);
}

#[test]
fn an_acceptor_that_takes_the_tags_away_is_refused() {
    for (ours, answer, taken) in [(true, 7, true), (true, 6, false), (false, 6, true)] {
        let net = SimNet::new(SimConfig::new(5));
        let address = Address::parse("sim://1").unwrap();
        let server = net.provider(1).open().unwrap();
        let mut listener = server.listen(&address).unwrap();
        let mut server = server.engine().unwrap();
        let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
        let domain = Domain::open(&net.provider(2)).unwrap();
        let mut node = Node::new(domain, config).unwrap();
        let options =
            ConnOptions { credits: 4, use_tagged: ours, requests_max: 4, ..ConnOptions::default() };
        node.connect(&address, b"", options).unwrap();
        let incoming = next_request(&net, &mut *listener);
        server.accept(incoming, &setup_block(answer)).unwrap();
        let mut events = Vec::new();
        for _ in 0..5 {
            while net.step() {}
            node.poll();
            events.extend(std::iter::from_fn(|| node.next_event()));
        }
        if taken {
            assert!(matches!(&events[..], [Event::Connected { .. }]), "{events:?}");
            continue;
        }
        let [Event::Refused { refused: false, reason, .. }] = &events[..] else {
            panic!("{events:?}");
        };
        assert!(reason.contains("tags"), "{reason}");
        assert_eq!(node.stats().connections, 0);
    }
}

#[test]
fn a_stranger_is_turned_away() {
    let net = SimNet::new(SimConfig::new(5));
    let domain = Domain::open(&net.provider(1)).unwrap();
    let address = Address::parse("sim://1").unwrap();
    let mut listener = domain.device().listen(&address).unwrap();
    let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
    let mut node = Node::new(domain.clone(), config.clone()).unwrap();
    let stranger = Domain::open(&net.provider(2)).unwrap();
    let mut engine = stranger.engine().unwrap();
    engine.connect(&address, b"GET / HTTP/1.0").unwrap();
    let incoming = next_request(&net, &mut *listener);
    assert_eq!(dafs_message::incoming_private_data(&incoming), None);
    assert!(node.accept(incoming, b"", ConnOptions::default()).is_err());
    while net.step() {}
    assert!(matches!(engine.poll_event(), Some(QueuePairEvent::Refused { refused: false, .. })));
    // The other way round: the acceptor is a stranger.
    let mut node = Node::new(stranger, config).unwrap();
    let conn = node.connect(&address, b"", ConnOptions::default()).unwrap();
    let incoming = next_request(&net, &mut *listener);
    let mut server = domain.engine().unwrap();
    server.accept(incoming, b"HTTP/1.0 400").unwrap();
    let mut events = Vec::new();
    for _ in 0..5 {
        while net.step() {}
        node.poll();
        events.extend(std::iter::from_fn(|| node.next_event()));
    }
    assert!(
        matches!(&events[..], [Event::Refused { conn: c, refused: false, .. }] if *c == conn),
        "{events:?}"
    );
    assert_eq!(node.stats().connections, 0);
}
