//! Attributes are limits that hold, and full queues are a normal status.

use super::Harness;
use super::pair::{Pair, READ_WRITE, bytes, pattern};
use crate::error::PostError;
use crate::mem::{Buffer, PostedBuffer, Span};
use crate::types::{Access, Opcode, QueuePair, RemoteSpan, Rkey, Status, sg_bytes};

pub(super) fn limits_are_enforced(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    assert!(attr.sge_max >= 2 && attr.header_bytes_max >= 1 && attr.receive_queue_depth >= 1);
    assert!(attr.send_queue_depth >= 1 && attr.send_bytes_max >= attr.header_bytes_max);
    let source = p.a.buffer(attr.send_bytes_max + 1);
    let span = source.span();
    let too_large = Err(PostError::TooLarge);
    let header = pattern(1, attr.header_bytes_max + 1);
    assert_eq!(p.a.send(qa, &header, &[], true), too_large);
    assert_eq!(p.a.send(qa, b"", std::slice::from_ref(span), true), too_large);
    let one_less = [span.part(0, attr.send_bytes_max)];
    assert_eq!(p.a.send(qa, b"x", &one_less, true), too_large);
    let many = vec![span.part(0, 1); attr.sge_max + 1];
    assert_eq!(p.a.send(qa, b"", &many, true), too_large);
    assert_eq!(p.a.recv(&many), too_large);
    let remote = RemoteSpan { rkey: Rkey(1), addr: 4096, len: many.len() as u32 };
    if attr.rdma_write {
        assert_eq!(p.a.write(qa, &many, remote, true), too_large);
    }
    if attr.rdma_read {
        assert_eq!(p.a.read(qa, &many, remote), too_large);
    }
    if attr.tag_match {
        assert_eq!(p.a.tagged_send(qa, 1, &header, &[], true), too_large);
        assert_eq!(p.a.tagged_send(qa, 1, b"", &many, true), too_large);
        assert_eq!(p.a.tagged_recv(qa, 1, None, &many), too_large);
    }
    bulk_of(&mut p, attr.bulk_bytes_max + 1, Err(PostError::TooLarge));
    h.ping(&mut p);
    assert!(p.a.open() == 0, "what was refused was not posted");
}

/// Whether so many bytes are taken in one work request, from a list that repeats a smaller piece.
/// Nothing is polled: where they are taken, the pair is of no use afterwards.
fn bulk_of(p: &mut Pair, bytes: usize, taken: Result<(), PostError>) {
    let (qa, attr) = (p.qa, p.a.attr());
    let Ok(len) = u32::try_from(bytes) else { return };
    let piece = bytes.div_ceil(attr.sge_max);
    let memory = p.a.buffer(piece);
    let mut list = vec![memory.span().clone(); bytes / piece];
    list.extend((!bytes.is_multiple_of(piece)).then(|| memory.span().part(0, bytes % piece)));
    let remote = RemoteSpan { rkey: Rkey(1), addr: 4096, len };
    if attr.rdma_write {
        assert_eq!(p.a.write(qa, &list, remote, true).map(drop), taken);
    }
    if attr.rdma_read {
        assert_eq!(p.a.read(qa, &list, remote).map(drop), taken);
    }
    if attr.tag_match {
        assert_eq!(p.a.tagged_send(qa, 1, b"", &list, true).map(drop), taken);
    }
}

