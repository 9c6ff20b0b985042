//! Credits, places and receives: what is granted, used up, and comes back.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use dafs_fabric::sim::{FaultConfig, SimConfig, SimNet};
use dafs_fabric::{Address, Buffer, ConnectError, Domain, Listener, Provider, SgList};
use dafs_message::{
    ConnId, ConnOptions, Event, Node, NodeConfig, NodeError, RequestId, SubmitError,
};

struct Two {
    net: Arc<SimNet>,
    /// The client's.
    listener: Box<dyn Listener>,
    server: Node,
    client: Node,
    conn: ConnId,
    requests: Vec<RequestId>,
    replies: usize,
    events: Vec<Event>,
}

fn address() -> Address {
    Address::parse("sim://1").unwrap()
}

impl Two {
    fn new(config: NodeConfig, options: ConnOptions) -> Two {
        Two::on(SimConfig::new(3), config, options)
    }

    fn on(sim: SimConfig, config: NodeConfig, options: ConnOptions) -> Two {
        let net = SimNet::new(sim);
        let make = |domain: &Arc<Domain>| Node::new(domain.clone(), config.clone()).unwrap();
        let domain = Domain::open(&net.provider(2)).unwrap();
        let server = make(&Domain::open(&net.provider(1)).unwrap());
        let mut client = make(&domain);
        let listener = net.provider(1).open().unwrap().listen(&address()).unwrap();
        let conn = client.connect(&address(), b"", options).unwrap();
        let (requests, events) = (Vec::new(), Vec::new());
        let replies = 0;
        let mut two = Two { net, listener, server, client, conn, requests, replies, events };
        two.settle(options);
        assert!(two.client.request_header_max(conn) > 900);
        two
    }

    fn settle(&mut self, options: ConnOptions) {
        let mut idle = 0;
        while idle < 3 {
            let stepped = self.net.step();
            if let Some(incoming) = self.listener.poll_accept() {
                let _ = self.server.accept(incoming, b"", options);
            }
            for node in [&mut self.server, &mut self.client] {
                node.poll();
                while let Some(event) = node.next_event() {
                    match event {
                        Event::Request { id, .. } => self.requests.push(id),
                        Event::Reply { .. } => self.replies += 1,
                        other => self.events.push(other),
                    }
                }
                node.ring();
            }
            idle = if stepped { 0 } else { idle + 1 };
        }
    }

    fn ask(&mut self, tag: u32) -> Result<(), SubmitError> {
        self.client.submit(self.conn, tag, b"?", SgList::new(), SgList::new())
    }
}

fn config() -> NodeConfig {
    NodeConfig { receives_max: 64, ..NodeConfig::default() }
}

#[test]
fn credits_run_out_and_come_back() {
    let options = ConnOptions { credits: 4, requests_max: 100, ..ConnOptions::default() };
    let mut two = Two::new(config(), options);
    for round in 0..5 {
        for tag in 0..4 {
            assert!(two.client.can_submit(two.conn));
            two.ask(tag).unwrap();
        }
        assert!(!two.client.can_submit(two.conn));
        assert_eq!(two.ask(9), Err(SubmitError::NoCredit));
        // One is left for what keeps the connection going.
        let (none, tag) = (SgList::new, 10);
        two.client.submit_control(two.conn, tag, b"!", none(), none()).unwrap();
        let more = two.client.submit_control(two.conn, 11, b"!", none(), none());
        assert_eq!(more, Err(SubmitError::NoCredit));
        two.settle(options);
        assert_eq!(two.requests.len(), 5, "round {round}");
        assert_eq!(two.ask(9), Err(SubmitError::NoCredit));
        for id in std::mem::take(&mut two.requests) {
            two.server.reply(id, b"", SgList::new(), 0);
        }
        two.settle(options);
        assert_eq!(two.replies, 5 * (round + 1));
    }
    assert_eq!(two.client.stats().counters.credit_stalls, 15);
}

#[test]
fn our_own_limit_is_kept() {
    let options = ConnOptions { credits: 16, requests_max: 2, ..ConnOptions::default() };
    let mut two = Two::new(config(), options);
    two.ask(1).unwrap();
    assert_eq!(two.ask(1), Err(SubmitError::TagInUse));
    two.ask(2).unwrap();
    assert_eq!(two.ask(3), Err(SubmitError::QueueFull));
    let large = vec![0; 1024];
    let none = SgList::new;
    assert_eq!(two.client.submit(two.conn, 4, &large, none(), none()), Err(SubmitError::TooLarge));
    two.client.disconnect(two.conn, "done");
    assert_eq!(two.ask(5), Err(SubmitError::NotConnected));
}

