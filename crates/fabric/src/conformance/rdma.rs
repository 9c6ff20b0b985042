//! One-sided access: data, rights, bounds, keys.

use super::Harness;
use super::pair::{Pair, READ_WRITE, bytes, pattern};
use crate::mem::{Arena, PAGE_BYTES, PostedBuffer, Span};
use crate::types::{Access, QueuePairEvent, RemoteSpan, Rkey, Status, WrId};

/// Lists over `span` with odd cuts: one piece, two, and as many as the device takes (up to 5).
fn cuts(span: &Span, sge_max: usize) -> Vec<Vec<Span>> {
    let len = span.len();
    let many = sge_max.clamp(1, 5);
    let piece = len / many;
    let mut pieces: Vec<_> = (0..many - 1).map(|i| span.part(i * piece, piece)).collect();
    pieces.push(span.part((many - 1) * piece, len - (many - 1) * piece));
    vec![vec![span.clone()], vec![span.part(0, len / 3), span.part(len / 3, len - len / 3)], pieces]
}

pub(super) fn rdma_write_places_data(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_write {
        return;
    }
    for (round, (offset, len)) in
        [(0, 4096), (1, 1), (4095, 2), (13, 5001), (0, 0)].iter().enumerate()
    {
        let (offset, len) = (*offset, *len);
        for cut in 0..3 {
            let source = p.a.filled(round as u64, len + 1);
            let target = p.b.buffer(3 * 4096);
            let region = p.b.register(target.span(), READ_WRITE);
            let list = cuts(&source.span().part(1, len), attr.sge_max).swap_remove(cut);
            let wr = p.a.write(qa, &list, region.part(offset, len), true).expect("posted");
            assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
            drop(list);
            p.a.take_back(source);
            fence(h, &mut p);
            let mut expected = vec![0; 3 * 4096];
            expected[offset..offset + len].copy_from_slice(&pattern(round as u64, len + 1)[1..]);
            assert!(bytes(target.span()) == expected, "wrong data, {offset} {len} {cut}");
        }
    }
}

/// What was written before is placed after this, as far as the attributes promise.
fn fence(h: &mut Harness<'_>, p: &mut Pair) {
    if p.a.attr().write_before_send {
        h.ping(p);
    } else {
        h.settle(p);
    }
}

pub(super) fn rdma_read_fetches_data(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_read {
        return;
    }
    let source = p.b.filled(9, 3 * 4096);
    let all = bytes(source.span());
    let region = p.b.register(source.span(), Access { remote_read: true, remote_write: false });
    for (offset, len) in [(0, 4096), (1, 1), (4095, 2), (13, 5001), (0, 3 * 4096)] {
        for cut in 0..3 {
            let target = p.a.buffer(len + 2);
            let list = cuts(&target.span().part(1, len), attr.sge_max).swap_remove(cut);
            let wr = p.a.read(qa, &list, region.part(offset, len)).expect("posted");
            let done = h.finish_a(&mut p, wr);
            assert_eq!((done.status, done.byte_len as usize), (Status::Success, len));
            let got = bytes(target.span());
            assert!(got[1..=len] == all[offset..offset + len], "wrong data, {offset} {len} {cut}");
            assert_eq!((got[0], got[len + 1]), (0, 0), "outside touched");
            drop(list);
            p.a.take_back(target);
        }
    }
}

/// The peer counts in its memory meanwhile: a later read finds no smaller number than an earlier
/// one. With fences anywhere, without them where the device promises it.
pub(super) fn reads_are_performed_in_order(h: &mut Harness<'_>) {
    const READS: usize = 8;
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_read {
        return;
    }
    // One byte, which no device reads in two pieces.
    let counter = p.b.buffer(1);
    let region = p.b.register(counter.span(), READ_WRITE);
    let into = p.a.buffer(READS);
    for round in 0..16 {
        let fence = round % 2 == 0 || !attr.ordered_reads;
        let reads = READS.min(attr.send_queue_depth);
        counter.span().zero();
        for read in 0..reads {
            let list = [into.span().part(read, 1)];
            p.a.read_behind(qa, &list, region.remote(), fence).expect("posted");
        }
        let mut count = 0u8;
        h.wait(&mut p, "all reads", |p| {
            count = count.saturating_add(1);
            counter.span().copy_from(0, &[count]);
            p.a.open() == 0
        });
        assert!(p.a.completions.drain(..).all(|c| c.status == Status::Success));
        let found = bytes(&into.span().part(0, reads));
        assert!(found.is_sorted(), "a read overtook one before it, fence {fence}: {found:?}");
    }
}

