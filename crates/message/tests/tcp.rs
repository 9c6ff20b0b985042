//! Two nodes over real sockets: the modes that tcp takes, without copies, and few system calls.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use dafs_fabric::{Address, Buffer, Domain, Listener, PostedBuffer, QueuePairEvent, SgList, WrId};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};

struct Two {
    server: Node,
    client: Node,
    conn: ConnId,
    _listener: Box<dyn Listener>,
}

fn node(domain: &Arc<Domain>) -> Node {
    let config = NodeConfig { receives_max: 256, ..NodeConfig::default() };
    Node::new(domain.clone(), config).unwrap()
}

fn connect(options: ConnOptions) -> Two {
    let domain = Domain::open(&TcpProvider::new()).unwrap();
    let address = Address::parse("tcp://127.0.0.1:0").unwrap();
    let mut listener = domain.device().listen(&address).unwrap();
    let (mut server, mut client) = (node(&domain), node(&domain));
    let conn = client.connect(&listener.address(), b"me", options).unwrap();
    loop {
        if let Some(incoming) = listener.poll_accept() {
            server.accept(incoming, b"you", options).unwrap();
        }
        server.poll();
        client.poll();
        match client.next_event() {
            Some(Event::Connected { private_data, .. }) => {
                assert_eq!(private_data, b"you");
                return Two { server, client, conn, _listener: listener };
            }
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
}

fn filled(len: usize, seed: usize) -> PostedBuffer {
    let mut buffer = Buffer::new(len).unwrap();
    buffer.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 251 + seed) as u8);
    buffer.post()
}

fn list(buffer: &PostedBuffer) -> SgList {
    match buffer.span().len() {
        0 => SgList::new(),
        _ => SgList::from_iter([buffer.span().clone()]),
    }
}

/// Asks once, with `data_len` bytes there and `reply_len` bytes back.
fn exchange(two: &mut Two, tag: u32, data_len: usize, reply_len: usize) {
    let (data, answer) = (filled(data_len, 1), filled(reply_len, 2));
    let pages = Buffer::new(data_len).unwrap().post();
    let room = Buffer::new(reply_len).unwrap().post();
    two.client.submit(two.conn, tag, b"question", list(&data), list(&room)).unwrap();
    two.client.ring();
    let (mut replied, mut sent) = (false, reply_len == 0);
    while !(replied && sent) {
        two.server.poll();
        while let Some(event) = two.server.next_event() {
            match event {
                Event::Request { id, header, .. } => {
                    assert_eq!(header, b"question");
                    two.server.recycle(header);
                    two.server.fetch(id, list(&pages));
                }
                Event::Fetched { id, placed: Some(_) } => {
                    two.server.reply(id, b"answer", list(&answer), 9);
                }
                Event::ReplySent { token: 9 } => sent = true,
                other => panic!("{other:?}"),
            }
        }
        two.server.ring();
        two.client.poll();
        while let Some(event) = two.client.next_event() {
            match event {
                Event::Reply { tag: got, header, data_len, .. } => {
                    assert_eq!(
                        (got, &header[..], data_len as usize),
                        (tag, &b"answer"[..], reply_len)
                    );
                    two.client.recycle(header);
                    replied = true;
                }
                other => panic!("{other:?}"),
            }
        }
        two.client.ring();
    }
    let [data, answer, pages, room] =
        [data, answer, pages, room].map(|buffer| buffer.take_back().expect("no span is left"));
    assert!(data[..] == pages[..] && answer[..] == room[..], "{data_len}, {reply_len}");
}

#[test]
fn all_sizes_in_all_modes() {
    let default = ConnOptions::default();
    for options in [
        default,
        ConnOptions { push_bytes: 0, ..default },
        ConnOptions { use_tagged: false, ..default },
        ConnOptions { use_tagged: false, use_rdma_read: false, ..default },
    ] {
        let mut two = connect(options);
        let sizes = [0, 1, 512, 513, 4096, 4097, 65_536, 100_001, 1 << 20, (4 << 20) - 1];
        for (i, size) in sizes.into_iter().enumerate() {
            exchange(&mut two, i as u32, size, sizes[sizes.len() - 1 - i]);
        }
        let counters = two.client.stats().counters;
        let pushed = counters.data_pushed > 0;
        assert_eq!(pushed, options.use_tagged && options.push_bytes > 0, "{options:?}");
        assert_eq!(counters.data_granted > 0, options.use_tagged, "{options:?}");
        assert_eq!(counters.data_read > 0, !options.use_tagged && options.use_rdma_read);
        assert_eq!(counters.data_pieces > 0, !options.use_tagged && !options.use_rdma_read);
    }
}

