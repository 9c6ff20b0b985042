//! Sends and receives.

use super::Harness;
use super::pair::{bytes, pattern};
use crate::sim::Rng;
use crate::types::{Opcode, QueuePairEvent, Status};

pub(super) fn sends_arrive_in_order(h: &mut Harness<'_>) {
    const MESSAGES: u64 = 200;
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    let size_max = attr.send_bytes_max.min(4096);
    let slots: Vec<_> = (0..5).map(|_| p.b.buffer(size_max)).collect();
    let source = p.a.buffer(size_max);
    source.span().copy_from(0, &pattern(3, size_max));
    let expected = bytes(source.span());
    let mut rng = Rng::new(h.seed);
    let mut recvs = Vec::new();
    for slot in &slots {
        recvs.push((p.b.recv(&[slot.span().clone()]).expect("posted"), slot));
    }
    let (mut sent, mut got, mut sizes) = (0, 0, std::collections::VecDeque::new());
    h.wait(&mut p, "all messages", |p| {
        while sent < MESSAGES && sizes.len() < attr.send_queue_depth.min(32) {
            let len = rng.index(size_max - 8 + 1);
            let header = u64::to_le_bytes(sent);
            p.a.send(qa, &header, &[source.span().part(0, len)], true).expect("posted");
            sizes.push_back(len);
            sent += 1;
        }
        while let Some(c) = p.b.take_opcode(Opcode::Recv) {
            assert_eq!(c.status, Status::Success);
            let at = recvs.iter().position(|(wr, _)| *wr == c.wr_id).expect("ours");
            let (_, slot) = recvs.swap_remove(at);
            let message = bytes(slot.span());
            let len = sizes.pop_front().expect("sent");
            assert_eq!(message[..8], u64::to_le_bytes(got), "out of order");
            assert_eq!(c.byte_len as usize, 8 + len);
            assert!(message[8..8 + len] == expected[..len], "wrong data");
            got += 1;
            recvs.push((p.b.recv(&[slot.span().clone()]).expect("posted"), slot));
        }
        got == MESSAGES && p.a.open() == 0
    });
    assert!(p.a.completions.iter().all(|c| c.status == Status::Success));
}

pub(super) fn unsignaled_sends_do_not_complete(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, buffer) = (p.qa, p.b.buffer(64));
    for _ in 0..20 {
        let recv = p.b.recv(&[buffer.span().clone()]).expect("posted");
        // `Node::poll` fails on a successful completion of it.
        p.a.send(qa, b"quiet", &[], false).expect("posted");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
    }
    h.settle(&mut p);
    assert!(p.a.completions.is_empty());
    h.ping(&mut p);
}

pub(super) fn gather_and_scatter(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    let header_len = attr.header_bytes_max.min(128);
    let page_len = (attr.send_bytes_max - header_len).min(4096);
    let source = p.a.filled(5, 2 * page_len + 3);
    let (head, page) = (p.b.buffer(header_len), p.b.buffer(page_len));
    let parts = attr.sge_max.min(3);
    for round in 0..10 {
        let mut header = pattern(round, header_len);
        let kept = header.clone();
        // Odd pieces, not in the order of their addresses.
        let cut = page_len / 3;
        let mut data = vec![source.span().part(page_len + 3, page_len - (parts - 1) * cut)];
        data.extend((1..parts).map(|i| source.span().part(i * 7 + round as usize, cut)));
        let recv = p.b.recv(&[head.span().clone(), page.span().clone()]).expect("posted");
        let sent = p.a.send(qa, &header, &data, true).expect("posted");
        header.fill(0xee); // the header was copied
        let got = h.finish_b(&mut p, recv);
        assert_eq!((got.status, got.byte_len as usize), (Status::Success, header_len + page_len));
        assert!(bytes(head.span()) == kept, "wrong header");
        let expected: Vec<u8> = data.iter().flat_map(bytes).collect();
        assert!(bytes(page.span()) == expected, "wrong data");
        h.finish_a(&mut p, sent);
    }
}

