//! Data of more than is done at once: with its message, in turns, and read past the caches.

use dafs_fabric::{Piece, RemoteSpan, ShortMessage};

use super::*;
use crate::queue_pair::{AT_ONCE_MAX, COPIED_MAX};

const READ_WRITE: Access = Access { remote_read: true, remote_write: true };

/// Bytes that tell where they are from.
fn pattern(arena: &Arc<Arena>, len: usize, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8 ^ seed).collect();
    arena.span(0, len).copy_from(0, &bytes);
    bytes
}

fn bytes(span: &Span) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.copy_to(0, &mut bytes);
    bytes
}

fn short(engine: &mut Box<dyn Engine>) -> Option<ShortMessage> {
    let mut message = ShortMessage::default();
    engine.poll(&mut Vec::new(), 8);
    engine.take_short(&mut message).then_some(message)
}

fn write(server: &mut Server, to: QueuePair, from: &Span, remote: RemoteSpan) {
    let (engine, data) = (&mut server.engine, &mut smallvec![from.clone()]);
    engine.post_rdma_write(to, WrId(6), data, remote, true).expect("posted");
    assert_eq!(server.finish(WrId(6)), Status::Success);
}

/// A part of what a region has.
fn part_of(region: &MemoryRegion, offset: usize, len: usize) -> RemoteSpan {
    let all = region.remote();
    RemoteSpan { addr: all.addr + offset as u64, len: len as u32, ..all }
}

/// At once or as work, from wherever it begins: the peer has it when it has the message.
#[test]
fn large_data_is_there_before_its_message() {
    let mut server = Server::new();
    let (_, far) = server.pair.expect("connected");
    assert!(server.honest.leave_short());
    let from = Arena::new(COPIED_MAX).expect("memory");
    for at_once in [false, true] {
        let target = Arena::shared(2 * COPIED_MAX).expect("memory").span(0, 2 * COPIED_MAX);
        let region = server.honest_device.register(target.clone(), READ_WRITE).expect("registered");
        for (start, offset, len) in
            [(0, 0, COPIED_MAX), (13, 4099, AT_ONCE_MAX + 1), (64, 63, COPIED_MAX - 77)]
        {
            let sent = pattern(&from, COPIED_MAX, len as u8);
            let remote = part_of(&region, offset, len);
            let pieces =
                [(start, 70_000.min(len)), (start + 70_000.min(len), len - 70_000.min(len))];
            let pieces = &pieces[..if pieces[1].1 == 0 { 1 } else { 2 }];
            server.poll();
            if at_once {
                let data: Vec<Piece<'_>> =
                    pieces.iter().map(|(at, len)| from.piece(*at, *len)).collect();
                // The file is in the socket the first time.
                write(&mut server, far, &from.span(0, 1), part_of(&region, 0, 1));
                assert!(server.engine.write_and_send(far, &data, remote, b"it is there"));
            } else {
                let mut data = pieces.iter().map(|(at, len)| from.span(*at, *len)).collect();
                let engine = &mut server.engine;
                engine.post_rdma_write(far, WrId(7), &mut data, remote, true).expect("posted");
                assert_eq!(server.finish(WrId(7)), Status::Success);
                let none = &mut smallvec![];
                server.engine.post_send(far, WrId(8), b"it is there", none, false).expect("posted");
            }
            server.poll();
            let told = wait("the message", || short(&mut server.honest));
            assert_eq!(&told.bytes[..told.len], b"it is there");
            let came = bytes(&target.part(offset, len));
            assert!(came == sent[start..start + len], "{at_once} {start} {offset} {len}");
        }
    }
}

/// A server reads it past its caches, which nobody notices.
#[test]
fn large_data_is_read_as_it_is() {
    let mut server = Server::new();
    let (_, far) = server.pair.expect("connected");
    let source = Arena::shared(COPIED_MAX).expect("memory");
    let sent = pattern(&source, COPIED_MAX, 5);
    let span = source.span(0, COPIED_MAX);
    let region = server.honest_device.register(span, READ_WRITE).expect("registered");
    let into = Arena::new(2 * COPIED_MAX).expect("memory");
    for (start, offset, len) in [(0, 0, COPIED_MAX), (5, 9, AT_ONCE_MAX + 3), (1, 4096, 500_000)] {
        let mut parts =
            smallvec![into.span(offset, 40_000), into.span(COPIED_MAX + offset, len - 40_000)];
        let remote = part_of(&region, start, len);
        server.engine.post_rdma_read(far, WrId(9), &mut parts, remote, false).expect("posted");
        assert_eq!(server.finish(WrId(9)), Status::Success);
        let mut came = bytes(&into.span(offset, 40_000));
        came.extend(bytes(&into.span(COPIED_MAX + offset, len - 40_000)));
        assert!(came == sent[start..start + len], "{start} {offset} {len}");
    }
}

/// What goes at once between two polls is bounded, and who is sent so much had its turn.
#[test]
fn large_data_goes_in_turns() {
    let mut server = Server::new();
    let busy = server.pair.expect("connected");
    server.connect_honest();
    let other = server.pair.expect("connected");
    assert!(server.engine.leave_short());
    let target = Arena::shared(COPIED_MAX).expect("memory").span(0, COPIED_MAX);
    let region = server.honest_device.register(target, READ_WRITE).expect("registered");
    let from = Arena::new(COPIED_MAX).expect("memory");
    // Its file is in the socket.
    write(&mut server, busy.1, &from.span(0, 1), part_of(&region, 0, 1));
    let say = |server: &mut Server, near, text: &[u8]| {
        let none = &mut smallvec![];
        server.honest.post_send(near, WrId(2), text, none, false).expect("posted");
    };
    for _ in 0..9 {
        say(&mut server, busy.0, b"much, please");
    }
    say(&mut server, other.0, b"a word");
    let (mut message, mut polls, mut answered) = (ShortMessage::default(), 0, 0);
    let heard = wait("turn of the other one", || {
        server.poll();
        polls += 1;
        let before = answered;
        while server.engine.take_short(&mut message) {
            if message.queue_pair == other.1 {
                return Some(answered);
            }
            let data = [from.piece(0, COPIED_MAX)];
            let remote = region.remote();
            assert!(server.engine.write_and_send(busy.1, &data, remote, b"there"));
            assert!(!server.engine.write_and_send(busy.1, &data, remote, b"more"), "too much");
            answered += 1;
        }
        assert!(answered <= before + 1, "two answers of so much in one turn");
        None
    });
    assert!(heard <= 1, "behind {heard} answers to another one, and {polls} polls");
}