/// Nobody polls at the target, where the device promises that nobody need.
pub(super) fn the_target_sleeps(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.target_cpu_free {
        return;
    }
    let len = attr.bulk_bytes_max.min(100_000);
    let (target, source, into) = (p.b.filled(1, len), p.a.filled(2, len), p.a.buffer(len));
    let region = p.b.register(target.span(), READ_WRITE);
    if attr.rdma_read {
        let wr = p.a.read(qa, &[into.span().clone()], region.remote()).expect("posted");
        assert_eq!(alone(h, &mut p, wr), Status::Success);
        assert!(bytes(into.span()) == pattern(1, len), "wrong data read");
    }
    if attr.rdma_write {
        let wr = p.a.write(qa, &[source.span().clone()], region.remote(), true).expect("posted");
        assert_eq!(alone(h, &mut p, wr), Status::Success);
        // A completion does not say that the data is there.
        for _ in 0..h.settle_rounds {
            p.a.poll();
            (h.progress)();
        }
        assert!(bytes(target.span()) == pattern(2, len), "wrong data written");
    }
}

/// How `wr` of `a` ends, while only `a` is polled.
fn alone(h: &mut Harness<'_>, p: &mut Pair, wr: WrId) -> Status {
    for _ in 0..h.rounds_max {
        p.a.poll();
        if let Some(done) = p.a.take(wr) {
            return done.status;
        }
        (h.progress)();
    }
    panic!("{}: {wr:?} needs the target's processor", h.case);
}

/// Several transfers of a mebibyte each way at a time.
pub(super) fn bulk_transfers(h: &mut Harness<'_>) {
    const COUNT: usize = 4;
    let mut p = h.pair();
    let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
    let len = attr.bulk_bytes_max.min(1 << 20);
    let sources: Vec<_> = (0..COUNT).map(|i| p.a.filled(i as u64, len)).collect();
    let targets: Vec<_> = (0..COUNT).map(|_| p.b.buffer(len)).collect();
    for turn in 0..2 {
        // `b` reads from `a` in the first turn, `a` writes to `b` in the second.
        if (turn == 0 && !attr.rdma_read) || (turn == 1 && !attr.rdma_write) {
            continue;
        }
        let mut regions = Vec::new();
        for (source, target) in sources.iter().zip(&targets) {
            target.span().zero();
            if turn == 0 {
                let region = p.a.register(source.span(), READ_WRITE);
                p.b.read(qb, &[target.span().clone()], region.remote()).expect("posted");
                regions.push(region);
            } else {
                let region = p.b.register(target.span(), READ_WRITE);
                p.a.write(qa, &[source.span().clone()], region.remote(), true).expect("posted");
                regions.push(region);
            }
        }
        h.wait(&mut p, "bulk transfers", |p| p.a.open() + p.b.open() == 0);
        let done = p.a.completions.drain(..).chain(p.b.completions.drain(..));
        assert!(done.map(|c| c.status).all(|s| s == Status::Success));
        fence(h, &mut p);
        for (source, target) in sources.iter().zip(&targets) {
            assert!(bytes(source.span()) == bytes(target.span()), "wrong data, turn {turn}");
        }
    }
}

pub(super) fn a_write_is_placed_before_a_send(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_write || !attr.write_before_send {
        return;
    }
    let len = attr.bulk_bytes_max.min(200_000);
    let (target, message) = (p.b.buffer(len), p.b.buffer(64));
    let region = p.b.register(target.span(), READ_WRITE);
    for round in 0..10 {
        let source = p.a.filled(round, len);
        let recv = p.b.recv(&[message.span().clone()]).expect("posted");
        // Two writes in front of the send, one of them after a read.
        let half = len / 2;
        for (from, to) in [(0, half), (half, len)] {
            let data = [source.span().part(from, to - from)];
            p.a.write(qa, &data, region.part(from, to - from), false).expect("posted");
        }
        p.a.send(qa, b"it is there", &[], false).expect("posted");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert!(bytes(target.span()) == bytes(source.span()), "the send came first");
    }
}

