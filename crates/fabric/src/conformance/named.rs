//! Reads of what has a name: the target says what that is, or that it is nothing.

use super::Harness;
use super::pair::{Pair, bytes, pattern};
use crate::error::PostError;
use crate::mem::Span;
use crate::types::{
    NAME_BYTES_MAX, NAMED_READ_BYTES_MAX, NamedAnswer, NamedAsk, SgList, Status, WrId,
};

/// Connected, and `b` serves; `None`: devices know no names.
fn serving(h: &mut Harness<'_>) -> Option<Pair> {
    let mut p = h.pair();
    let knows = p.a.attr().verifies_names;
    assert_eq!(p.b.engine.serve_named(), knows);
    knows.then_some(p)
}

/// What comes to `b`.
fn asked(h: &mut Harness<'_>, p: &mut Pair) -> NamedAsk {
    let mut asked = None;
    h.wait(p, "a named read", |p| {
        asked = p.b.engine.next_named();
        asked.is_some()
    });
    asked.expect("waited for")
}

pub(super) fn what_is_named_is_read(h: &mut Harness<'_>) {
    let Some(mut p) = serving(h) else { return };
    let (qa, qb) = (p.qa, p.qb);
    let most = NAMED_READ_BYTES_MAX;
    // Bytes that are asked for, and that there are.
    for (round, (wanted, there)) in
        [(4096, 4096), (4096, 100), (1, 1), (5001, 0), (0, 0), (most, most)].iter().enumerate()
    {
        let into = p.a.buffer(wanted + 2);
        let source = p.b.filled(round as u64, most);
        let (to, half) = (into.span().part(1, *wanted), wanted / 3);
        let list = [to.part(0, half), to.part(half, wanted - half)];
        let name = pattern(99, [1, 40, NAME_BYTES_MAX][round % 3]);
        let wr = p.a.named_read(qa, &list, &name, u64::MAX - round as u64).expect("posted");
        let ask = asked(h, &mut p);
        let says = (ask.queue_pair, ask.name(), ask.offset, ask.len as usize);
        assert_eq!(says, (qb, &name[..], u64::MAX - round as u64, *wanted));
        let from = source.span().part(0, *there);
        let data = [from.part(0, there / 2), from.part(there / 2, there - there / 2)];
        p.b.answer(&ask, Some(&data)).expect("answered");
        let done = h.finish_a(&mut p, wr);
        assert_eq!((done.status, done.byte_len as usize), (Status::Success, *there));
        let mut expected = vec![0; wanted + 2];
        expected[1..=*there].copy_from_slice(&pattern(round as u64, most)[..*there]);
        assert!(bytes(into.span()) == expected, "wrong data, or more touched: {wanted} {there}");
        h.wait(&mut p, "the end of the answer", |p| p.b.open() == 0);
        drop((data, from, list, to));
        p.b.take_back(source);
        p.a.take_back(into);
    }
}

pub(super) fn a_name_that_is_refused_ends_nothing(h: &mut Harness<'_>) {
    for serves in [true, false] {
        let mut p = h.pair();
        let qa = p.qa;
        if !p.a.attr().verifies_names {
            return;
        }
        if serves {
            assert!(p.b.engine.serve_named());
        }
        let into = p.a.buffer(500);
        for _ in 0..3 {
            let list = [into.span().clone()];
            let refused = p.a.named_read(qa, &list, b"nothing", 0).expect("posted");
            let next = p.a.named_read(qa, &list, b"neither", 0).expect("posted");
            for _ in 0..2 {
                if serves {
                    let ask = asked(h, &mut p);
                    p.b.answer(&ask, None).expect("refused");
                }
            }
            for wr in [refused, next] {
                assert_eq!(h.finish_a(&mut p, wr).status, Status::RemoteAccess);
            }
            h.ping(&mut p);
        }
        assert!(bytes(into.span()) == [0; 500], "memory touched");
        assert!(p.a.events.is_empty() && p.b.events.is_empty() && p.b.completions.is_empty());
        assert!(p.b.engine.next_named().is_none());
    }
}

