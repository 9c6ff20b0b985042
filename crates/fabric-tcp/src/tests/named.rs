//! Named reads from and to a peer that writes frames by hand.

use super::*;
use crate::frame::FAULT_NAMED;
use crate::requests::SEND_QUEUE_DEPTH;
use dafs_fabric::NamedAnswer;

fn ask(id: u32, name: &[u8], total: u32) -> Vec<u8> {
    let header_len = name.len() as u16;
    let header =
        FrameHeader { header_len, id, total, addr: 9, ..FrameHeader::new(Kind::NamedRead) };
    frame(header, name)
}

fn answer(id: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    let kind = FrameHeader::new(Kind::NamedResponse);
    frame(FrameHeader { id, payload_len: len, total: len, ..kind }, data)
}

#[test]
fn a_name_may_come_in_pieces() {
    for step in [1, 31, 33, 50, usize::MAX] {
        let mut bench = Bench::new();
        assert!(bench.engine.serve_named());
        let words = [ask(0, &[7; 64], 5), ask(1, b"x", 65536), ask(2, b"", 0)].concat();
        bench.say(&words, step);
        for (id, name, len) in [(0, &[7; 64][..], 5), (1, b"x", 65536), (2, b"", 0)] {
            let asked = bench.engine.next_named().expect("it came");
            assert_eq!((asked.id, asked.name(), asked.len, asked.offset), (id, name, len, 9));
        }
        assert!(bench.engine.next_named().is_none() && bench.is_alive());
    }
}

#[test]
fn who_asks_without_taking_answers_is_not_one_of_ours() {
    let mut bench = Bench::new();
    bench.engine.serve_named();
    for id in 0..SEND_QUEUE_DEPTH as u32 {
        bench.say(&ask(id, b"n", 1), usize::MAX);
    }
    assert!(bench.is_alive());
    // Those that are answered, and do not leave, count.
    let first = bench.engine.next_named().expect("it came");
    bench.say(&ask(SEND_QUEUE_DEPTH as u32, b"n", 1), usize::MAX);
    assert_eq!(bench.reason(), "peer violated the protocol: too many reads under way");
    let mut data = smallvec![bench.arena.span(0, 1)];
    let answered =
        bench.engine.answer_named(first.queue_pair, WrId(1), first.id, Some((&mut data, true)));
    assert!(answered.is_err() && bench.engine.next_named().is_none());
}

#[test]
fn answers_are_in_the_order_of_asking() {
    let mut bench = Bench::new();
    bench.engine.serve_named();
    bench.say(&[ask(5, b"a", 4), ask(6, b"b", 4)].concat(), usize::MAX);
    let [first, second] = [(); 2].map(|()| bench.engine.next_named().expect("it came"));
    let mut data = smallvec![bench.arena.span(0, 4)];
    let answer = |bench: &mut Bench, id: u32, data: Option<&mut SgList>| {
        bench.engine.answer_named(bench.queue_pair, WrId(7), id, data.map(|data| (data, true)))
    };
    assert!(answer(&mut bench, second.id, Some(&mut data)).is_err());
    answer(&mut bench, first.id, None).expect("in order");
    answer(&mut bench, second.id, Some(&mut data)).expect("in order");
    let heard = bench.hear();
    let head = FrameHeader::decode(heard.first_chunk().expect("a frame")).expect("a frame");
    assert_eq!((head.kind, head.key, head.id), (Kind::Fault, FAULT_NAMED, 5));
    let head = FrameHeader::decode(heard[32..].first_chunk().expect("a frame")).expect("one more");
    assert_eq!((head.kind, head.id, head.total), (Kind::NamedResponse, 6, 4));
    assert_eq!(heard.len(), 68);
    assert_eq!(bench.statuses(), [(7, Status::Success)]);
}

