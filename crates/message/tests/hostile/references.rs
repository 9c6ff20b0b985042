//! Lies about memory that replies refer to.

use dafs_fabric::Readers;
use dafs_message::ReferenceQuota;

use super::*;

const LEN: usize = 64 << 10;
/// Of one: what is kept with it counts.
const TAKEN: usize = LEN;
const QUOTA: usize = 3 * TAKEN;

#[test]
fn lying_releases() {
    let release = |kind| Raw { releases: 1, reply_mode: INLINE, ..Raw::new(kind, 0) };
    let lies: [(&str, u8, Raw, usize); 7] = [
        ("not agreed, with a request", 6, release(REQUEST), 4),
        ("not agreed, by tags", 7, Raw { reply_mode: TAGGED, ..release(REQUEST) }, 4),
        ("not agreed, alone", 6, Raw { reply_mode: NONE, ..release(CREDIT) }, 4),
        ("of nothing", 14, Raw { reply_mode: NONE, ..release(CREDIT) }, 4),
        ("of nothing, with a request", 14, release(REQUEST), 4),
        ("of less bytes than it says", 14, Raw { reply_mode: NONE, ..release(CREDIT) }, 3),
        ("too many", 14, Raw { releases: 17, ..release(CREDIT) }, 68),
    ];
    for (what, flags, raw, bytes) in lies {
        let mut scene = Scene::new(flags);
        let quota = ReferenceQuota::new(QUOTA, QUOTA);
        scene.node.refer(scene.conn, quota.clone());
        scene.send(raw, &vec![0; bytes]);
        scene.assert_found(what);
        assert_eq!(quota.left(), QUOTA);
    }
}

#[test]
fn a_reply_that_refers_unasked() {
    for descriptors in [0, 1] {
        let mut s = Scene::new(14);
        let wire = s.ask(0);
        let raw = Raw { mode: REFER, reads: descriptors, data_len: 4096, ..Raw::new(REPLY, wire) };
        let mut remote = [0; 20];
        remote[17] = 16;
        s.send(raw, &remote[..20 * usize::from(descriptors)]);
        s.assert_found("a reply that refers to memory, unasked");
    }
}

/// Asks for what may be referred to, and has it answered so, or by a write.
fn ask_for(s: &mut Scene, data: SgList, room: &dafs_fabric::MemoryRegion, round: u32) -> Raw {
    let tag = slot((round % 9) as u16) | (round / 9);
    let raw = Raw {
        flags: MAY_REFER,
        reply_mode: WRITE,
        writes: 1,
        room: LEN as u32,
        ..Raw::new(REQUEST, tag)
    };
    let remote = room.remote();
    let mut descriptor = remote.rkey.0.to_le_bytes().to_vec();
    descriptor.extend(remote.addr.to_le_bytes());
    descriptor.extend(remote.len.to_le_bytes());
    s.send(raw, &descriptor);
    s.settle();
    let Some(Event::Request { id, .. }) = s.events.pop() else { panic!("{:?}", s.events) };
    s.completions.clear();
    s.node.reply(id, b"", data, u64::from(round));
    s.node.ring();
    s.settle();
    let got = s.completions.iter().find(|c| c.opcode == Opcode::Recv).expect("a reply");
    let at = got.wr_id.0 as usize;
    let mut first = [0; HEADER];
    s.memory.span(at * 4096, HEADER).copy_to(0, &mut first);
    s.engine.post_recv(got.wr_id, sg(s.memory.span(at * 4096, 4096))).unwrap();
    let word = |at: usize| u32::from_le_bytes(first[at..at + 4].try_into().unwrap());
    assert_eq!(first[0], REPLY);
    Raw { mode: first[1] & 15, reads: first[3], room: word(16), ..Raw::new(REPLY, tag) }
}

/// Of the peer's, for data that is sent.
fn room(s: &Scene) -> dafs_fabric::MemoryRegion {
    let room = Arena::shared(LEN).unwrap().span(0, LEN);
    let access = dafs_fabric::Access { remote_read: false, remote_write: true };
    s.device.register(room, access).unwrap()
}

