//! What saves steps where a device has it, and is refused without a trace where it does not.

use super::Harness;
use super::pair::{Pair, READ_WRITE, bytes, pattern};
use crate::mem::{Arena, PAGE_BYTES, Span};
use crate::types::{Opcode, RemoteSpan, Rkey, SHORT_MESSAGE_BYTES, ShortMessage, Status, WrId};

/// The peer hears of the data when it is there, and the memory is the caller's again at once.
pub(super) fn a_write_and_a_send_go_together(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let (qa, attr) = (p.qa, p.a.attr());
    if !attr.rdma_write || !attr.write_before_send {
        return;
    }
    let large = attr.bulk_bytes_max.min(300_000);
    let (target, message) = (p.b.buffer(large), p.b.buffer(64));
    let region = p.b.register(target.span(), READ_WRITE);
    for round in 0..30 {
        let len = if round % 3 == 2 { large } else { 5000.min(large) };
        let source = p.a.filled(round, len);
        let recv = p.b.recv(&[message.span().clone()]).expect("posted");
        let (first, rest) = (round as usize % 3 * 100, region.part(0, len));
        let pieces = [source.span().part(0, first), source.span().part(first, len - first)];
        let pieces = &pieces[usize::from(first == 0)..];
        let data: Vec<_> = pieces.iter().filter_map(Span::piece).collect();
        if !p.a.engine.write_and_send(qa, &data, rest, b"it is there") {
            p.a.write(qa, pieces, rest, false).expect("posted");
            p.a.send(qa, b"it is there", &[], false).expect("posted");
        }
        let done = h.finish_b(&mut p, recv);
        assert_eq!((done.status, done.byte_len), (Status::Success, 11));
        let came = bytes(&target.span().part(0, len));
        assert!(came == pattern(round, len), "the send came first");
        assert_eq!(&bytes(message.span())[..11], b"it is there");
    }
    assert!(p.a.completions.is_empty(), "a completion of what has none");
}

/// What may not be written is not sent either, and the connection lives.
pub(super) fn a_refused_write_sends_nothing(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    if !p.a.attr().rdma_write {
        return;
    }
    let (source, target) = (p.a.filled(1, 64), p.b.buffer(64));
    let region = p.b.register(target.span(), READ_WRITE);
    let right = region.remote();
    let wrong = [
        RemoteSpan { rkey: Rkey(right.rkey.0 ^ 1), ..right },
        RemoteSpan { addr: right.addr + 1, ..right },
        RemoteSpan { len: 63, ..right },
        RemoteSpan { len: 65, ..right },
    ];
    for remote in wrong {
        let data = [source.span().piece().expect("memory")];
        assert!(!p.a.engine.write_and_send(qa, &data, remote, b"no"), "{remote:?}");
    }
    h.settle(&mut p);
    assert!(p.a.completions.is_empty() && p.a.events.is_empty() && p.b.events.is_empty());
    assert!(bytes(target.span()).iter().all(|byte| *byte == 0), "memory touched");
    h.ping(&mut p);
}

fn say(h: &mut Harness<'_>, p: &mut Pair, recv: WrId, text: &[u8]) {
    let qa = p.qa;
    p.a.send(qa, text, &[], false).expect("posted");
    let done = h.finish_b(p, recv);
    assert_eq!((done.status, done.byte_len as usize), (Status::Success, text.len()));
}

/// A receive that is posted again has the memory that it had.
pub(super) fn a_receive_is_posted_again(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let arena = Arena::new(PAGE_BYTES).expect("memory");
    let none = crate::types::Access { remote_read: false, remote_write: false };
    let needs = p.b.attr().local_registration;
    let region = needs.then(|| p.b.register(&arena.span(0, PAGE_BYTES), none));
    let parts = [arena.span(0, 16), arena.span(100, 100)];
    let mut recv = p.b.recv(&parts).expect("posted");
    for round in 0..20u8 {
        say(h, &mut p, recv, &[round; 40]);
        let got = [bytes(&parts[0]), bytes(&parts[1])].concat();
        assert_eq!(got[..40], [round; 40], "elsewhere, round {round}");
        assert!(!p.b.recv_again(WrId(u64::MAX)), "of another number");
        if round % 8 == 7 {
            // Later, it may be forgotten.
            (0..3).for_each(|_| p.poll());
        }
        if !p.b.recv_again(recv) {
            recv = p.b.recv(&parts).expect("posted");
        }
    }
    // Nothing is posted there any more.
    say(h, &mut p, recv, b"the last one");
    drop(region);
}

/// Short messages may stay to be taken without a receive. All come in their order, whichever way.
pub(super) fn short_messages_come_in_order(h: &mut Harness<'_>) {
    let mut p = h.pair();
    let qa = p.qa;
    p.b.engine.leave_short();
    let lens = [1, SHORT_MESSAGE_BYTES, 56, SHORT_MESSAGE_BYTES + 1, 57, 500, 64, 0];
    for round in 0..30 {
        let mut sent = Vec::new();
        let receives: Vec<_> = (0..lens.len())
            .map(|_| {
                let buffer = p.b.buffer(512);
                let wr_id = p.b.recv(&[buffer.span().clone()]).expect("posted");
                (wr_id, buffer)
            })
            .collect();
        for (number, len) in lens.into_iter().enumerate() {
            sent.push(pattern(round * 8 + number as u64, len));
            p.a.send(qa, &sent[number], &[], false).expect("posted");
        }
        let mut got = Vec::new();
        h.wait(&mut p, "messages", |p| {
            while let Some(done) = p.b.take_opcode(Opcode::Recv) {
                let receive = receives.iter().find(|(wr_id, _)| *wr_id == done.wr_id);
                let memory = bytes(receive.expect("of this round").1.span());
                got.push(memory[..done.byte_len as usize].to_vec());
            }
            let mut short = ShortMessage::default();
            while p.b.engine.take_short(&mut short) {
                assert_eq!(short.queue_pair, p.qb);
                got.push(short.bytes[..short.len].to_vec());
            }
            got.len() == sent.len()
        });
        assert!(got == sent, "round {round}");
        // What was not taken is filled by other messages.
        let left = receives.iter().filter(|(wr_id, _)| p.b.is_open(*wr_id)).count();
        for _ in 0..left {
            p.a.send(qa, &[7; 400], &[], false).expect("posted");
            h.wait(&mut p, "a message", |p| p.b.take_opcode(Opcode::Recv).is_some());
        }
    }
}
