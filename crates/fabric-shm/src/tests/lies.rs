//! Lies in rings, in tables, and about memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::sim::Rng;
use dafs_fabric::{RemoteSpan, Rkey};
use nix::fcntl::{FallocateFlags, fallocate};

use super::*;
use crate::memory_region::{ENTRY_WORDS, READ, TABLE_BYTES, WRITE};
use crate::ring::places;

/// Words of any value anywhere in the rings: the connection may end, and nothing else happens.
#[test]
fn scribbled_rings_end_their_own_connection_only() {
    const ROUNDS: u64 = 10_000;
    let mut server = Server::new();
    let mut rude = server.rude();
    let mut ends = 0;
    let sink = Arena::new(1 << 16).expect("memory").span(0, 1 << 16);
    for seed in 0..ROUNDS {
        let mut rng = Rng::new(seed);
        for _ in 0..8 {
            // Half of it where something is: the words of both sides, the first record.
            let offset = match rng.index(4) {
                0 => rng.index(8) * 128,
                1 => PAGE_BYTES + rng.index(64) * 64,
                _ => rng.index(MEMORY_BYTES / 8) * 8,
            };
            let value = match rng.index(4) {
                0 => 1 << 63 | rng.index(6000) as u64 | (rng.index(100) as u64) << 32,
                1 => rng.index(1 << 17) as u64,
                _ => rng.next(),
            };
            rude.store(offset / 8 * 8, value);
        }
        if rng.index(8) == 0 {
            for line in 0..(MEMORY_BYTES - PAGE_BYTES) / 64 {
                rude.store(PAGE_BYTES + line * 64, rng.next() >> rng.index(64));
            }
        }
        server.engine.post_recv(WrId(3), smallvec![sink.clone()]).expect("posted");
        let none = &mut smallvec![];
        let _ = server.engine.post_send(rude.queue_pair, WrId(4), b"hello", none, true);
        server.poll();
        server.completions.clear();
        let mut is_it = |event: QueuePairEvent| matches!(event, QueuePairEvent::Quiescent { queue_pair } if queue_pair == rude.queue_pair);
        let has_ended = server.events.drain(..).any(&mut is_it);
        if has_ended {
            ends += 1;
            rude = server.rude();
        }
        if seed % 500 == 0 {
            server.ping();
        }
    }
    assert!(ends > 100, "lies are found: {ends}");
    server.ping();
}

/// A table of the rude peer's, and a segment of 2 pages with number 5.
fn with_memory(server: &mut Server) -> (Rude, Span, Span) {
    let rude = server.rude();
    let shared = |bytes| Arena::shared(bytes).expect("memory").span(0, bytes);
    let (table, segment) = (shared(TABLE_BYTES), shared(2 * PAGE_BYTES));
    let file = |span: &Span| span.shared().expect("shared").file;
    rude.say(&Message::Table, &[file(&table).as_fd()]);
    rude.say(&Message::Segment(5), &[file(&segment).as_fd()]);
    (rude, table, segment)
}

fn entry(table: &Span, index: usize, words: [u64; 6]) -> u64 {
    let key = words[0] << 16 | index as u64;
    for (word, value) in [key].iter().chain(&words[1..]).enumerate() {
        table.write_message((index * ENTRY_WORDS + word) * 8, &value.to_le_bytes());
    }
    key
}

/// What is told of it is lost with its descriptor: whoever goes on would never reach that memory.
#[test]
fn memory_for_which_no_descriptor_is_left_ends_the_connection() {
    super::lingering::alone(has_no_descriptor_for_memory);
}

fn has_no_descriptor_for_memory() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let mut server = Server::new();
    let (rude, table, segment) = with_memory(&mut server);
    let ours = Arena::new(PAGE_BYTES).expect("memory").span(0, PAGE_BYTES);
    let reach = |server: &mut Server, number: u64| {
        let key = entry(&table, 1, [number, number, 0, 0, PAGE_BYTES as u64, READ | WRITE]);
        let remote = RemoteSpan { rkey: Rkey(key), addr: 0, len: PAGE_BYTES as u32 };
        let (qp, list) = (rude.queue_pair, &mut smallvec![ours.clone()]);
        server.engine.post_rdma_write(qp, WrId(number), list, remote, true).expect("posted");
        server.finish(WrId(number))
    };
    assert_eq!(reach(&mut server, 5), Status::Success);
    let file = segment.shared().expect("shared").file;
    rude.say(&Message::Segment(6), &[file.as_fd()]);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).expect("less");
    assert_eq!(reach(&mut server, 6), Status::Flushed);
    let reason = server.ended(rude.queue_pair);
    assert!(reason.contains("no descriptor is left"), "{reason}");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("as before");
    server.ping();
}