pub(super) fn empty_and_largest_messages(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    let header = pattern(1, attr.header_bytes_max);
    let data_len = attr.send_bytes_max - header.len();
    let source = p.a.filled(2, attr.send_bytes_max);
    let target = p.b.buffer(attr.send_bytes_max);
    let none: &[u8] = b"";
    for (header, len) in [
        (none, 0),
        (&header[..], data_len),
        (none, attr.send_bytes_max),
        (&header[..], 0),
        (none, 1),
        (none, 0),
    ] {
        let recv = p.b.recv(&[target.span().clone()]).expect("posted");
        let data = source.span().part(0, len);
        let sent = p.a.send(qa, header, std::slice::from_ref(&data), true).expect("posted");
        let got = h.finish_b(&mut p, recv);
        let total = header.len() + len;
        assert_eq!((got.status, got.byte_len as usize), (Status::Success, total));
        let message = bytes(target.span());
        assert!(message[..header.len()] == *header, "wrong header");
        assert!(message[header.len()..total] == bytes(&data), "wrong data");
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
    }
}

pub(super) fn a_send_waits_for_a_receive(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    let buffer = p.b.buffer(64);
    for text in [b"one", b"two", b"six"] {
        p.a.send(qa, text, &[], false).expect("posted");
    }
    h.settle(&mut p);
    assert!(p.b.completions.is_empty() && p.b.events.is_empty() && p.a.events.is_empty());
    for text in [b"one", b"two", b"six"] {
        let recv = p.b.recv(&[buffer.span().clone()]).expect("posted");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert_eq!(bytes(buffer.span())[..3], text[..]);
        h.settle(&mut p);
        assert!(p.b.completions.is_empty());
    }
}

pub(super) fn a_long_message_is_a_length_error(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, target, source) = (p.qa, p.b.buffer(256), p.a.filled(1, 100));
    let spans = [target.span().part(0, 40), target.span().part(128, 59)];
    let recv = p.b.recv(&spans).expect("posted");
    p.a.send(qa, b"", &[source.span().clone()], false).expect("posted");
    assert_eq!(h.finish_b(&mut p, recv).status, Status::LocalLength);
    let memory = bytes(target.span());
    assert!(memory[40..128].iter().chain(&memory[187..]).all(|b| *b == 0), "outside touched");
}

pub(super) fn a_completion_gives_buffers_back(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    for round in 0..10 {
        let (source, target) = (p.a.filled(round, 1000), p.b.buffer(1000));
        let recv = p.b.recv(&[target.span().clone()]).expect("posted");
        let sent = p.a.send(qa, b"", &[source.span().clone()], true).expect("posted");
        h.finish_b(&mut p, recv);
        h.finish_a(&mut p, sent);
        assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
        p.a.take_back(source);
        p.b.take_back(target);
    }
}

pub(super) fn one_engine_serves_64_queue_pairs(h: &mut Harness<'_>) {
    const QUEUE_PAIRS: usize = 64;
    let mut p = h.nodes();
    let pairs: Vec<_> = (0..QUEUE_PAIRS).map(|_| h.connect(&mut p)).collect();
    let buffers: Vec<_> = (0..8).map(|_| p.b.buffer(64)).collect();
    let mut posted = std::collections::HashMap::new();
    for buffer in &buffers {
        posted.insert(p.b.recv(&[buffer.span().clone()]).expect("posted"), buffer);
    }
    for (qa, _) in &pairs {
        p.a.send(*qa, &qa.0.to_le_bytes(), &[], false).expect("posted");
        p.a.send(*qa, &(!qa.0).to_le_bytes(), &[], true).expect("posted");
    }
    let mut counts = std::collections::HashMap::new();
    h.wait(&mut p, "all messages", |p| {
        while let Some(c) = p.b.take_opcode(Opcode::Recv) {
            let buffer = posted.remove(&c.wr_id).expect("posted");
            let count = counts.entry(c.queue_pair).or_insert(0);
            let (qa, _) = pairs.iter().find(|(_, qb)| *qb == c.queue_pair).expect("ours");
            let expected = if *count == 0 { qa.0 } else { !qa.0 };
            assert_eq!(bytes(buffer.span())[..8], expected.to_le_bytes());
            *count += 1;
            posted.insert(p.b.recv(&[buffer.span().clone()]).expect("posted"), buffer);
        }
        p.a.completions.len() == QUEUE_PAIRS && counts.values().sum::<i32>() == 128
    });
    assert!(counts.values().all(|c| *c == 2) && counts.len() == QUEUE_PAIRS);
    for (qa, _) in &pairs {
        p.a.engine.disconnect(*qa);
    }
    h.wait(&mut p, "Quiescent everywhere", |p| {
        pairs.iter().all(|(qa, qb)| p.a.is_gone(*qa) && p.b.is_gone(*qb))
    });
    let told = |e: &&QueuePairEvent| matches!(e, QueuePairEvent::Disconnected { .. });
    assert_eq!(p.b.events.iter().filter(told).count(), QUEUE_PAIRS);
}