/// What an access fault does to the queue pair is as the attributes say.
fn expect_fault(h: &mut Harness<'_>, mut p: Pair, wr: WrId) {
    let (qa, qb) = (p.qa, p.qb);
    assert_eq!(h.finish_a(&mut p, wr).status, Status::RemoteAccess);
    if p.a.attr().recoverable_access_fault {
        h.settle(&mut p);
        assert!(p.a.events.is_empty() && p.b.events.is_empty(), "{:?}", p.a.events);
        h.ping(&mut p);
    } else {
        h.wait(&mut p, "end of the connection", |p| p.a.is_gone(qa) && p.b.is_gone(qb));
        let told = |e: &QueuePairEvent| matches!(e, QueuePairEvent::Disconnected { .. });
        assert!(p.a.take_event(told).is_some() && p.b.take_event(told).is_some());
    }
}

/// A pair, and memory of `b` with known bytes.
fn target(h: &mut Harness<'_>, len: usize) -> (Pair, PostedBuffer) {
    let mut p = h.pair();
    let target = p.b.filled(77, len);
    (p, target)
}

/// Tries `remote` by write and by read (where the device has them and `write`, `read` say) and
/// expects a fault without effect.
fn refused(
    h: &mut Harness<'_>,
    access: Access,
    tries: (bool, bool),
    remote: impl Fn(&Pair, &crate::MemoryRegion) -> RemoteSpan,
) {
    for write in [true, false] {
        let (mut p, target) = target(h, 3 * 4096);
        let (qa, attr) = (p.qa, p.a.attr());
        let wanted = if write { tries.0 && attr.rdma_write } else { tries.1 && attr.rdma_read };
        if !wanted {
            continue;
        }
        // The region is the middle page.
        let region = p.b.register(&target.span().part(4096, 4096), access);
        let remote = remote(&p, &region);
        let ours = p.a.buffer(remote.len as usize);
        let wr = if write {
            p.a.write(qa, &[ours.span().clone()], remote, true).expect("posted")
        } else {
            p.a.read(qa, &[ours.span().clone()], remote).expect("posted")
        };
        expect_fault(h, p, wr);
        drop(region);
        assert!(bytes(target.span()) == pattern(77, 3 * 4096), "memory touched");
        assert!(bytes(ours.span()).iter().all(|b| *b == 0), "memory read");
    }
}

pub(super) fn access_rights_hold(h: &mut Harness<'_>) {
    let none = Access { remote_read: false, remote_write: false };
    refused(h, none, (true, true), |_, r| r.remote());
    refused(h, Access { remote_read: true, ..none }, (true, false), |_, r| r.remote());
    refused(h, Access { remote_write: true, ..none }, (false, true), |_, r| r.remote());
}

pub(super) fn access_bounds_hold(h: &mut Harness<'_>) {
    type Change = fn(&mut RemoteSpan);
    let changes: [Change; 8] = [
        |r| r.len += 1,
        |r| r.addr += 1,
        |r| r.addr -= 1,
        |r| (r.addr, r.len) = (r.addr + 4096, 1),
        |r| (r.addr, r.len) = (r.addr - 1, 1),
        |r| (r.addr, r.len) = (u64::MAX - 63, 64),
        |r| (r.addr, r.len) = (u64::MAX, 4096),
        |r| (r.addr, r.len) = (0, 64),
    ];
    for change in changes {
        refused(h, READ_WRITE, (true, true), |_, region| {
            let mut remote = region.remote();
            change(&mut remote);
            remote
        });
    }
}