pub(super) fn names_have_limits(h: &mut Harness<'_>) {
    let Some(mut p) = serving(h) else { return };
    let qa = p.qa;
    let into = p.a.buffer(NAMED_READ_BYTES_MAX + 1);
    let (all, one) = ([into.span().clone()], [into.span().part(0, 1)]);
    let long = [0; NAME_BYTES_MAX + 1];
    assert_eq!(p.a.named_read(qa, &one, &long, 0), Err(PostError::TooLarge));
    assert_eq!(p.a.named_read(qa, &all, b"n", 0), Err(PostError::TooLarge));
    // As many as the send queue takes, and then more again.
    let mut posted = 0;
    let mut last = WrId(0);
    while let Ok(wr) = p.a.named_read(qa, &one, b"n", 0) {
        (posted, last) = (posted + 1, wr);
        assert!(posted <= p.a.attr().send_queue_depth, "more than the queue takes");
    }
    assert!(posted > 0);
    for _ in 0..posted {
        let ask = asked(h, &mut p);
        p.b.answer(&ask, None).expect("refused");
    }
    h.wait(&mut p, "all of them", |p| p.a.open() == 0);
    assert!(p.a.completions.iter().any(|done| done.wr_id == last));
    assert!(p.a.completions.drain(..).all(|done| done.status == Status::RemoteAccess));
    // An answer is no longer than what was asked for.
    let wr = p.a.named_read(qa, &one, b"n", 0).expect("posted");
    let (ask, source) = (asked(h, &mut p), p.b.filled(1, 2));
    assert_eq!(p.b.answer(&ask, Some(&[source.span().clone()])), Err(PostError::TooLarge));
    p.b.answer(&ask, Some(&[source.span().part(1, 1)])).expect("answered");
    assert_eq!(h.finish_a(&mut p, wr).status, Status::Success);
    assert_eq!(bytes(&one[0]), pattern(1, 2)[1..]);
}

/// Messages and tagged data both ways, and answers, refusals and short answers among each other.
pub(super) fn many_names_beside_messages(h: &mut Harness<'_>) {
    const ROUNDS: usize = 25;
    const LEN: usize = 3000;
    let Some(mut p) = serving(h) else { return };
    let (qa, qb, tags) = (p.qa, p.qb, p.a.attr().tag_match);
    let source = p.b.filled(7, 2 * LEN);
    let room = p.b.buffer(ROUNDS * 64);
    let into = p.a.buffer(ROUNDS * LEN);
    let at = |span: &Span, round: usize, len: usize| span.part(round * len, len);
    let tagged = p.a.buffer(ROUNDS * 1000);
    let mut reads = Vec::new();
    for round in 0..ROUNDS {
        p.b.recv(&[at(room.span(), round, 64)]).expect("posted");
        if tags && round % 3 != 2 {
            let data = [at(tagged.span(), round, 1000)];
            p.a.tagged_recv(qa, 500 + round as u64, None, &data).expect("posted");
        }
        p.a.send(qa, &[round as u8; 20], &[], false).expect("posted");
        let data = [at(into.span(), round, LEN)];
        reads.push(p.a.named_read(qa, &data, &[round as u8; 50], round as u64).expect("posted"));
        // Until the peer has room again.
        h.wait(&mut p, "the message", |p| p.b.completions.len() > round);
    }
    for _ in 0..ROUNDS {
        let ask = asked(h, &mut p);
        let round = ask.offset as usize;
        if tags && round % 3 != 2 {
            let data = [source.span().part(round, 1000)];
            let tag = 500 + round as u64;
            p.b.tagged_send(qb, tag, b"", &data, false).expect("posted");
        }
        let data = [source.span().part(round, LEN / (1 + round % 4))];
        p.b.answer(&ask, (round % 5 != 4).then_some(&data[..])).expect("answered");
    }
    h.wait(&mut p, "all", |p| p.a.completions.len() >= ROUNDS + if tags { 17 } else { 0 });
    let all = pattern(7, 2 * LEN);
    for (round, wr) in reads.into_iter().enumerate() {
        let done = p.a.take(wr).expect("it came");
        let got = bytes(&at(into.span(), round, LEN));
        if round % 5 == 4 {
            assert_eq!(done.status, Status::RemoteAccess);
            continue;
        }
        let len = LEN / (1 + round % 4);
        assert_eq!((done.status, done.byte_len as usize), (Status::Success, len), "{round}");
        assert!(got[..len] == all[round..round + len], "wrong data of {round}");
        if tags && round % 3 != 2 {
            let came = bytes(&at(tagged.span(), round, 1000));
            assert!(came == all[round..round + 1000], "wrong tagged data of {round}");
        }
    }
    assert!(p.a.completions.drain(..).all(|done| done.status == Status::Success));
    h.ping(&mut p);
}