pub(super) fn limits_can_be_used(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let many = attr.sge_max;
    let (source, target) = (p.a.filled(1, many), p.b.filled(2, many));
    // Single bytes, the last one first.
    let pieces = |memory: &PostedBuffer| -> Vec<Span> {
        (0..many).rev().map(|at| memory.span().part(at, 1)).collect()
    };
    let recv = p.b.recv(&pieces(&target)).expect("as many entries as allowed");
    let sent = p.a.send(qa, b"", &pieces(&source), true).expect("as many entries as allowed");
    assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
    assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
    assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
    if attr.tag_match {
        target.span().zero();
        let recv = p.b.tagged_recv(qb, 1, None, &pieces(&target)).expect("as many as allowed");
        let sent = p.a.tagged_send(qa, 1, b"", &pieces(&source), true).expect("as many");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        assert!(bytes(target.span()) == bytes(source.span()), "wrong data");
    }
    let region = p.b.register(target.span(), READ_WRITE);
    if attr.rdma_write {
        let wr =
            p.a.write(qa, &pieces(&source), region.remote(), true).expect("as many as allowed");
        assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
    }
    if attr.rdma_read {
        let wr = p.a.read(qa, &pieces(&source), region.remote()).expect("as many as allowed");
        assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
    }
    bulk_of(&mut p, attr.bulk_bytes_max, Ok(()));
}

pub(super) fn what_is_not_offered_is_refused(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    let (ours, theirs) = (p.a.buffer(64), p.b.buffer(64));
    let span = [ours.span().clone()];
    let remote = RemoteSpan { rkey: Rkey(1), addr: theirs.span().addr(), len: 64 };
    let unsupported = Err(PostError::Unsupported);
    if !attr.rdma_write {
        assert_eq!(p.a.write(qa, &span, remote, true), unsupported);
    }
    if !attr.rdma_read {
        assert_eq!(p.a.read(qa, &span, remote), unsupported);
    }
    if !attr.tag_match {
        assert_eq!(p.a.tagged_send(qa, 1, b"", &span, true), unsupported);
        assert_eq!(p.a.tagged_recv(qa, 1, None, &span), unsupported);
    }
    if !attr.verifies_names {
        assert_eq!(p.a.named_read(qa, &span, b"name", 0), unsupported);
        assert!(!p.a.engine.serve_named() && p.a.engine.next_named().is_none());
    }
    if !attr.file_spans {
        let (_file, map) = super::files::mapped(b"content", false);
        let file = [Span::of_file(&map, 0, 7)];
        assert_eq!(p.a.send(qa, b"", &file, true), unsupported);
        if attr.tag_match {
            assert_eq!(p.a.tagged_send(qa, 1, b"", &file, true), unsupported);
        }
        if attr.rdma_write {
            let remote = RemoteSpan { len: 7, ..remote };
            assert_eq!(p.a.write(qa, &file, remote, true), unsupported);
        }
    }
    h.ping(&mut p);
}

pub(super) fn local_memory_must_be_registered(h: &mut Harness<'_>) {
    let mut p = h.pair();
    if !p.a.attr().local_registration {
        let [stray, at_b] = [(); 2].map(|()| Buffer::new(64).expect("memory").post());
        let recv = p.b.recv(&[at_b.span().clone()]).expect("any memory will do");
        let sent = p.a.send(p.qa, b"", &[stray.span().clone()], true).expect("any memory will do");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        return;
    }
    // Memory that never was registered, that was, that is registered with another device, or is in
    // part.
    let stray = Buffer::new(64).expect("memory").post();
    only_registered(&mut p, &[stray.span().clone()]);
    drop(p.a.register(stray.span(), READ_WRITE));
    only_registered(&mut p, &[stray.span().clone()]);
    let _other = p.b.register(stray.span(), READ_WRITE);
    only_registered(&mut p, &[stray.span().clone()]);
    let _half = p.a.register(&stray.span().part(0, 32), READ_WRITE);
    only_registered(&mut p, &[stray.span().clone()]);
    only_registered(&mut p, &[stray.span().part(0, 16), stray.span().part(31, 2)]);
    // Any right will do.
    let recv = p.b.recv(&[stray.span().part(32, 32)]).expect("it is registered there");
    let sent = p.a.send(p.qa, b"", &[stray.span().part(0, 32)], true).expect("and here");
    assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
    assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
    h.ping(&mut p);
    assert!(p.a.open() == 0, "what was refused was not posted");
}

