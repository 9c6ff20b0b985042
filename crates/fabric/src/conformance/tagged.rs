//! Tagged sends: data lands in the buffer posted for its tag.

use super::Harness;
use super::pair::{Node, bytes, pattern};
use crate::error::PostError;
use crate::mem::Span;
use crate::types::{Opcode, QueuePairEvent, Status, Tag};

fn without_tags(h: &mut Harness<'_>) -> bool {
    !h.provider.open().expect("a device").attr().tag_match
}

fn unmatched(node: &mut Node) -> Option<QueuePairEvent> {
    node.take_event(|e| matches!(e, QueuePairEvent::UnmatchedTag { .. }))
}

pub(super) fn tagged_data_lands(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let header_max = attr.header_bytes_max.min(64);
    for (tag, header_len, len, at) in [
        (1, 10, 4096, 0),
        (2, 0, 1, 1),
        (u64::MAX, header_max, 4097, 4095),
        (0, 1, 0, 3),
        (5, 0, 0, 0),
        (6, 3, 12_345.min(attr.bulk_bytes_max), 7),
    ] {
        let (header, source) = (pattern(tag, header_len), p.a.filled(tag ^ 1, len));
        let (head, target) = (p.b.buffer(64), p.b.buffer(at + len + 1));
        let into = target.span().part(at, len);
        let recv = p.b.tagged_recv(qb, tag, Some(head.span().clone()), &[into]).expect("posted");
        let data = [source.span().clone()];
        let sent = p.a.tagged_send(qa, tag, &header, &data, true).expect("posted");
        drop(data);
        let got = h.finish_b(&mut p, recv);
        assert_eq!((got.status, got.queue_pair), (Status::Success, qb));
        assert_eq!((got.byte_len as usize, got.header_len as usize), (len, header_len));
        assert_eq!(bytes(head.span())[..header_len], header);
        let memory = bytes(target.span());
        assert!(memory[at..at + len] == bytes(source.span()), "wrong data, {len} at {at}");
        assert!(memory[..at].iter().chain(&memory[at + len..]).all(|b| *b == 0), "outside");
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        p.a.take_back(source);
        p.b.take_back(target);
        p.b.take_back(head);
    }
}

pub(super) fn tagged_data_is_scattered(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let pieces = attr.sge_max.min(4);
    let (source, target) = (p.a.filled(4, 9000), p.b.buffer(9000));
    // Descending addresses at both ends, with pieces of different lengths.
    let cut = |span: &Span, piece: usize| -> Vec<Span> {
        (0..pieces).rev().map(|i| span.part(i * 2000 + 11, piece + i)).collect()
    };
    let from = cut(source.span(), 1000);
    let into = cut(target.span(), 1500);
    let recv = p.b.tagged_recv(qb, 8, None, &into).expect("posted");
    p.a.tagged_send(qa, 8, b"", &from, false).expect("posted");
    let got = h.finish_b(&mut p, recv);
    let sent: Vec<u8> = from.iter().flat_map(bytes).collect();
    let landed: Vec<u8> = into.iter().flat_map(bytes).collect();
    assert_eq!((got.status, got.byte_len as usize), (Status::Success, sent.len()));
    assert!(landed[..sent.len()] == sent, "wrong data");
    assert!(landed[sent.len()..].iter().all(|b| *b == 0), "more than the message");
}

pub(super) fn large_tagged_data(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let len = attr.bulk_bytes_max.min(16 << 20);
    let (source, target) = (p.a.filled(6, len), p.b.buffer(len));
    let recv = p.b.tagged_recv(qb, 3, None, &[target.span().clone()]).expect("posted");
    let sent = p.a.tagged_send(qa, 3, b"", &[source.span().clone()], true).expect("posted");
    let got = h.finish_b(&mut p, recv);
    assert_eq!((got.status, got.byte_len as usize), (Status::Success, len));
    assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
    h.finish_a(&mut p, sent);
    p.a.take_back(source);
    p.b.take_back(target);
}