/// When the end of an answer is told, those before it have left, too.
pub(super) fn the_last_answer_speaks_for_all(h: &mut Harness<'_>) {
    const READS: usize = 12;
    let Some(mut p) = serving(h) else { return };
    let qa = p.qa;
    let into = p.a.buffer(READS * 5000);
    for read in 0..READS {
        let data = [into.span().part(read * 5000, 5000)];
        p.a.named_read(qa, &data, b"n", read as u64).expect("posted");
    }
    let (mut sources, mut rest) = (Vec::new(), Vec::new());
    for read in 0..READS {
        let ask = asked(h, &mut p);
        let source = p.b.filled(ask.offset, 5000);
        let data = [source.span().clone()];
        match read < READS / 2 {
            true => p.b.answer_silently(&ask, &data).expect("answered"),
            false => rest.push(NamedAnswer { id: ask.id, data: SgList::from_iter(data) }),
        }
        sources.push(source);
    }
    p.b.answer_all(p.qb, &mut rest).expect("answered");
    assert!(rest.is_empty(), "what was posted is taken");
    h.wait(&mut p, "the end of the last answer", |p| !p.b.completions.is_empty());
    // Nothing of them is read any more.
    sources.into_iter().for_each(|source| p.b.take_back(source));
    h.wait(&mut p, "all", |p| p.a.completions.len() == READS);
    for read in 0..READS {
        let got = bytes(&into.span().part(read * 5000, 5000));
        assert!(got == pattern(read as u64, 5000), "wrong data of {read}");
    }
}

pub(super) fn a_named_read_ends_with_its_queue_pair(h: &mut Harness<'_>) {
    // Who ends it, and when: before it is answered, while the answer is under way.
    for case in 0..4 {
        let Some(mut p) = serving(h) else { return };
        let (by_a, answered) = (case % 2 == 0, case >= 2);
        let (qa, qb) = (p.qa, p.qb);
        let (into, source) =
            (p.a.buffer(NAMED_READ_BYTES_MAX), p.b.filled(1, NAMED_READ_BYTES_MAX));
        let reads = 16.min(p.a.attr().send_queue_depth);
        for _ in 0..reads {
            p.a.named_read(qa, &[into.span().clone()], b"n", 0).expect("posted");
        }
        let first = asked(h, &mut p);
        if answered {
            p.b.answer(&first, Some(&[source.span().clone()])).expect("answered");
            p.b.engine.ring();
        }
        match by_a {
            true => p.a.engine.disconnect(qa),
            false => p.b.engine.disconnect(qb),
        }
        h.wait(&mut p, "end", |p| p.a.is_gone(qa) && p.b.is_gone(qb));
        assert_eq!((p.a.open(), p.b.open()), (0, 0), "case {case}");
        let told = p.a.completions.drain(..).chain(p.b.completions.drain(..));
        let flushed = told.filter(|done| done.status == Status::Flushed).count();
        assert!(flushed >= reads - 1, "case {case}: {flushed} of {reads}");
        assert!(p.b.engine.next_named().is_none(), "of a queue pair that is gone");
        assert_eq!(p.b.answer(&first, None), Err(PostError::NotConnected));
        p.a.take_back(into);
        p.b.take_back(source);
    }
}