#[test]
fn tables_that_lie_are_access_faults() {
    let mut server = Server::new();
    let (rude, table, _segment) = with_memory(&mut server);
    let page = PAGE_BYTES as u64;
    let all = READ | WRITE;
    // Key, segment, offset, address, length, rights.
    let honest = [1, 5, 0, page, 2 * page, all];
    let lies = [
        [2, 5, u64::MAX - 8, page, 2 * page, all],
        [3, 5, page + 1, page, 2 * page, all],
        [4, 5, 0, 0, u64::MAX, all],
        [5, 5, u64::MAX, 0, u64::MAX, all],
        [6, 4, 0, page, 2 * page, all],
        [7, u64::MAX, 0, page, 2 * page, all],
        [8, 5, 0, page, 2 * page, 0],
        [9, 5, 0, u64::MAX, 2 * page, all],
        [10, 5, 0, page, page - 1, all],
    ];
    let ours = Arena::new(2 * PAGE_BYTES).expect("memory").span(0, 2 * PAGE_BYTES);
    let attempt = |server: &mut Server, words: [u64; 6], addr: u64, write: bool| {
        let key = entry(&table, words[0] as usize, words);
        let remote = RemoteSpan { rkey: Rkey(key), addr, len: page as u32 };
        let list = &mut smallvec![ours.part(0, PAGE_BYTES)];
        let (qp, wr) = (rude.queue_pair, WrId(100 + words[0]));
        match write {
            true => server.engine.post_rdma_write(qp, wr, list, remote, true),
            false => server.engine.post_rdma_read(qp, wr, list, remote, false),
        }
        .expect("posted");
        server.finish(wr)
    };
    for write in [true, false] {
        assert_eq!(attempt(&mut server, honest, page, write), Status::Success);
        for lie in lies {
            for addr in [page, 2 * page, 0, u64::MAX - 100] {
                let status = attempt(&mut server, lie, addr, write);
                let is_right = lie[0] == 3 && addr == 0 || lie[0] == 4 && addr <= page;
                let expected = if is_right { status } else { Status::RemoteAccess };
                assert_eq!(status, expected, "{lie:?} {addr}");
            }
        }
        assert_eq!(attempt(&mut server, honest, page, write), Status::Success);
    }
    // A table of random words.
    let mut rng = Rng::new(1);
    for _ in 0..10_000 {
        let words = std::array::from_fn(|at| match (at, rng.index(3)) {
            (0, _) => rng.index(1000) as u64,
            (1, 0) => 5,
            (_, 1) => rng.index(3 * PAGE_BYTES) as u64,
            _ => rng.next(),
        });
        let addr = rng.next() >> rng.index(64);
        attempt(&mut server, words, addr, rng.coin());
    }
    assert!(server.events.is_empty(), "{:?}", server.events);
    server.ping();
}