#[test]
fn byte_credits_come_back_without_a_reply() {
    let options = ConnOptions { credits: 4, push_bytes: 5000, ..ConnOptions::default() };
    let mut two = Two::new(config(), options);
    let buffer = Buffer::new(5000).unwrap().post();
    let submit = |two: &mut Two, tag| {
        let data = SgList::from_iter([buffer.span().clone()]);
        two.client.submit(two.conn, tag, b"?", data, SgList::new()).unwrap();
        two.client.ring();
    };
    submit(&mut two, 1);
    submit(&mut two, 2);
    two.settle(options);
    let counters = two.client.stats().counters;
    assert_eq!((counters.data_pushed, counters.data_granted, counters.push_stalls), (1, 1, 1));
    // The first is fetched, not replied: the stalled client hears of the credits.
    let pages = Buffer::new(5000).unwrap().post();
    let first = two.requests[0];
    two.server.fetch(first, SgList::from_iter([pages.span().clone()]));
    two.settle(options);
    submit(&mut two, 3);
    assert_eq!(two.client.stats().counters.data_pushed, 2);
}

#[test]
fn a_request_that_finds_no_memory_costs_no_byte_credits() {
    // More than a node has in reserve.
    const LARGE: usize = (1 << 20) + 1;
    let options = ConnOptions { credits: 4, push_bytes: 2 << 20, ..ConnOptions::default() };
    let mut sim = SimConfig::new(3);
    sim.attr.local_registration = true;
    let mut two = Two::on(sim, config(), options);
    let before = two.net.faults();
    let buffer = Buffer::new(LARGE).unwrap().post();
    let submit = |two: &mut Two| {
        let data = SgList::from_iter([buffer.span().clone()]);
        two.client.submit(two.conn, 1, b"?", data, SgList::new())
    };
    two.net.set_faults(FaultConfig { refuse_registration_per_million: 1_000_000, ..before });
    assert_eq!(submit(&mut two), Err(SubmitError::NoMemory));
    assert_eq!(submit(&mut two), Err(SubmitError::NoMemory));
    two.net.set_faults(before);
    submit(&mut two).unwrap();
    two.settle(options);
    let counters = two.client.stats().counters;
    assert_eq!((counters.data_pushed, counters.data_granted), (1, 0));
}

#[test]
fn a_device_of_one_gather_entry_is_refused() {
    let mut sim = SimConfig::new(3);
    (sim.attr.sge_max, sim.attr.tag_match) = (1, false);
    let domain = Domain::open(&SimNet::new(sim).provider(1)).unwrap();
    let node = Node::new(domain, NodeConfig::default());
    assert!(matches!(node, Err(NodeError::Config(_))));
}

