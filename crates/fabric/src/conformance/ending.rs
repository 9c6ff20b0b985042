//! Ends of connections: all work comes back, then nothing touches its memory.

use super::Harness;
use super::pair::{Node, Pair, READ_WRITE};
use crate::error::PostError;
use crate::mem::PostedBuffer;
use crate::types::{QueuePair, QueuePairEvent, Status};

/// Posts work of all kinds at both ends, `len` bytes each; the buffers are returned. Sends find
/// no receive at the other end.
fn load(
    p: &mut Pair,
    len: usize,
    regions: &mut Vec<crate::MemoryRegion>,
) -> [Vec<PostedBuffer>; 2] {
    let (qa, qb) = (p.qa, p.qb);
    let at_a = load_one(&mut p.a, qa, &mut p.b, len, regions);
    let at_b = load_one(&mut p.b, qb, &mut p.a, len, regions);
    [at_a, at_b]
}

fn load_one(
    node: &mut Node,
    qp: QueuePair,
    peer: &mut Node,
    len: usize,
    regions: &mut Vec<crate::MemoryRegion>,
) -> Vec<PostedBuffer> {
    let attr = node.attr();
    let mut buffers = Vec::new();
    for round in 0..3 {
        let remote = peer.buffer(len);
        let region = peer.register(remote.span(), READ_WRITE);
        if attr.rdma_write {
            let data = node.filled(round, len);
            node.write(qp, &[data.span().clone()], region.remote(), round > 0).expect("posted");
            buffers.push(data);
        }
        if attr.rdma_read {
            let into = node.buffer(len);
            node.read(qp, &[into.span().clone()], region.remote()).expect("posted");
            buffers.push(into);
        }
        regions.push(region);
        if attr.tag_match {
            let (data, into) = (node.filled(round, len), node.buffer(len));
            let tag = 100 + round;
            node.tagged_recv(qp, tag, None, &[into.span().clone()]).expect("posted");
            // Half of them find no buffer at the other end.
            node.tagged_send(qp, tag + round % 2, b"", &[data.span().clone()], true)
                .expect("posted");
            buffers.extend([data, into]);
        }
        let data = node.filled(round, attr.send_bytes_max.min(1000));
        node.send(qp, b"", &[data.span().clone()], round > 0).expect("posted");
        buffers.push(data);
    }
    buffers
}

fn all_gone(h: &mut Harness<'_>, p: &mut Pair) {
    let (qa, qb) = (p.qa, p.qb);
    // `Node::poll` checks that `Quiescent` comes after all completions, and once.
    h.wait(p, "Quiescent at both ends", |p| {
        // A receiver paused by an unmatched tag has to act itself.
        if p.a.is_gone(qa) != p.b.is_gone(qb) {
            p.a.engine.disconnect(qa);
            p.b.engine.disconnect(qb);
        }
        p.a.is_gone(qa) && p.b.is_gone(qb)
    });
}

pub(super) fn disconnect_returns_all_work(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let (a1, a2, b1) = (p.a.filled(1, 500), p.a.buffer(500), p.b.buffer(500));
    for _ in 0..attr.send_queue_depth.min(20) {
        p.a.send(qa, b"nobody receives", &[a1.span().clone()], true).expect("posted");
    }
    if attr.tag_match {
        let wr = p.a.tagged_recv(qa, 5, None, &[a2.span().clone()]).expect("posted");
        assert!(p.a.is_open(wr));
        p.b.tagged_recv(qb, 6, None, &[b1.span().clone()]).expect("posted");
    }
    h.settle(&mut p);
    p.a.engine.disconnect(qa);
    assert_eq!(p.a.send(qa, b"x", &[], true), Err(PostError::NotConnected));
    h.wait(&mut p, "Quiescent", |p| p.a.is_gone(qa));
    p.a.take_back(a1);
    p.a.take_back(a2);
    h.wait(&mut p, "Quiescent at the peer", |p| p.b.is_gone(qb));
    p.b.take_back(b1);
    let told = |e: &QueuePairEvent| matches!(e, QueuePairEvent::Disconnected { .. });
    assert!(p.b.take_event(told).is_some(), "the peer is told");
    assert_eq!(p.b.send(qb, b"x", &[], true), Err(PostError::NotConnected));
    let bad = |c: &&crate::WorkCompletion| !matches!(c.status, Status::Success | Status::Flushed);
    assert_eq!(p.a.completions.iter().chain(&p.b.completions).find(bad), None);
    // Again: ignored.
    p.a.engine.disconnect(qa);
    h.settle(&mut p);
}

pub(super) fn disconnect_in_mid_transfer(h: &mut Harness<'_>) {
    for round in 0..24 {
        let mut p = h.pair();
        let (qa, qb) = (p.qa, p.qb);
        let len = p.a.attr().bulk_bytes_max.min(100_000);
        let mut regions = Vec::new();
        let [at_a, at_b] = load(&mut p, len, &mut regions);
        for _ in 0..round * 3 {
            p.poll();
            (h.progress)();
        }
        if round % 2 == 0 {
            p.a.engine.disconnect(qa);
        } else {
            p.b.engine.disconnect(qb);
        }
        if round % 3 == 0 {
            // Everything is there when somebody looks again.
            (0..h.settle_rounds).for_each(|_| (h.progress)());
        }
        all_gone(h, &mut p);
        at_a.into_iter().for_each(|buffer| p.a.take_back(buffer));
        at_b.into_iter().for_each(|buffer| p.b.take_back(buffer));
    }
}

pub(super) fn both_ends_disconnect(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, qb) = (p.qa, p.qb);
    let mut regions = Vec::new();
    let [at_a, at_b] = load(&mut p, 4096, &mut regions);
    p.a.engine.disconnect(qa);
    p.b.engine.disconnect(qb);
    all_gone(h, &mut p);
    at_a.into_iter().for_each(|buffer| p.a.take_back(buffer));
    at_b.into_iter().for_each(|buffer| p.b.take_back(buffer));
}

pub(super) fn a_dead_peer_is_noticed(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    let mut regions = Vec::new();
    let [at_a, _at_b] = load(&mut p, 4096, &mut regions);
    for _ in 0..20 {
        p.poll();
        (h.progress)();
    }
    // The engine of `b` is dropped with all its queue pairs.
    p.b = Node::new(p.b.device.clone());
    h.wait(&mut p, "Quiescent at the survivor", |p| p.a.is_gone(qa));
    at_a.into_iter().for_each(|buffer| p.a.take_back(buffer));
    // `b` begins anew.
    (p.qa, p.qb) = h.connect(&mut p);
    h.ping(&mut p);
}

pub(super) fn the_other_queue_pair_lives(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let first = (p.qa, p.qb);
    (p.qa, p.qb) = h.connect(&mut p);
    for _ in 0..3 {
        h.ping(&mut p);
    }
    p.a.engine.disconnect(first.0);
    h.ping(&mut p);
    h.wait(&mut p, "Quiescent", |p| p.a.is_gone(first.0) && p.b.is_gone(first.1));
    h.ping(&mut p);
    assert!(!p.a.is_gone(p.qa) && !p.b.is_gone(p.qb));
}
