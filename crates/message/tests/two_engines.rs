//! A node with two engines of TCP: what the second one has is neither slept through nor passed over.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use dafs_fabric::{Address, Domain, Incoming, Listener, Provider, SgList};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};

fn options() -> ConnOptions {
    ConnOptions { credits: 4, requests_max: 4, ..ConnOptions::default() }
}

struct World {
    server: Node,
    client: Node,
    listener: Box<dyn Listener>,
}

impl World {
    fn new() -> World {
        let open = || TcpProvider::new().open().unwrap();
        let (here, there) = (Domain::of(vec![open(), open()]), Domain::of(vec![open()]));
        let config = NodeConfig { receives_max: 256, ..NodeConfig::default() };
        let listener = here.listen(&Address::parse("tcp://127.0.0.1:0").unwrap()).unwrap();
        let server = Node::new(here, config.clone()).unwrap();
        World { server, client: Node::new(there, config).unwrap(), listener }
    }

    /// A connection by a device of the server: the client's end, and the server's.
    fn link(&mut self, device: usize) -> (ConnId, ConnId) {
        let conn = self.client.connect(&self.listener.address(), b"", options()).unwrap();
        let theirs = loop {
            self.client.poll();
            if let Some(incoming) = self.listener.poll_accept() {
                let incoming = Incoming { device, ..incoming };
                break self.server.accept(incoming, b"", options()).unwrap();
            }
        };
        loop {
            self.client.poll();
            self.server.poll();
            self.server.ring();
            if let Some(Event::Connected { .. }) = self.client.next_event() {
                return (conn, theirs);
            }
        }
    }

    /// A request that lies in the server's socket when this returns.
    fn say(&mut self, conn: ConnId) {
        let sent = self.client.conn_stats(conn).unwrap().requests_sent;
        self.client.submit(conn, 1, b"?", SgList::new(), SgList::new()).unwrap();
        self.client.ring();
        self.client.poll();
        assert_eq!(self.client.conn_stats(conn).unwrap().requests_sent, sent + 1);
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Requests that came.
    fn look(&mut self) -> usize {
        self.server.poll();
        let events = std::iter::from_fn(|| self.server.next_event());
        events.filter(|event| matches!(event, Event::Request { .. })).count()
    }
}

#[test]
fn a_request_that_one_pass_left_ends_the_sleep() {
    for connections in [1, 5] {
        let mut world = World::new();
        for _ in 0..connections {
            world.link(0);
        }
        let (first, second) = (world.link(1).0, world.link(1).0);
        while world.look() > 0 || !world.server.arm() {}
        world.say(first);
        while world.look() == 0 {}
        // A pass looks at the one that was busy, and may leave the other for the waiter.
        world.say(second);
        let start = Instant::now();
        while world.look() == 0 {
            if world.server.arm() {
                world.server.waiter().wait(Some(Duration::from_secs(10)));
            }
        }
        assert!(start.elapsed() < Duration::from_secs(5), "slept over a request");
    }
}

#[test]
fn rounds_are_those_of_all_engines() {
    let mut world = World::new();
    let slow: Vec<ConnId> = (0..3).map(|_| world.link(0).1).collect();
    // The first engine looks at all of its own once in some passes; the second, which has none, each time.
    for _ in 0..4000 {
        world.look();
    }
    for conn in slow {
        world.server.disconnect(conn, "enough");
    }
    // Now it is the other way round.
    let (first, second) = (world.link(1).0, world.link(1).0);
    for _ in 0..20 {
        world.look();
    }
    world.say(first);
    while world.look() == 0 {}
    world.say(second);
    let rounds = world.server.rounds();
    let mut came = 0;
    while world.server.rounds() < rounds + 2 {
        came += world.look();
    }
    assert_eq!(came, 1, "what had come at {rounds} is told at {}", world.server.rounds());
}