pub(super) fn many_tags_at_once(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let count = attr.send_queue_depth.min(64) as u64;
    let len = |tag: u64| (tag as usize * 977).min(attr.bulk_bytes_max);
    let mut targets = Vec::new();
    for tag in 0..count {
        let (head, target) = (p.b.buffer(8), p.b.buffer(len(tag)));
        let (header, data) = (Some(head.span().clone()), [target.span().clone()]);
        let recv = p.b.tagged_recv(qb, tag, header, &data).expect("posted");
        targets.push((recv, head, target));
    }
    // Sent in another order.
    for i in 0..count {
        let tag = (i * 37 + 5) % count;
        let tag = if count == 64 { tag } else { i };
        let source = p.a.filled(tag, len(tag));
        let data = [source.span().clone()];
        p.a.tagged_send(qa, tag, &tag.to_le_bytes(), &data, true).expect("posted");
    }
    h.wait(&mut p, "all tagged messages", |p| p.a.open() + p.b.open() == 0);
    for (tag, (recv, head, target)) in targets.into_iter().enumerate() {
        let got = p.b.take(recv).expect("complete");
        assert_eq!((got.status, got.header_len), (Status::Success, 8));
        assert_eq!(bytes(head.span()), (tag as u64).to_le_bytes());
        assert!(bytes(target.span()) == pattern(tag as u64, target.span().len()), "tag {tag}");
    }
}

pub(super) fn an_unmatched_tag_pauses(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb) = (p.qa, p.qb);
    let (source, target) = (p.a.filled(2, 1000), p.b.buffer(1000));
    p.a.tagged_send(qa, 44, b"h", &[source.span().clone()], true).expect("posted");
    let mut event = None;
    h.wait(&mut p, "UnmatchedTag", |p| {
        event = unmatched(&mut p.b);
        event.is_some()
    });
    assert_eq!(event, Some(QueuePairEvent::UnmatchedTag { queue_pair: qb, tag: Tag(44) }));
    // Messages behind it wait; another tag does not help; it is told once.
    let message = p.b.buffer(64);
    let recv = p.b.recv(&[message.span().clone()]).expect("posted");
    p.a.send(qa, b"behind", &[], false).expect("posted");
    let other = p.b.tagged_recv(qb, 45, None, &[]).expect("posted");
    h.settle(&mut p);
    assert!(p.b.completions.is_empty() && p.b.events.is_empty(), "receiving goes on");
    // The other direction works.
    let back = p.a.buffer(64);
    let got = p.a.recv(&[back.span().clone()]).expect("posted");
    p.b.send(qb, b"back", &[], false).expect("posted");
    assert_eq!(h.finish_a(&mut p, got).status, Status::Success);
    let head = p.b.buffer(1);
    let data = [target.span().clone()];
    let wr = p.b.tagged_recv(qb, 44, Some(head.span().clone()), &data).expect("posted");
    let done = h.finish_b(&mut p, wr);
    assert_eq!((done.status, done.byte_len, done.header_len), (Status::Success, 1000, 1));
    assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
    assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
    p.a.tagged_send(qa, 45, b"", &[], false).expect("posted");
    assert_eq!(h.finish_b(&mut p, other).status, Status::Success);
    assert!(p.b.events.is_empty(), "{:?}", p.b.events);
}

pub(super) fn a_paused_queue_pair_can_be_left(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    for b_leaves in [true, false] {
        let mut p = h.pair();
        let (qa, qb) = (p.qa, p.qb);
        let source = p.a.filled(2, 1000);
        p.a.tagged_send(qa, 44, b"h", &[source.span().clone()], true).expect("posted");
        h.wait(&mut p, "UnmatchedTag", |p| unmatched(&mut p.b).is_some());
        if b_leaves {
            p.b.engine.disconnect(qb);
        } else {
            p.a.engine.disconnect(qa);
        }
        h.wait(&mut p, "Quiescent", |p| {
            if p.a.is_gone(qa) && !p.b.is_gone(qb) {
                // Contract: a pause ends by a post or a disconnect. Its owner may have to act.
                p.b.engine.disconnect(qb);
            }
            p.a.is_gone(qa) && p.b.is_gone(qb)
        });
        p.a.take_back(source);
    }
}

pub(super) fn a_cancelled_tag_is_thrown_away(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb) = (p.qa, p.qb);
    let (source, target) = (p.a.filled(3, 5000), p.b.buffer(5000));
    let wr = p.b.tagged_recv(qb, 9, None, &[target.span().clone()]).expect("posted");
    p.b.engine.cancel_tagged_recv(qb, Tag(9));
    assert_eq!(h.finish_b(&mut p, wr).status, Status::Cancelled);
    p.b.take_back(target);
    let sent = p.a.tagged_send(qa, 9, b"late", &[source.span().clone()], true).expect("posted");
    assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
    h.settle(&mut p);
    assert!(p.b.completions.is_empty() && p.b.events.is_empty(), "{:?}", p.b.events);
    p.a.take_back(source);
    h.ping(&mut p);
    // To cancel what is not posted does nothing.
    p.b.engine.cancel_tagged_recv(qb, Tag(10));
    h.ping(&mut p);
}