/// All that `a` can post refuses this memory.
fn only_registered(p: &mut Pair, list: &[Span]) {
    let (qa, attr) = (p.qa, p.a.attr());
    let len = sg_bytes(list) as u32;
    let remote = RemoteSpan { rkey: Rkey(1), addr: 4096, len };
    let refused = Err(PostError::NotRegistered);
    assert_eq!(p.a.send(qa, b"x", list, true), refused);
    assert_eq!(p.a.recv(list), refused);
    if attr.rdma_write {
        assert_eq!(p.a.write(qa, list, remote, true), refused);
    }
    if attr.rdma_read {
        assert_eq!(p.a.read(qa, list, remote), refused);
    }
    if attr.tag_match {
        assert_eq!(p.a.tagged_send(qa, 1, b"", list, true), refused);
        assert_eq!(p.a.tagged_recv(qa, 1, None, list), refused);
        let whole = Some(list[list.len() - 1].clone());
        assert_eq!(p.a.tagged_recv(qa, 1, whole, &[]), refused);
    }
}

pub(super) fn unknown_queue_pairs_are_refused(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let attr = p.a.attr();
    let memory = p.a.buffer(64);
    let span = [memory.span().clone()];
    let remote = RemoteSpan { rkey: Rkey(1), addr: 4096, len: 64 };
    let unknown = QueuePair(p.qa.0 + 1_000_000);
    let not_connected = Err(PostError::NotConnected);
    assert_eq!(p.a.send(unknown, b"x", &[], true), not_connected);
    if attr.rdma_write {
        assert_eq!(p.a.write(unknown, &span, remote, true), not_connected);
    }
    if attr.rdma_read {
        assert_eq!(p.a.read(unknown, &span, remote), not_connected);
    }
    if attr.tag_match {
        assert_eq!(p.a.tagged_send(unknown, 1, b"", &span, true), not_connected);
        assert_eq!(p.a.tagged_recv(unknown, 1, None, &span), not_connected);
    }
    p.a.engine.disconnect(unknown);
    p.a.engine.cancel_tagged_recv(unknown, crate::Tag(1));
    h.ping(&mut p);
}

pub(super) fn a_full_send_queue_recovers(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, depth) = (p.qa, p.a.attr().send_queue_depth);
    let target = p.b.buffer(64);
    for round in 0..3 {
        let mut posted = 0;
        while posted < depth {
            p.a.send(qa, b"fill", &[], true).expect("the queue has room for its depth");
            posted += 1;
        }
        assert_eq!(p.a.send(qa, b"x", &[], true), Err(PostError::QueueFull), "round {round}");
        // Peers consume at their pace; all come through, each once (`Node` keeps the books).
        let (mut got, mut recv) = (0, None);
        h.wait(&mut p, "the whole queue", |p| {
            if recv.is_some_and(|wr| p.b.take(wr).is_some()) {
                (got, recv) = (got + 1, None);
            }
            if recv.is_none() && got < depth {
                recv = Some(p.b.recv(&[target.span().clone()]).expect("posted"));
            }
            got == depth && p.a.open() == 0
        });
        assert!(p.a.completions.drain(..).all(|c| c.status == Status::Success));
    }
    h.ping(&mut p);
}

pub(super) fn a_full_receive_queue_recovers(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, depth) = (p.qa, p.b.attr().receive_queue_depth);
    let target = p.b.buffer(64);
    for _ in 0..depth {
        p.b.recv(&[target.span().clone()]).expect("the queue has room for its depth");
    }
    assert_eq!(p.b.recv(&[target.span().clone()]), Err(PostError::QueueFull));
    let sent = p.a.send(qa, b"one", &[], true).expect("posted");
    h.finish_a(&mut p, sent);
    h.wait(&mut p, "receive", |p| p.b.take_opcode(Opcode::Recv).is_some());
    p.b.recv(&[target.span().clone()]).expect("there is room again");
    if p.b.attr().rdma_write {
        // Registrations are no part of the queues.
        drop(p.b.register(target.span(), READ_WRITE));
        drop(p.b.register(target.span(), Access { remote_read: true, remote_write: false }));
    }
}