/// More than the kernel takes at once, with tagged messages and refusals among them.
#[test]
fn answers_leave_in_parts() {
    const READS: u32 = 200;
    let mut bench = Bench::new();
    bench.engine.serve_named();
    let len = |id: u32| 65536 - 977 * (id as usize % 5);
    let asks: Vec<_> = (0..READS).flat_map(|id| ask(id, b"n", 65536)).collect();
    bench.say(&asks, usize::MAX);
    let whole = bench.arena.span(0, 65536);
    whole.copy_from(0, &pattern());
    let (mut answers, mut told) = (Vec::new(), Vec::new());
    for id in 0..READS {
        let (qp, number) = (bench.queue_pair, WrId(id.into()));
        // An answer of two pieces begins and ends as one of one does.
        let (first, rest) = (whole.part(0, 100), whole.part(100, len(id) - 100));
        let data =
            if id % 3 == 1 { smallvec![first, rest] } else { smallvec![whole.part(0, len(id))] };
        if id % 7 != 6 {
            answers.push(NamedAnswer { id, data });
        }
        if id % 4 == 3 || id % 7 == 6 {
            let last = answers.last().map(|answer| WrId(answer.id.into()));
            told.extend(last.map(|last| (last.0, Status::Success)));
            let numbers = (WrId(9999), last.unwrap_or(number));
            bench.engine.answer_all_named(qp, numbers, &mut answers, true).expect("in order");
        }
        if id % 7 == 6 {
            bench.engine.answer_named(qp, number, id, None).expect("in order");
        }
        if id % 50 == 49 {
            let data = &mut smallvec![whole.part(0, 5000)];
            bench.engine.post_tagged_send(qp, number, Tag(1), b"", data, false).expect("posted");
        }
    }
    let heard = bench.hear();
    let (mut rest, mut next) = (&heard[..], 0);
    while let Some(head) = rest.first_chunk() {
        let head = FrameHeader::decode(head).expect("a frame");
        let (body, after) = rest[32..].split_at(head.payload_len as usize);
        assert!(body == &pattern()[..body.len()], "wrong data of {next}");
        rest = after;
        if head.kind == Kind::Tagged {
            continue;
        }
        let is_refused = next % 7 == 6;
        let expected = if is_refused { (Kind::Fault, 0) } else { (Kind::NamedResponse, len(next)) };
        assert_eq!((head.id, head.kind, body.len()), (next, expected.0, expected.1));
        next += 1;
    }
    assert_eq!(next, READS);
    assert_eq!(bench.statuses(), told);
}

fn pattern() -> Vec<u8> {
    (0..65536_u32).map(|at| ((at * 31) >> 3) as u8).collect()
}

#[test]
fn answers_that_were_not_asked_for_end_the_connection() {
    let wrong = [
        (answer(1, b"abc"), "answer to another named read"),
        (answer(0, b"abcd"), "answer longer than asked for"),
    ];
    for (words, reason) in wrong {
        // As predicted, and not.
        for connected in [false, true] {
            let mut bench = Bench::that_connected(connected);
            let mut into = smallvec![bench.arena.span(0, 3)];
            let qp = bench.queue_pair;
            bench.engine.post_named_read(qp, WrId(1), &mut into, b"n", 0).expect("posted");
            bench.hear();
            bench.say(&words, usize::MAX);
            assert_eq!(bench.reason(), format!("peer violated the protocol: {reason}"));
            assert_eq!(bench.statuses(), [(1, Status::Flushed)]);
        }
    }
}

/// Answers and tagged messages that come as predicted, and some that do not, in pieces of all sizes.
#[test]
fn answers_land_whatever_was_predicted() {
    for step in [1, 100, 4096 + 32, 5000, usize::MAX] {
        let mut bench = Bench::that_connected(true);
        let qp = bench.queue_pair;
        let mut words = Vec::new();
        for i in 0..60u32 {
            let place = bench.arena.span(i as usize * 8192, 8192);
            let data = vec![i as u8 + 1; if i % 13 == 7 { 100 } else { 4096 }];
            if i % 4 == 3 {
                bench.tagged_recv(u64::from(i), Some(place.part(4096, 50)), &[place.part(0, 4096)]);
                words.extend(tagged(u64::from(i), &[9; 50], &data, true).concat());
            } else {
                let mut into = smallvec![place.part(0, 4096)];
                let wr = WrId(i.into());
                bench.engine.post_named_read(qp, wr, &mut into, b"n", 0).expect("posted");
                let id = i - (i / 4);
                match i % 11 {
                    10 => {
                        let fault = FrameHeader::new(Kind::Fault);
                        words.extend(frame(FrameHeader { id, key: FAULT_NAMED, ..fault }, b""));
                    }
                    _ => words.extend(answer(id, &data)),
                }
            }
        }
        bench.hear();
        bench.say(&words, step);
        for _ in 0..20 {
            bench.engine.poll(&mut bench.completions, 100);
        }
        assert!(bench.is_alive(), "step {step}");
        let done = std::mem::take(&mut bench.completions);
        assert_eq!(done.len(), 60, "step {step}");
        for (i, done) in done.iter().enumerate() {
            assert_eq!(done.wr_id, WrId(i as u64));
            let mut got = [0; 4096];
            bench.arena.span(i * 8192, 4096).copy_to(0, &mut got);
            let len = if i % 13 == 7 { 100 } else { 4096 };
            if i % 4 != 3 && i % 11 == 10 {
                assert_eq!(done.status, Status::RemoteAccess);
                continue;
            }
            let opcode = if i % 4 == 3 { Opcode::TaggedRecv } else { Opcode::NamedRead };
            assert_eq!((done.status, done.opcode), (Status::Success, opcode));
            assert_eq!(done.byte_len as usize, len);
            assert!(got[..len].iter().all(|byte| *byte == i as u8 + 1), "{i}, step {step}");
        }
    }
}