pub(super) fn foreign_keys_are_refused(h: &mut Harness<'_>) {
    refused(h, READ_WRITE, (true, true), |_, r| {
        let remote = r.remote();
        RemoteSpan { rkey: Rkey(remote.rkey.0 ^ 1), ..remote }
    });
    refused(h, READ_WRITE, (true, true), |_, r| RemoteSpan { rkey: Rkey(0), ..r.remote() });
    refused(h, READ_WRITE, (true, true), |_, r| RemoteSpan { rkey: Rkey(u64::MAX), ..r.remote() });
    // A key of another device that registered the very same memory.
    let kept = std::cell::RefCell::new(Vec::new());
    let other = h.provider.open().expect("a device");
    refused(h, READ_WRITE, (true, true), |_, r| {
        let region = other.register(r.span().clone(), READ_WRITE).expect("a region");
        let remote = region.remote();
        kept.borrow_mut().push(region);
        remote
    });
}

pub(super) fn ended_keys_are_refused(h: &mut Harness<'_>) {
    refused(h, READ_WRITE, (true, true), |_, r| {
        r.invalidate();
        r.invalidate();
        r.remote()
    });
    refused(h, READ_WRITE, (true, true), |p, r| {
        let gone = p.b.register(r.span(), READ_WRITE);
        gone.remote()
    });
}

pub(super) fn an_unsignaled_fault_is_told(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_write {
        return;
    }
    let source = p.a.buffer(64);
    let remote = RemoteSpan { rkey: Rkey(12345), addr: 4096, len: 64 };
    let wr = p.a.write(qa, &[source.span().clone()], remote, false).expect("posted");
    expect_fault(h, p, wr);
}

/// A device that shares memory to be reached can do so only with memory that can be shared.
pub(super) fn only_shared_memory_is_registered(h: &mut Harness<'_>) {
    let p = h.pair();
    let attr = p.b.attr();
    for (make, is_shared) in [(Arena::shared as fn(usize) -> _, true), (Arena::new, false)] {
        let span = make(PAGE_BYTES).expect("memory").span(0, PAGE_BYTES);
        let is_taken = p.b.device.register(span, READ_WRITE).is_ok();
        assert_eq!(is_taken, is_shared || !attr.shared_memory, "shared: {is_shared}");
    }
}

/// A page is given back while it is registered. A device that pins goes on with the old one, any
/// other finds the new one; both keep the page beside it.
pub(super) fn registration_pins_pages(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    let make = if attr.shared_memory { Arena::shared } else { Arena::new };
    let arena = make(2 * PAGE_BYTES).expect("memory");
    let whole = arena.span(0, arena.len());
    let region = p.b.register(&whole, READ_WRITE);
    let (before, written) = (pattern(1, PAGE_BYTES), pattern(2, 2 * PAGE_BYTES));
    whole.copy_from(0, &before);
    if arena.discard_pinned(0, PAGE_BYTES).is_err() {
        // Pages that the system does not take back stay where they are.
        return;
    }
    if attr.rdma_read {
        let into = p.a.buffer(PAGE_BYTES);
        let wr = p.a.read(qa, &[into.span().clone()], region.part(0, PAGE_BYTES)).expect("posted");
        assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
        let is_old = bytes(into.span()) == before;
        assert_eq!(is_old, attr.registration_pins, "a read found the old page: {is_old}");
    }
    if attr.rdma_write {
        let source = p.a.filled(2, 2 * PAGE_BYTES);
        let wr = p.a.write(qa, &[source.span().clone()], region.remote(), true).expect("posted");
        assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
        fence(h, &mut p);
        let found = bytes(&whole);
        assert!(found[PAGE_BYTES..] == written[PAGE_BYTES..], "wrong data in the page beside");
        let is_seen = found[..PAGE_BYTES] == written[..PAGE_BYTES];
        assert_eq!(!is_seen, attr.registration_pins, "a write is seen: {is_seen}");
    }
    if attr.local_registration {
        // A receive by the local key.
        let recv = p.b.recv(&[whole.part(0, 64)]).expect("posted");
        let sent = p.a.send(qa, &[0xa5; 64], &[], true).expect("posted");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        let is_seen = bytes(&whole.part(0, 64)) == [0xa5; 64];
        assert_eq!(!is_seen, attr.registration_pins, "a message is seen: {is_seen}");
    }
}
