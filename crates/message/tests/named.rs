//! Named reads are answered in their order, whatever becomes of each.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use dafs_fabric::sim::{FaultConfig, SimConfig, SimNet};
use dafs_fabric::{Address, Arena, Domain, NamedAnswer, SgList};
use dafs_message::{ConnOptions, Event, NamedReads, Node, NodeConfig};

const BYTES: usize = 4096;
const READS: u32 = 9;

/// An answer waits for room in the queue while a read behind it is refused.
#[test]
fn a_refusal_waits_for_the_answers_before_it() {
    let net = SimNet::new(SimConfig::new(1));
    let address = Address::parse("sim://1").unwrap();
    let [here, there] = [1, 2].map(|node| Domain::open(&net.provider(node)).unwrap());
    let mut listener = here.listen(&address).unwrap();
    let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
    let mut server = Node::new(here, config.clone()).unwrap();
    let mut client = Node::new(there, config).unwrap();
    server.serve_named();
    let options = ConnOptions { credits: 4, requests_max: 4, ..ConnOptions::default() };
    let conn = client.connect(&address, b"", options).unwrap();
    let memory = Arena::new(BYTES * (READS as usize + 1)).unwrap();
    let (mut waiting, mut expected, mut ended) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let (mut reads, mut rounds) = (NamedReads::default(), 0);
    while ended.len() < READS as usize {
        rounds += 1;
        assert!(rounds < 100_000, "only {ended:?} have ended");
        net.step();
        if let Some(incoming) = listener.poll_accept() {
            server.accept(incoming, b"", options).unwrap();
        }
        client.poll();
        while let Some(event) = client.next_event() {
            match event {
                Event::Connected { .. } => {
                    for tag in 0..READS {
                        let into = memory.span(BYTES * tag as usize, BYTES);
                        client
                            .read_named(conn, tag, (b"name", tag.into()), (&into, BYTES))
                            .unwrap();
                    }
                    client.ring();
                    // From now on one answer at a time has room.
                    let faults = FaultConfig { queue_full_per_million: 1_000_000, ..net.faults() };
                    net.set_faults(faults);
                }
                Event::NamedRead { tag, bytes, .. } => {
                    assert!(ended.insert(tag, bytes).is_none());
                }
                Event::Disconnected { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        server.poll();
        while server.next_event().is_some() {}
        while server.take_named(&mut reads) {
            let asks = reads.asks().iter();
            waiting.extend(asks.map(|ask| (server.asker(&reads, ask).unwrap(), ask.clone())));
        }
        if waiting.len() == READS as usize {
            let mut answers = Vec::new();
            for (number, (conn, ask)) in waiting.drain(..).enumerate() {
                let tag = ask.offset as u32;
                expected.insert(tag, (number % 3 != 2).then_some(100));
                if number % 3 == 2 {
                    // Two answers, and what is refused behind them.
                    server.answer_named(conn, &mut answers, None);
                    server.refuse_named(conn, ask.id);
                } else {
                    let data = SgList::from_iter([memory.span(BYTES * READS as usize, 100)]);
                    answers.push(NamedAnswer { id: ask.id, data });
                }
            }
        }
        server.ring();
    }
    assert_eq!(ended, expected);
}