pub(super) fn cancel_in_mid_transfer(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let len = attr.bulk_bytes_max.min(1 << 20);
    for rounds in 0..12 {
        let (source, target) = (p.a.filled(rounds, len), p.b.buffer(len));
        let wr = p.b.tagged_recv(qb, rounds, None, &[target.span().clone()]).expect("posted");
        let data = [source.span().clone()];
        let sent = p.a.tagged_send(qa, rounds, b"", &data, true).expect("posted");
        drop(data);
        for _ in 0..rounds {
            p.poll();
            (h.progress)();
        }
        p.b.engine.cancel_tagged_recv(qb, Tag(rounds));
        let done = h.finish_b(&mut p, wr).status;
        match done {
            Status::Success => assert!(bytes(target.span()) == bytes(source.span()), "data"),
            other => assert_eq!(other, Status::Cancelled),
        }
        p.b.take_back(target);
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        p.a.take_back(source);
        h.ping(&mut p);
    }
    assert!(p.b.events.is_empty(), "{:?}", p.b.events);
}

pub(super) fn a_tag_in_use_is_refused(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb) = (p.qa, p.qb);
    for _ in 0..3 {
        let wr = p.b.tagged_recv(qb, 1, None, &[]).expect("the tag is free");
        assert_eq!(p.b.tagged_recv(qb, 1, None, &[]), Err(PostError::TagInUse));
        // The other end's tags, and those of other queue pairs, are others.
        let (qa2, qb2) = h.connect(&mut p);
        let other = p.b.tagged_recv(qb2, 1, None, &[]).expect("the tag is free there");
        p.a.tagged_send(qa2, 1, b"", &[], false).expect("posted");
        assert_eq!(h.finish_b(&mut p, other).queue_pair, qb2);
        p.a.tagged_send(qa, 1, b"", &[], false).expect("posted");
        assert_eq!(h.finish_b(&mut p, wr).queue_pair, qb);
    }
}

pub(super) fn long_tagged_data_is_a_length_error(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    for (header, len) in [(&b""[..], 101), (b"abc", 100)] {
        let mut p = h.pair();
        let (qa, qb) = (p.qa, p.qb);
        let (source, target, head) = (p.a.filled(1, len), p.b.buffer(300), p.b.buffer(2));
        let into = [target.span().part(100, 100)];
        let header_span = Some(head.span().clone());
        let wr = p.b.tagged_recv(qb, 7, header_span, &into).expect("posted");
        p.a.tagged_send(qa, 7, header, &[source.span().clone()], false).expect("posted");
        assert_eq!(h.finish_b(&mut p, wr).status, Status::LocalLength);
        let memory = bytes(target.span());
        assert!(memory[..100].iter().chain(&memory[200..]).all(|b| *b == 0), "outside touched");
    }
}

pub(super) fn tagged_data_never_overtakes_a_send(h: &mut Harness<'_>) {
    if without_tags(h) {
        return;
    }
    let mut p = h.pair();
    let (qa, qb) = (p.qa, p.qb);
    for tag in 0..10 {
        let (source, target, message) = (p.a.filled(tag, 3000), p.b.buffer(3000), p.b.buffer(64));
        let data = [source.span().clone()];
        p.b.tagged_recv(qb, tag, None, &[target.span().clone()]).expect("posted");
        p.a.send(qa, b"first", &[], false).expect("posted");
        p.a.tagged_send(qa, tag, b"", &data, false).expect("posted");
        h.settle(&mut p);
        assert!(p.b.completions.is_empty(), "it overtook a send");
        p.b.recv(&[message.span().clone()]).expect("posted");
        h.wait(&mut p, "both", |p| p.b.completions.len() == 2);
        let order: Vec<_> = p.b.completions.drain(..).map(|c| c.opcode).collect();
        assert_eq!(order, [Opcode::Recv, Opcode::TaggedRecv]);
        assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
    }
}