/// An entry that was found is not looked for again: not beyond its key, nor its file.
#[test]
fn what_was_found_last_is_found_as_long_as_it_stands() {
    let mut server = Server::new();
    let (rude, table, segment) = with_memory(&mut server);
    let ours = Arena::new(PAGE_BYTES).expect("memory").span(0, PAGE_BYTES);
    let mut number = 100;
    let mut reach = |server: &mut Server, key: u64, bytes: usize| {
        number += 1;
        let remote = RemoteSpan { rkey: Rkey(key), addr: 0, len: bytes as u32 };
        let (wr, list) = (WrId(number), &mut smallvec![ours.part(0, bytes)]);
        server.engine.post_rdma_write(rude.queue_pair, wr, list, remote, true).expect("posted");
        server.finish(wr)
    };
    let words = |segment| [1, segment, 0, 0, PAGE_BYTES as u64 / 2, WRITE];
    let (half, whole) = (PAGE_BYTES / 2, PAGE_BYTES);
    let key = entry(&table, 1, words(5));
    for _ in 0..2 {
        assert_eq!(reach(&mut server, key, half), Status::Success);
        assert_eq!(reach(&mut server, key, whole), Status::RemoteAccess, "longer than its region");
    }
    table.write_message(ENTRY_WORDS * 8, &0u64.to_le_bytes());
    assert_eq!(reach(&mut server, key, half), Status::RemoteAccess, "its key has ended");
    entry(&table, 1, words(5));
    assert_eq!(reach(&mut server, key, half), Status::Success);

    // Another file takes its place among those that are known.
    rude.say(&Message::Forget(5), &[]);
    let other = Arena::shared(PAGE_BYTES).expect("memory").span(0, PAGE_BYTES);
    rude.say(&Message::Segment(6), &[other.shared().expect("shared").file.as_fd()]);
    segment.write_message(0, &[7; PAGE_BYTES]);
    other.write_message(0, &[7; PAGE_BYTES]);
    // One that is not known has the socket looked into.
    let unknown = entry(&table, 3, [3, 9, 0, 0, PAGE_BYTES as u64, WRITE]);
    assert_eq!(reach(&mut server, unknown, half), Status::RemoteAccess);
    assert_eq!(reach(&mut server, key, half), Status::RemoteAccess, "its file is forgotten");
    let key = entry(&table, 2, [2, 6, 0, 0, PAGE_BYTES as u64, WRITE]);
    assert_eq!(reach(&mut server, key, half), Status::Success);
    let bytes = |span: &Span| {
        let mut bytes = [0; PAGE_BYTES];
        span.read_bytes(0, &mut bytes);
        bytes
    };
    assert!(bytes(&segment) == [7; PAGE_BYTES], "a forgotten file was written");
    assert!(
        bytes(&other)[..half] == [0; PAGE_BYTES / 2]
            && bytes(&other)[half..] == [7; PAGE_BYTES / 2]
    );
    server.ping();
}

#[test]
fn memory_that_was_not_agreed_ends_the_connection() {
    let mut server = Server::new();
    let sealed = |bytes| memfd(MFdFlags::empty(), bytes, BOTH).expect("a file");
    let mut ends = |what: &str, say: &dyn Fn(&Rude)| {
        let (rude, _table, _segment) = with_memory(&mut server);
        say(&rude);
        let reason = server.ended(rude.queue_pair);
        assert!(reason.contains("violated"), "{what}: {reason}");
        server.ping();
    };
    for (what, file) in &wrong_files(PAGE_BYTES) {
        ends(what, &|rude| rude.say(&Message::Segment(6), &[file.as_fd()]));
    }
    let page = sealed(PAGE_BYTES);
    let large = sealed((1 << 30) + PAGE_BYTES);
    ends("more bytes", &|rude| rude.say(&Message::Segment(6), &[large.as_fd()]));
    ends("a number again", &|rude| rude.say(&Message::Segment(5), &[page.as_fd()]));
    ends("a second table", &|rude| rude.say(&Message::Table, &[page.as_fd()]));
    ends("no descriptor", &|rude| rude.say(&Message::Segment(6), &[]));
    ends("two descriptors", &|rude| rude.say(&Message::Segment(6), &[page.as_fd(); 2]));
    ends("nine descriptors", &|rude| rude.say(&Message::Segment(6), &[page.as_fd(); 9]));
    ends("an unknown number", &|rude| rude.say(&Message::Forget(6), &[]));
    ends("to read on what it was never lent", &|rude| rude.say(&Message::Leave, &[]));
    ends("a bell with a file", &|rude| rude.say(&Message::Bell, &[page.as_fd()]));
    ends("a second handshake", &|rude| rude.say(&Message::Hello([0; 16]), &[]));
    ends("too many files", &|rude| {
        (6..=70).for_each(|number| rude.say(&Message::Segment(number), &[page.as_fd()]));
    });
}

