//! A node with two networks, of different kinds: each connection goes by its own, with the same memory.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{
    Address, Arena, ConnectError, Domain, Listener, Provider, Providers, SgList, join_waiters,
};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};

const BYTES: usize = 50_000;

struct World {
    nets: [Arc<SimNet>; 2],
    listeners: Vec<Box<dyn Listener>>,
    server: Node,
    client: Node,
    /// The server's, which answers with it.
    memory: Arc<Arena>,
    connected: Vec<ConnId>,
    /// Bytes of replies, by connection.
    replies: HashMap<ConnId, u32>,
    ended: Vec<ConnId>,
}

fn options() -> ConnOptions {
    ConnOptions { credits: 4, requests_max: 4, ..ConnOptions::default() }
}

fn address(scheme: &str) -> Address {
    Address { scheme: scheme.into(), target: "1".into() }
}

fn filled() -> Arc<Arena> {
    let memory = Arena::new(BYTES).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    memory.span(0, BYTES).copy_from(0, &bytes);
    memory
}

impl World {
    fn new() -> World {
        let mut hard = SimConfig::of_verbs(2);
        hard.attr.schemes = &["hard"];
        let nets = [SimNet::new(SimConfig::new(1)), SimNet::new(hard)];
        let providers = |node| {
            let of = |net: &Arc<SimNet>| Arc::new(net.provider(node)) as Arc<dyn Provider>;
            Providers::from(nets.iter().map(of).collect::<Vec<_>>())
        };
        let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
        let [here, there] = [1, 2].map(|node| Domain::open_all(&providers(node)).unwrap());
        let listeners = ["sim", "hard"].map(|name| here.listen(&address(name)).unwrap()).into();
        let memory = filled();
        // Only one of the two must know it.
        here.register(&memory.span(0, BYTES)).unwrap();
        World {
            nets,
            listeners,
            server: Node::new(here, config.clone()).unwrap(),
            client: Node::new(there, config).unwrap(),
            memory,
            connected: Vec::new(),
            replies: HashMap::new(),
            ended: Vec::new(),
        }
    }

    fn connect(&mut self, scheme: &str) -> ConnId {
        let conn = self.client.connect(&address(scheme), b"hello", options()).unwrap();
        self.settle();
        assert!(self.connected.contains(&conn), "{scheme}");
        conn
    }

    fn ask(&mut self, conn: ConnId, into: &Arc<Arena>) {
        let room = SgList::from_iter([into.span(0, BYTES)]);
        self.client.submit(conn, 1, b"?", SgList::new(), room).unwrap();
        self.client.ring();
    }

    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let stepped = self.nets.iter().any(|net| net.step());
            for listener in &mut self.listeners {
                if let Some(incoming) = listener.poll_accept() {
                    self.server.accept(incoming, b"", options()).unwrap();
                }
            }
            self.server.poll();
            while let Some(event) = self.server.next_event() {
                if let Event::Request { id, header, .. } = event {
                    let data = SgList::from_iter([self.memory.span(0, BYTES)]);
                    self.server.reply(id, b"!", data, 7);
                    self.server.recycle(header);
                }
            }
            self.server.ring();
            self.client.poll();
            while let Some(event) = self.client.next_event() {
                match event {
                    Event::Connected { conn, .. } => self.connected.push(conn),
                    Event::Reply { conn, data_len, .. } => {
                        self.replies.insert(conn, data_len);
                    }
                    Event::Quiescent { conn } => self.ended.push(conn),
                    _ => {}
                }
            }
            self.client.ring();
            idle = if stepped { 0 } else { idle + 1 };
        }
    }
}

#[test]
fn each_connection_goes_by_its_network() {
    let mut world = World::new();
    let (soft, hard) = (world.connect("sim"), world.connect("hard"));
    assert_ne!(soft, hard);
    let rooms = [soft, hard].map(|_| Arena::new(BYTES).unwrap());
    for (conn, room) in [soft, hard].into_iter().zip(&rooms) {
        world.ask(conn, room);
    }
    world.settle();
    for (conn, room) in [soft, hard].into_iter().zip(&rooms) {
        assert_eq!(world.replies.remove(&conn), Some(BYTES as u32));
        let mut got = vec![0; BYTES];
        room.span(0, BYTES).copy_to(0, &mut got);
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    }
    let counters = |conn| world.client.conn_stats(conn).unwrap();
    assert_eq!((counters(soft).requests_sent, counters(hard).requests_sent), (1, 1));
    let server = world.server.stats();
    assert_eq!((server.connections, server.counters.replies_tagged), (2, 1));
    // The least of both, so that what is said once holds over any network.
    assert_eq!((world.client.segments_max(), world.client.private_data_max()), (2, 36));
    assert!(world.nets[1].violations().is_empty());
    // One that breaks leaves the other alone.
    world.nets[1].break_connections(2);
    world.settle();
    assert_eq!(world.ended, [hard]);
    world.ask(soft, &rooms[0]);
    world.settle();
    assert_eq!(world.replies.remove(&soft), Some(BYTES as u32));
    let again = world.connect("hard");
    assert!(again != hard && world.client.conn_stats(hard).is_none());
    world.ask(again, &rooms[1]);
    world.settle();
    assert_eq!(world.replies.remove(&again), Some(BYTES as u32));
}

#[test]
fn an_address_of_no_network_is_an_error() {
    let mut world = World::new();
    let error = world.client.connect(&address("third"), b"", options()).unwrap_err();
    assert!(matches!(&error, ConnectError::Address { .. }), "{error}");
    assert!(error.to_string().contains("no network for 'third'"), "{error}");
}

fn tcp() -> (Arc<Domain>, Node) {
    let domain = Domain::open(&TcpProvider::new()).unwrap();
    let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
    (domain.clone(), Node::new(domain, config).unwrap())
}

/// A sleep for two engines ends when either has work, or when it is woken.
#[test]
fn one_sleep_is_for_all_networks() {
    let (mut one, mut other) = (tcp(), tcp());
    let waiter = join_waiters(vec![one.1.waiter(), other.1.waiter()]);
    let (domain, mut peer) = tcp();
    for (_, node) in [&mut one, &mut other] {
        let mut listener = domain.listen(&Address::parse("tcp://127.0.0.1:0").unwrap()).unwrap();
        let conn = node.connect(&listener.address(), b"", options()).unwrap();
        let theirs = loop {
            node.poll();
            if let Some(incoming) = listener.poll_accept() {
                break peer.accept(incoming, b"", options()).unwrap();
            }
        };
        until_armed(node, |event| matches!(event, Event::Connected { .. }));
        // Each speaks while the sleeper sleeps, and he hears of it.
        let sleeper = waiter.clone();
        let thread = std::thread::spawn(move || sleeper.wait(None));
        peer.submit(theirs, 1, b"?", SgList::new(), SgList::new()).unwrap();
        peer.ring();
        thread.join().unwrap();
        until_armed(node, |event| matches!(event, Event::Request { .. }));
        node.disconnect(conn, "enough");
        while node.stats().connections > 0 {
            node.poll();
            while node.next_event().is_some() {}
        }
        while peer.stats().connections > 0 {
            peer.poll();
            while peer.next_event().is_some() {}
        }
    }
    waiter.wake();
    waiter.wait(None);
    waiter.wait(Some(Duration::from_millis(1)));
}

fn until_armed(node: &mut Node, is: impl Fn(&Event) -> bool) {
    let mut seen = false;
    loop {
        node.poll();
        while let Some(event) = node.next_event() {
            seen |= is(&event);
        }
        if seen && node.arm() {
            return;
        }
        std::thread::yield_now();
    }
}