#[test]
fn receives_are_promised_and_given_back() {
    let options = ConnOptions { credits: 8, requests_max: 0, ..ConnOptions::default() };
    let mut two = Two::new(config(), options);
    let one = two.server.stats();
    // Eight requests, one for control, one for messages without credit.
    assert_eq!((one.receives_promised, one.receives_posted), (10, 18));
    let domain = Domain::open(&two.net.provider(3)).unwrap();
    let many = NodeConfig { receives_max: 512, ..NodeConfig::default() };
    let mut third = Node::new(domain, many).unwrap();
    let conns: Vec<ConnId> =
        (0..10).map(|_| third.connect(&address(), b"", options).unwrap()).collect();
    for _ in 0..200 {
        two.settle(options);
        third.poll();
    }
    // 56 of 64 can be promised: five whole connections, and one with fewer credits.
    let stats = two.server.stats();
    assert_eq!((stats.connections, stats.receives_promised), (6, 56));
    assert!(stats.receives_posted == 64);
    let (mut connected, mut refused) = (0, 0);
    while let Some(event) = third.next_event() {
        match event {
            Event::Connected { .. } => connected += 1,
            Event::Refused { refused: false, .. } => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((connected, refused), (5, 5));
    conns.iter().for_each(|conn| third.disconnect(*conn, "done"));
    for _ in 0..200 {
        two.settle(options);
        third.poll();
    }
    assert_eq!(two.server.stats().receives_promised, 10);
    // What was posted goes as it is used.
    for tag in 0..60 {
        two.ask(tag).unwrap();
        two.settle(options);
        let id = two.requests.pop().unwrap();
        two.server.reply(id, b"", SgList::new(), 0);
        two.settle(options);
    }
    assert_eq!(two.server.stats().receives_posted, 18);
}

#[test]
fn an_idle_connection_costs_little() {
    let config = NodeConfig { receives_max: 256, ..NodeConfig::default() };
    let header_bytes = config.header_bytes;
    let mut two = Two::new(config, ConnOptions::default());
    let before = two.server.stats().receives_posted;
    two.client.connect(&address(), b"", ConnOptions::default()).unwrap();
    two.settle(ConnOptions::default());
    let posted = two.server.stats().receives_posted - before;
    assert!(posted > 32 && posted * header_bytes <= 40 << 10, "{posted}");
}

#[test]
fn stale_names_do_no_harm() {
    let options = ConnOptions::default();
    let mut two = Two::new(config(), options);
    two.ask(1).unwrap();
    two.settle(options);
    let id = two.requests[0];
    two.server.disconnect(id.conn(), "done");
    two.settle(options);
    two.events.clear();
    let pages = Buffer::new(100).unwrap().post();
    two.server.fetch(id, SgList::from_iter([pages.span().clone()]));
    two.server.reply(id, b"", SgList::from_iter([pages.span().clone()]), 77);
    two.client.abandon(two.conn, 1);
    two.settle(options);
    let told: Vec<String> = two.events.iter().map(|event| format!("{event:?}")).collect();
    assert!(
        matches!(
            two.events[..],
            [Event::ReplySent { token: 77 }, Event::Fetched { placed: None, .. },]
        ),
        "{told:?}"
    );
    pages.take_back().unwrap();
}

#[test]
fn private_data_is_what_the_device_carries_beside_the_set_up() {
    let mut sim = SimConfig::new(3);
    sim.attr.private_data_bytes_max = 56;
    let options = ConnOptions::default();
    let mut two = Two::on(sim, config(), options);
    let room = two.client.private_data_max();
    assert_eq!(room, 36);
    let data = [7; 37];
    two.client.connect(&address(), &data[..room], options).unwrap();
    let refused = two.client.connect(&address(), &data, options);
    let told = matches!(refused, Err(ConnectError::PrivateData { bytes: 37, bytes_max: 36 }));
    assert!(told, "{refused:?}");
}

#[test]
fn data_that_nobody_wants_lands_in_registered_memory() {
    let options = ConnOptions { credits: 4, push_bytes: 5000, ..ConnOptions::default() };
    let mut sim = SimConfig::new(3);
    sim.attr.local_registration = true;
    let mut two = Two::on(sim, config(), options);
    let buffer = Buffer::new(3000).unwrap().post();
    let data = SgList::from_iter([buffer.span().clone()]);
    two.client.submit(two.conn, 1, b"?", data, SgList::new()).unwrap();
    two.client.ring();
    two.settle(options);
    // Not fetched: it is thrown away.
    two.server.reply(two.requests[0], b"no", SgList::new(), 0);
    two.settle(options);
    assert_eq!(two.server.stats().counters.discarded_bytes, 3000);
    let broken = two.events.iter().find(|event| !matches!(event, Event::Connected { .. }));
    assert!(two.replies == 1 && broken.is_none(), "{broken:?}");
}

#[test]
fn receives_that_a_device_pinned_are_not_given_back() {
    let options = ConnOptions { credits: 8, ..ConnOptions::default() };
    let mut sim = SimConfig::new(3);
    (sim.attr.local_registration, sim.attr.registration_pins) = (true, true);
    let areas = NodeConfig { data_area_bytes: Some(4096), ..config() };
    let mut two = Two::on(sim, areas, options);
    let second = two.client.connect(&address(), b"", options).unwrap();
    two.settle(options);
    let most = two.server.stats().receives_posted;
    two.client.disconnect(second, "done");
    two.settle(options);
    for tag in 0..60 {
        two.ask(tag).unwrap();
        two.settle(options);
        let id = two.requests.pop().unwrap();
        two.server.reply(id, b"", SgList::new(), 0);
        two.settle(options);
    }
    assert!(two.server.stats().receives_posted < most, "fewer are wanted");
    assert_eq!(two.net.violations(), [""; 0]);
}