/// More than was there when it was mapped is out of reach, also by another number of the same file.
#[test]
fn a_file_that_grows_is_what_it_was() {
    let mut server = Server::new();
    let rude = server.rude();
    let page = PAGE_BYTES as u64;
    let table = Arena::shared(TABLE_BYTES).expect("memory").span(0, TABLE_BYTES);
    let file = memfd(MFdFlags::empty(), PAGE_BYTES, SealFlag::F_SEAL_SHRINK).expect("a file");
    rude.say(&Message::Table, &[table.shared().expect("shared").file.as_fd()]);
    rude.say(&Message::Segment(5), &[file.as_fd()]);
    let ours = Arena::new(PAGE_BYTES).expect("memory").span(0, PAGE_BYTES);
    let mut reach = |segment: u64, offset: u64| {
        let key = entry(&table, 1, [segment, segment, 0, 0, 4 * page, READ | WRITE]);
        let remote = RemoteSpan { rkey: Rkey(key), addr: offset, len: page as u32 };
        let list = &mut smallvec![ours.clone()];
        let wr = WrId(100 + offset);
        server.engine.post_rdma_write(rude.queue_pair, wr, list, remote, true).expect("posted");
        server.finish(wr)
    };
    assert_eq!(reach(5, 0), Status::Success);
    nix::unistd::ftruncate(&file, 4 * i64::try_from(page).expect("small")).expect("it grows");
    assert_eq!((reach(5, 0), reach(5, page)), (Status::Success, Status::RemoteAccess));
    rude.say(&Message::Segment(6), &[file.as_fd()]);
    assert_eq!((reach(6, 0), reach(6, page)), (Status::Success, Status::RemoteAccess));
    server.ping();
}

