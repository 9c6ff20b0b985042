//! Random traffic of all kinds on several queue pairs, against a model.

use super::Harness;
use super::pair::{Node, Pair, READ_WRITE, bytes, pattern};
use crate::mem::{MemoryRegion, PostedBuffer};
use crate::sim::Rng;
use crate::types::{Opcode, QueuePair, Status, WrId};

const QUEUE_PAIRS: usize = 3;
const OPERATIONS: usize = 300;
const UNDER_WAY_MAX: usize = 12;

/// What a finished operation must have done.
struct Expected {
    /// The work requests that must succeed: (at `b`, which).
    pending: Vec<(bool, WrId)>,
    /// Where the data must be then, and the seed of its pattern.
    target: PostedBuffer,
    /// Where it came from.
    source: PostedBuffer,
    seed: u64,
    /// At which node source and target are: true is `b`.
    target_at_b: bool,
    region: Option<MemoryRegion>,
}

pub(super) fn mixed_traffic(h: &mut Harness<'_>) {
    let mut p = h.nodes();
    let pairs: Vec<_> = (0..QUEUE_PAIRS).map(|_| h.connect(&mut p)).collect();
    let mut rng = Rng::new(h.seed).fork(0x7261_6666);
    let (mut started, mut under_way) = (0, Vec::<Expected>::new());
    h.wait(&mut p, "all traffic", |p| {
        if started < OPERATIONS && under_way.len() < UNDER_WAY_MAX {
            let from_b = rng.coin();
            let (qa, qb) = pairs[rng.index(QUEUE_PAIRS)];
            under_way.extend(start(p, &mut rng, started as u64, from_b, (qa, qb)));
            started += 1;
        }
        let mut index = 0;
        while index < under_way.len() {
            let operation = &mut under_way[index];
            operation.pending.retain(|(at_b, wr)| {
                let done = if *at_b { p.b.take(*wr) } else { p.a.take(*wr) };
                done.inspect(|c| assert_eq!(c.status, Status::Success, "{c:?}")).is_none()
            });
            if operation.pending.is_empty() {
                finish(p, under_way.swap_remove(index));
            } else {
                index += 1;
            }
        }
        started == OPERATIONS && under_way.is_empty()
    });
    assert!(p.a.events.is_empty() && p.b.events.is_empty(), "{:?} {:?}", p.a.events, p.b.events);
}

/// Posts one operation: a tagged message, a read, or a write that a tagged message or nothing
/// announces. Plain sends, which any receive may take, have cases of their own.
fn start(
    p: &mut Pair,
    rng: &mut Rng,
    number: u64,
    from_b: bool,
    (qa, qb): (QueuePair, QueuePair),
) -> Option<Expected> {
    let attr = p.a.attr();
    let (near, far, q_near, q_far) =
        if from_b { (&mut p.b, &mut p.a, qb, qa) } else { (&mut p.a, &mut p.b, qa, qb) };
    let len = 1 + rng.index(attr.bulk_bytes_max.min(150_000));
    let opcode = [Opcode::TaggedSend, Opcode::RdmaRead, Opcode::RdmaWrite][rng.index(3)];
    match opcode {
        Opcode::TaggedSend if attr.tag_match => {
            let (source, target) = (near.filled(number, len), far.buffer(len));
            let data = [target.span().clone()];
            let recv = far.tagged_recv(q_far, number, None, &data).expect("posted");
            let data = cut(&source, rng, attr.sge_max);
            let sent = near.tagged_send(q_near, number, b"", &data, true).expect("posted");
            let pending = vec![(!from_b, recv), (from_b, sent)];
            Some(expected(pending, source, target, number, !from_b, None))
        }
        Opcode::RdmaRead if attr.rdma_read => {
            let (source, target) = (far.filled(number, len), near.buffer(len));
            let region = far.register(source.span(), READ_WRITE);
            let into = cut(&target, rng, attr.sge_max);
            let wr = near.read(q_near, &into, region.remote()).expect("posted");
            let pending = vec![(from_b, wr)];
            Some(expected(pending, source, target, number, from_b, Some(region)))
        }
        Opcode::RdmaWrite if attr.rdma_write && attr.write_before_send => {
            let (source, target) = (near.filled(number, len), far.buffer(len));
            let region = far.register(target.span(), READ_WRITE);
            let data = cut(&source, rng, attr.sge_max);
            let wr = near.write(q_near, &data, region.remote(), true).expect("posted");
            let note = far.buffer(8);
            let recv = far.recv(&[note.span().clone()]).expect("posted");
            // Any message of any queue pair may end in `recv`, so the data is not looked at
            // when it comes; that all come is what is asked.
            near.send(q_near, b"", &[], false).expect("posted");
            let pending = vec![(from_b, wr), (!from_b, recv)];
            let mut expected = expected(pending, source, target, number, !from_b, Some(region));
            expected.seed = u64::MAX;
            Some(expected)
        }
        _ => None,
    }
}

fn expected(
    pending: Vec<(bool, WrId)>,
    source: PostedBuffer,
    target: PostedBuffer,
    seed: u64,
    target_at_b: bool,
    region: Option<MemoryRegion>,
) -> Expected {
    Expected { pending, target, source, seed, target_at_b, region }
}

/// Up to `sge_max` pieces (at most 4) of all of a buffer.
fn cut(buffer: &PostedBuffer, rng: &mut Rng, sge_max: usize) -> Vec<crate::Span> {
    let (mut at, mut pieces) = (0, Vec::new());
    let len = buffer.span().len();
    for _ in 1..sge_max.min(4) {
        let piece = rng.index(len - at + 1);
        pieces.push(buffer.span().part(at, piece));
        at += piece;
    }
    pieces.push(buffer.span().part(at, len - at));
    pieces
}

fn finish(p: &mut Pair, done: Expected) {
    let len = done.target.span().len();
    if done.seed != u64::MAX {
        assert!(bytes(done.target.span()) == pattern(done.seed, len), "wrong data");
    }
    drop(done.region);
    let (target_at, source_at): (&mut Node, &mut Node) =
        if done.target_at_b { (&mut p.b, &mut p.a) } else { (&mut p.a, &mut p.b) };
    target_at.take_back(done.target);
    source_at.take_back(done.source);
}