fn sent(s: &Scene) -> Vec<u64> {
    let token = |event: &Event| match event {
        Event::ReplySent { token } => Some(*token),
        _ => None,
    };
    s.events.iter().filter_map(token).collect()
}

#[test]
fn who_lets_nothing_go_has_a_bounded_share_until_it_ends() {
    let mut s = Scene::new(14);
    let cache = Arena::for_readers(LEN, LEN, Readers::Own).unwrap().span(0, LEN);
    s.domain.let_peers_read(&cache).unwrap();
    let quota = ReferenceQuota::new(QUOTA, QUOTA);
    s.node.refer(s.conn, quota.clone());
    let room = room(&s);
    let mut numbers = Vec::new();
    for round in 0..5 {
        let reply = ask_for(&mut s, sg(cache.clone()), &room, round);
        assert_eq!(reply.mode, if round < 3 { REFER } else { WRITE }, "{round}");
        numbers.push(reply.room);
    }
    assert_eq!((quota.left(), sent(&s)), (0, vec![3, 4]));
    // One is let go, and there is room for one more.
    let alone = Raw { releases: 1, reply_mode: NONE, ..Raw::new(CREDIT, 0) };
    s.send(alone, &numbers[1].to_le_bytes());
    s.assert_alive();
    assert_eq!((quota.left(), sent(&s)), (TAKEN, vec![3, 4, 1]));
    assert_eq!(ask_for(&mut s, sg(cache.clone()), &room, 5).mode, REFER);
    // Twice is a lie; what is left ends with the connection.
    s.send(alone, &numbers[1].to_le_bytes());
    s.assert_found("a reference let go twice");
    let mut all = sent(&s);
    all.sort_unstable();
    assert_eq!((quota.left(), all), (QUOTA, vec![0, 1, 2, 3, 4, 5]));
}

/// Each piece of a reply is for who asks, or all of it is sent.
#[test]
fn a_reply_refers_to_nothing_of_which_a_part_is_for_others() {
    const UID: u32 = 7;
    let mut s = Scene::of_user(14, UID);
    let all = [Readers::User(UID), Readers::All, Readers::Own, Readers::User(UID + 1)];
    let memory = all.map(|readers| {
        let span = Arena::for_readers(LEN, LEN, readers).unwrap().span(0, LEN);
        s.domain.let_peers_read(&span).unwrap();
        span
    });
    let [his, of_all, own, of_another] = &memory;
    for (span, may) in [(his, true), (of_all, true), (own, false), (of_another, false)] {
        assert_eq!(s.node.readable_by(s.conn, span).is_some(), may);
    }
    let quota = ReferenceQuota::new(100 * TAKEN, 100 * TAKEN);
    s.node.refer(s.conn, quota);
    let room = room(&s);
    let replies: [(&[&Span], bool); 12] = [
        (&[his], true),
        (&[of_all], true),
        (&[his, of_all], true),
        (&[own], false),
        (&[of_another], false),
        (&[his, own], false),
        (&[his, of_another], false),
        (&[of_another, his], false),
        (&[of_all, his, of_another, of_all], false),
        (&[of_all, of_all, his, own], false),
        (&[of_all, his, of_all, his], true),
        (&[his, his, of_all], true),
    ];
    for (round, (parts, refers)) in (0..).zip(replies) {
        let len = (LEN / parts.len()) & !63;
        // Neighbours would be one piece.
        let part = |(at, span): (usize, &&Span)| span.part((at % 2) * (LEN - len), len);
        let data = parts.iter().enumerate().map(part).collect();
        let reply = ask_for(&mut s, data, &room, round);
        assert_eq!(reply.mode, if refers { REFER } else { WRITE }, "{round}");
        assert_eq!(usize::from(reply.reads), if refers { parts.len() } else { 0 }, "{round}");
    }
}
