//! Streams cut anywhere, and streams of nonsense.

use super::*;

fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Answers in many orders and lengths, between other messages and in any pieces: all arrive
/// whole, predicted or not.
#[test]
fn predictions_change_nothing_but_the_number_of_calls() {
    let mut calls = [0, 0];
    for round in 0..60 {
        let orderly = round / 2 % 3 == 0;
        let connected = round % 2 == 0;
        let mut random = random_numbers(round / 2);
        let mut bench = Bench::that_connected(connected);
        let mut expected = Vec::new();
        for batch in 0..8u64 {
            let mut messages = Vec::new();
            for index in 0..16u64 {
                let tag = batch * 16 + index;
                let room = [4096, 4096, 5000, 100, 0, 65_536, 100_000]
                    [if orderly { 0 } else { (random() % 7) as usize }];
                let place = (index * 65_536 / 2) as usize + (random() % 100) as usize;
                // Large ones are put where the others are not.
                let data = if room > 20_000 {
                    Arena::new(room).expect("arena").span(0, room)
                } else {
                    bench.arena.span(place, room)
                };
                let split = room / 3;
                let header = bench.arena.span((1 << 20) - 4096 + index as usize * 64, 64);
                let list = [data.part(0, split), data.part(split, room - split)];
                bench.tagged_recv(tag, Some(header.clone()), &list);
                let len = if orderly || random().is_multiple_of(2) { room } else { room / 2 };
                let bytes = pattern(len, tag as u8);
                let head = pattern(if orderly { 32 } else { (random() % 64) as usize }, 77);
                messages.push(tagged(tag, &head, &bytes, random().is_multiple_of(2)).concat());
                expected.push((tag, header, head, data, bytes));
                if !orderly && random().is_multiple_of(4) {
                    let buffer = bench.arena.span(900_000, 10);
                    bench.engine.post_recv(WrId(9999), smallvec![buffer]).expect("recv");
                    messages.push(send(b"between"));
                }
            }
            if !orderly && random().is_multiple_of(2) {
                let count = messages.len();
                (0..5).for_each(|_| {
                    messages.swap(random() as usize % count, random() as usize % count);
                });
            }
            let step = [20_000, 33, 4136, 1_000_000][(random() % 4) as usize];
            let before = bench.engine.system_calls();
            bench.say(&messages.concat(), if orderly { 1_000_000 } else { step });
            if orderly {
                calls[usize::from(connected)] += bench.engine.system_calls() - before;
            }
            for _ in 0..100 {
                bench.engine.poll(&mut bench.completions, 100);
            }
            for (tag, header, head, data, bytes) in expected.drain(..) {
                let at = bench.completions.iter().position(|done| done.wr_id == WrId(tag));
                let done = bench.completions.remove(at.expect("a completion"));
                assert_eq!(done.status, Status::Success);
                let lens = (done.header_len as usize, done.byte_len as usize);
                assert_eq!(lens, (head.len(), bytes.len()));
                assert!(
                    bytes_of(&data)[..bytes.len()] == bytes
                        && bytes_of(&header)[..head.len()] == head
                );
            }
            assert!(bench.completions.drain(..).all(|done| done.byte_len == 7));
            assert!(bench.is_alive());
        }
    }
    let [without, with] = calls;
    assert!(with * 2 < without, "{with} calls with predictions, {without} without");
}

/// Frames that are nearly right, among such as are asked for: tagged messages 1 to 7, and answers to four named reads.
fn hostile_frames(random: &mut impl FnMut() -> u64) -> Vec<u8> {
    let mut words = Vec::new();
    let (mut tag, mut answer) = (1, 0);
    for _ in 0..random() % 16 {
        let total = [0, 100, 5000, 5000, 5000, 30_000, 120_000][(random() % 7) as usize];
        let mut header = FrameHeader {
            payload_len: total.min(65_536),
            key: random() % 10,
            total,
            id: (random() % 4) as u32,
            header_len: [0, 3, 20, 60, 119][(random() % 5) as usize],
            ..FrameHeader::new(Kind::Send)
        };
        let kind = if random().is_multiple_of(3) { 12 } else { (random() % 14) as u8 };
        if matches!(kind, 4 | 12) && !random().is_multiple_of(4) {
            // A send without data, or a named read.
            (header.payload_len, header.total) = (0, total.min(65_536));
        }
        let mut head = header.encode();
        head[0] = kind;
        if random().is_multiple_of(2) {
            head[8..10].copy_from_slice(&[0xfe, 0xed]);
            head[16] = random() as u8;
        }
        if !random().is_multiple_of(5) {
            // In the order of asking.
            header = match 2 * answer < tag {
                true => FrameHeader { id: answer, ..FrameHeader::new(Kind::NamedResponse) },
                false => FrameHeader {
                    key: u64::from(tag),
                    header_len: 20 - u16::from(random().is_multiple_of(8)),
                    ..FrameHeader::new(Kind::Tagged)
                },
            };
            let is_named = header.kind == Kind::NamedResponse;
            (tag, answer) = (tag + u32::from(!is_named), answer + u32::from(is_named));
            let len = if random().is_multiple_of(6) { 100 } else { 5000 };
            header = FrameHeader { payload_len: len, total: len, ..header };
            head = header.encode();
        }
        if random().is_multiple_of(8) {
            head[(random() % 32) as usize] = random() as u8;
        }
        if let Ok(decoded) = FrameHeader::decode(&head) {
            header = decoded;
        }
        crate::fuzzing::decode(&head);
        words.extend_from_slice(&head);
        words.extend((0..header.body_len()).map(|at| (at as u64 % 251 + random() % 2) as u8));
    }
    words
}

#[test]
fn a_hostile_stream_does_no_harm() {
    let mut random = random_numbers(0);
    let (mut received, mut asked) = (0, 0);
    for _ in 0..300 {
        let words = hostile_frames(&mut random);
        let step = [700, 5032, 5052, 12_000, 1 << 20][(random() % 5) as usize];
        let came = crate::fuzzing::receive(&words, step);
        (received, asked) = (received + came.0, asked + came.1);
    }
    assert!(received > 600 && asked > 20, "{received} messages, {asked} named reads");
}