#[test]
fn large_data_is_not_copied_or_registered() {
    let mut two = connect(ConnOptions::default());
    for tag in 0..20 {
        exchange(&mut two, tag, 600 << 10, 1 << 20);
    }
    for stats in [two.server.stats(), two.client.stats()] {
        assert_eq!((stats.counters.copied_bytes, stats.registrations), (0, 0));
    }
    assert_eq!(two.server.stats().counters.replies_tagged, 20);
}

#[test]
fn a_small_exchange_takes_few_system_calls() {
    let mut two = connect(ConnOptions::default());
    (0..10).for_each(|tag| exchange(&mut two, tag, 0, 4096));
    let calls = |two: &Two| two.server.stats().system_calls + two.client.stats().system_calls;
    let before = calls(&two);
    (0..100).for_each(|tag| exchange(&mut two, tag, 0, 4096));
    let each = (calls(&two) - before) as f64 / 100.0;
    // One send and one or two receives on each side, and polls that come too early.
    assert!(each < 12.0, "{each}");
}

#[test]
fn a_killed_peer_leaves_nothing() {
    let mut two = connect(ConnOptions::default());
    let room = Buffer::new(1 << 20).unwrap().post();
    two.client.submit(two.conn, 1, b"?", SgList::new(), list(&room)).unwrap();
    two.client.ring();
    let Two { server, mut client, conn, _listener } = two;
    drop(server);
    let mut told = false;
    loop {
        client.poll();
        match client.next_event() {
            Some(Event::Disconnected { conn: c, peer_fault: false, .. }) if c == conn => {
                told = true
            }
            Some(Event::Quiescent { .. }) => break,
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
    assert!(told);
    room.take_back().expect("no span is left");
    assert_eq!(client.stats().connections, 0);
}

/// A request without data, as a peer writes it that keeps no count of anything.
fn bare_request(number: u32, window: u32) -> Vec<u8> {
    let (slot, generation) = (number % window, number / window % 65_536);
    // A request, whose reply is tagged.
    let mut bytes = vec![1, 2 << 4, 0, 0];
    bytes.extend((slot << 16 | generation).to_le_bytes());
    bytes.extend([0; 4 + 8]);
    bytes.extend(window.to_le_bytes());
    bytes.extend((1u32 << 16).to_le_bytes());
    bytes
}

/// It takes none of its replies, and sends more requests than it has slots.
#[test]
fn replies_that_are_not_taken_are_few_whatever_the_sockets_hold() {
    const WINDOW: u32 = 8;
    let domain = Domain::open(&TcpProvider::new()).unwrap();
    let address = Address::parse("tcp://127.0.0.1:0").unwrap();
    let mut listener = domain.device().listen(&address).unwrap();
    let (mut server, mut peer) = (node(&domain), domain.engine().unwrap());
    let mut setup = vec![0x44, 0x4d, 2, 20];
    // Flags, bytes of receives, requests at a time.
    setup.extend([7u16, 1024, 9, 0].map(u16::to_le_bytes).as_flattened());
    setup.extend(0u32.to_le_bytes());
    setup.extend((1u32 << 16).to_le_bytes());
    let queue_pair = peer.connect(&listener.address(), &setup).unwrap();
    let options = ConnOptions { credits: WINDOW as u16, ..ConnOptions::default() };
    let mut completions = Vec::new();
    let (mut number, mut is_connected, mut told, mut most) = (0, false, 0, 0);
    loop {
        if let Some(incoming) = listener.poll_accept() {
            server.accept(incoming, b"", options).unwrap();
        }
        // It polls to send, but has posted nothing that replies could go to.
        peer.poll(&mut completions, 64);
        while let Some(event) = peer.poll_event() {
            is_connected |= matches!(event, QueuePairEvent::Connected { .. });
        }
        let request = bare_request(number, WINDOW + 1);
        if is_connected
            && peer.post_send(queue_pair, WrId(1), &request, &mut SgList::new(), true).is_ok()
        {
            number += 1;
            peer.ring();
        }
        server.poll();
        while let Some(event) = server.next_event() {
            match event {
                Event::Request { id, .. } => {
                    told += 1;
                    server.reply_told(id, &[7; 4000], &mut SgList::new(), told);
                }
                Event::ReplySent { .. } => told -= 1,
                Event::Disconnected { reason, peer_fault, .. } => {
                    assert!(peer_fault && reason.contains("does not take"), "{reason}");
                    assert!(most >= 64, "{most}");
                    return;
                }
                other => panic!("{other:?}"),
            }
            most = most.max(told);
            assert!(most <= 2 * u64::from(WINDOW + 1) + 64, "{most} replies are kept");
        }
        server.ring();
    }
}