/// Words, the data, and the pages under it change all the time, also while they are read: what is copied may
/// be anything, and goes nowhere else.
#[test]
fn what_changes_while_it_is_read_ends_its_own_connection_only() {
    const ROUNDS: u64 = 50_000;
    let mut server = Server::new();
    let (mut rude, mut table, mut segment) = with_memory(&mut server);
    let page = PAGE_BYTES as u64;
    // Two pages, of which the inner ones are written: what is beside stays.
    let around = Arena::new(4 * PAGE_BYTES).expect("memory").span(0, 4 * PAGE_BYTES);
    let ours = around.part(PAGE_BYTES, 2 * PAGE_BYTES);
    let is_over = Arc::new(AtomicBool::new(false));
    let mut scribbling = scribble(&rude, &table, &segment, &is_over);
    let (mut round, mut right, mut refused) = (0, 0, 0);
    // Until the other thread has had its turns.
    while round < ROUNDS || right == 0 || refused == 0 {
        round += 1;
        let key = 1 << 16 | 1;
        let remote = RemoteSpan { rkey: Rkey(key), addr: page, len: 2 * page as u32 };
        let list = &mut smallvec![ours.clone()];
        let (qp, wr) = (rude.queue_pair, WrId(1000 + round));
        let posted = match round % 2 {
            0 => server.engine.post_rdma_write(qp, wr, list, remote, true),
            _ => server.engine.post_rdma_read(qp, wr, list, remote, false),
        };
        server.engine.post_recv(WrId(3), smallvec![ours.part(0, PAGE_BYTES)]).expect("posted");
        // Nobody takes them: the ring has room for a thousand.
        if round < ROUNDS && round % 64 == 0 {
            let _ = server.engine.post_send(qp, WrId(4), b"hello", &mut smallvec![], false);
        }
        if posted.is_ok() {
            let status = server.finish(wr);
            right += u64::from(status == Status::Success);
            refused += u64::from(status == Status::RemoteAccess);
        }
        server.poll();
        server.completions.clear();
        if server.events.drain(..).any(|event| matches!(event, QueuePairEvent::Quiescent { .. })) {
            is_over.store(true, Ordering::Relaxed);
            scribbling.join().expect("it ends");
            is_over.store(false, Ordering::Relaxed);
            (rude, table, segment) = with_memory(&mut server);
            scribbling = scribble(&rude, &table, &segment, &is_over);
        }
        if round % 500 == 0 {
            server.ping();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    scribbling.join().expect("it ends");
    let mut beside = [vec![1; PAGE_BYTES], vec![1; PAGE_BYTES]];
    around.copy_to(0, &mut beside[0]);
    around.copy_to(3 * PAGE_BYTES, &mut beside[1]);
    assert!(beside.iter().flatten().all(|byte| *byte == 0), "written beside");
    server.ping();
}

/// Changes what a rude peer shares, until it is over: an entry that is right half of the time, rings now and
/// then, and holes in the memory.
fn scribble(
    rude: &Rude,
    table: &Span,
    segment: &Span,
    is_over: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (rings, table, segment) = (rude.memory.clone(), table.clone(), segment.clone());
    let is_over = is_over.clone();
    std::thread::spawn(move || {
        let page = PAGE_BYTES as u64;
        let file = segment.shared().expect("shared").file;
        let (mut rng, both) = (Rng::new(3), READ | WRITE);
        while !is_over.load(Ordering::Relaxed) {
            let wrong = rng.next() >> rng.index(64);
            let words = match rng.index(8) {
                0..4 => [1, 5, 0, page, 2 * page, both],
                4 => [1, 5, wrong, page, 2 * page, both],
                5 => [1, 5, 0, wrong, u64::MAX, both],
                6 => [1, wrong, 0, page, wrong, both],
                _ => [wrong, 5, 0, page, 2 * page, both],
            };
            for (word, value) in [words[0] << 16 | 1].iter().chain(&words[1..]).enumerate() {
                table.write_message((ENTRY_WORDS + word) * 8, &value.to_le_bytes());
            }
            segment.write_message(rng.index(2 * PAGE_BYTES - 8), &wrong.to_le_bytes());
            if rng.index(64) == 0 {
                let mode =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let bytes = i64::try_from(PAGE_BYTES).expect("small");
                fallocate(file.as_fd(), mode, 0, bytes).expect("a hole");
            }
            if rng.index(2000) == 0 {
                rings.write_message(rng.index(MEMORY_BYTES / 8) * 8, &wrong.to_le_bytes());
            }
        }
    })
}

/// One that takes nothing from its socket is told no more, and what is sent to it waits; others go on.
#[test]
fn a_full_socket_keeps_nobody_waiting() {
    let mut server = Server::new();
    let rude = server.rude();
    let mut filled = 0;
    while sys::send(rude.socket.as_raw_fd(), &[6]).is_ok() {
        filled += 1;
    }
    assert!(filled > 0);
    // The other way: registrations that come and go, each told.
    let regions = || {
        let arena = Arena::shared(PAGE_BYTES).expect("memory");
        server.device.register(arena.span(0, PAGE_BYTES), READ_WRITE)
    };
    let mut count = 0;
    for _ in 0..2000 {
        drop(regions().expect("a region"));
        count += 1;
    }
    assert_eq!(count, 2000);
    let none = &mut smallvec![];
    server.engine.post_send(rude.queue_pair, WrId(9), b"late", none, true).expect("posted");
    server.ping();
    assert!(!server.completions.iter().any(|c| c.wr_id == WrId(9)), "it was sent too early");
    // It is a peer like others when it looks.
    wait("late message", || {
        let _ = heard(&rude.socket);
        server.poll();
        server.completions.iter().find(|c| c.wr_id == WrId(9)).map(drop)
    });
}

/// One that says all the time that it sleeps by a word, in a page that it takes away: each message rings once at most,
/// and waits for nothing.
#[test]
fn a_word_in_memory_that_comes_and_goes_holds_up_nobody() {
    const MESSAGES: u64 = 900;
    const BY_WORD: u64 = 5;
    let mut server = Server::new();
    let rude = server.rude();
    let is_over = Arc::new(AtomicBool::new(false));
    let (rings, over) = (rude.memory.clone(), is_over.clone());
    let scribbler = std::thread::spawn(move || {
        let file = rings.shared().expect("shared").file;
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let bytes = i64::try_from(PAGE_BYTES).expect("small");
        for time in 1_u64.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            rings.write_message(places(Side::Client).1, &(time << 3 | BY_WORD).to_le_bytes());
            if time.is_multiple_of(4) {
                fallocate(file.as_fd(), mode, 0, bytes).expect("a hole");
            }
        }
    });
    let calls = |server: &Server| server.engine.system_calls() - server.engine.rounds();
    let mut rung = 0;
    for _ in 0..MESSAGES {
        wait("sleep", || {
            let mut word = [0; 8];
            rude.memory.copy_to(places(Side::Client).1, &mut word);
            (word != [0; 8]).then_some(())
        });
        let before = calls(&server);
        let none = &mut smallvec![];
        server.engine.post_send(rude.queue_pair, WrId(4), b"hello", none, false).expect("posted");
        server.engine.ring();
        let by_this = calls(&server) - before;
        assert!(by_this <= 1, "{by_this} calls");
        rung += by_this;
    }
    is_over.store(true, Ordering::Relaxed);
    scribbler.join().expect("the scribbler");
    assert!(rung > 0, "it was rung");
    assert_eq!(server.end_of(rude.queue_pair), None);
    server.ping();
}
