//! Memory that peers may read: they map it, and cannot write it.

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Readers, RegisterError, RemoteSpan};
use nix::fcntl::{FallocateFlags, fallocate};

use super::*;
use crate::ring::places;

const READ: Access = Access { remote_read: true, remote_write: false };
/// More than a client may share with a server.
const CACHE_BYTES: usize = 3 << 30;

impl Server {
    /// The honest client reads or writes what it was told of.
    pub(super) fn one_sided(&mut self, local: &Span, remote: RemoteSpan, write: bool) -> Status {
        let (near, _) = self.pair.expect("connected");
        let (id, list) = (WrId(9), &mut smallvec![local.clone()]);
        match write {
            true => self.honest.post_rdma_write(near, id, list, remote, true),
            false => self.honest.post_rdma_read(near, id, list, remote, false),
        }
        .expect("posted");
        wait("completion", || {
            let mut done = Vec::new();
            self.honest.poll(&mut done, 1);
            done.pop()
        })
        .status
    }
}

#[test]
fn peers_read_what_they_may_and_write_none_of_it() {
    let mut server = Server::new();
    let (_, early) = server.pair.expect("connected");
    assert!(server.engine.lets_read(early, Readers::Own), "there is nothing to be told");
    let arena = Arena::for_readers(CACHE_BYTES, 64 << 20, Readers::Own).expect("memory");
    let cache = arena.span(0, CACHE_BYTES);
    cache.copy_from(CACHE_BYTES - PAGE_BYTES, b"cached");
    let region = server.device.register(cache.clone(), READ).expect("registered");
    let both = Access { remote_read: true, remote_write: true };
    let refused = server.device.register(cache, both);
    assert!(matches!(refused, Err(RegisterError::Refused(_))), "{refused:?}");
    // One that was connected before, and one that comes.
    for again in [false, true] {
        if again {
            server.connect_honest();
        }
        server.ping();
        let (_, far) = server.pair.expect("connected");
        assert!(server.engine.lets_read(far, Readers::Own));
        let remote = region.part(CACHE_BYTES - PAGE_BYTES, 6);
        let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 6);
        assert_eq!(server.one_sided(&local, remote, false), Status::Success);
        let mut seen = [0; 6];
        local.copy_to(0, &mut seen);
        assert_eq!(&seen, b"cached");
        assert_eq!(server.one_sided(&local, remote, true), Status::RemoteAccess);
        server.ping();
    }
    drop(region);
    let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 6);
    let gone = RemoteSpan { rkey: dafs_fabric::Rkey(1), addr: 0, len: 6 };
    assert_eq!(server.one_sided(&local, gone, false), Status::RemoteAccess);
}

#[test]
fn words_in_common_are_those_that_may_be_read_and_written() {
    let mut server = Server::new();
    let (_, far) = server.pair.expect("connected");
    let (both, read) = (Access { remote_read: true, remote_write: true }, READ);
    let share = |server: &Server, access| {
        let arena = Arena::shared(PAGE_BYTES).expect("memory");
        let region = server.honest_device.register(arena.span(0, PAGE_BYTES), access);
        (arena, region.expect("registered"))
    };
    let (arena, region) = share(&server, both);
    let (_other, for_reading) = share(&server, read);
    server.ping();
    let words = server.engine.words(far, region.remote().rkey).expect("words");
    assert!(server.engine.words(far, for_reading.remote().rkey).is_none());
    assert!(server.engine.words(far, dafs_fabric::Rkey(77)).is_none());
    let own = dafs_fabric::Words::new(&arena);
    own.set_bits(511, 6);
    assert!(words.len() == 512 && words.take_bits(511, 2) && !words.take_bits(511, 2));
    // They stay, whatever becomes of the region and the peer.
    drop(region);
    server.engine.disconnect(far);
    server.poll();
    assert!(words.take_bits(511, 4) && !own.has_bits(511, u64::MAX));
}

#[test]
fn a_table_does_not_make_writable_what_is_for_reading() {
    use crate::memory_region::{READ, TABLE_BYTES, WRITE};
    use crate::peer_memory::PeerMemory;

    let arena = Arena::for_readers(4 << 20, 2 << 20, Readers::Own).expect("memory");
    let file = arena.span(0, 1).shared().expect("shared").file;
    let table = Arena::shared(TABLE_BYTES).expect("memory");
    let lies = table.span(0, TABLE_BYTES);
    let table = lies.shared().expect("shared").file;
    for (word, value) in [(0, 1 << 16), (1, 5), (2, 0), (3, 0), (4, 4 << 20), (5, READ | WRITE)] {
        lies.write_message(8 * word, &u64::to_le_bytes(value));
    }
    let mut memory = PeerMemory::new(CLIENT_LIMITS, None);
    let table = table.read_only().expect("/proc");
    memory.take(&Message::Table, vec![table]).expect("taken");
    let file = file.for_peers().try_clone_to_owned().expect("a descriptor");
    memory.take(&Message::Segment(5), vec![file]).expect("taken");
    let remote = RemoteSpan { rkey: dafs_fabric::Rkey(1 << 16), addr: 0, len: 100 };
    assert!(memory.find(remote, false).is_ok());
    assert!(memory.find(remote, true).is_err());
}

const CACHED: &[u8] = b"cached";

/// A server of strangers with memory for its own user and for all, each of them registered to be read.
struct Apart {
    server: Server,
    own: (Span, MemoryRegion),
    all: (Span, MemoryRegion),
}

impl Apart {
    fn new() -> Apart {
        let server = Server::of_strangers();
        let memory = |made: Result<std::sync::Arc<Arena>, dafs_fabric::ArenaError>| {
            let arena = made.expect("memory");
            let span = arena.span(0, arena.len());
            span.copy_from(PAGE_BYTES, CACHED);
            let region = server.device.register(span.clone(), READ).expect("registered");
            (span, region)
        };
        let own = memory(Arena::for_readers(4 << 20, 2 << 20, Readers::Own));
        let all = memory(Arena::for_readers(4 << 20, 2 << 20, Readers::All));
        Apart { server, own, all }
    }

    /// What the honest client reads of them: of that for the server's own user, and of that for all.
    fn seen(&mut self) -> [Option<Vec<u8>>; 2] {
        let parts = [&self.own.1, &self.all.1].map(|of| of.part(PAGE_BYTES, CACHED.len()));
        parts.map(|part| {
            let local = Arena::new(PAGE_BYTES).expect("memory").span(0, CACHED.len());
            let status = self.server.one_sided(&local, part, false);
            // Who asked for what he may not have comes again.
            if status != Status::Success {
                self.server.connect_honest();
                return None;
            }
            let mut seen = vec![0; CACHED.len()];
            local.copy_to(0, &mut seen);
            Some(seen)
        })
    }

    fn admit(&mut self) {
        let (_, far) = self.server.pair.expect("connected");
        self.server.engine.admit(far);
        self.server.ping();
    }

    /// Whether the server refers the honest client to that of its own user, and to that for all.
    fn lets_read(&self) -> [bool; 2] {
        let (_, far) = self.server.pair.expect("connected");
        [Readers::Own, Readers::All].map(|of| self.server.engine.lets_read(far, of))
    }
}

#[test]
fn other_users_read_what_is_for_all_once_they_are_admitted_and_nothing_else() {
    let mut apart = Apart::new();
    assert_eq!(apart.lets_read(), [false, false]);
    assert_eq!(apart.seen(), [None, None]);
    apart.admit();
    assert_eq!(apart.lets_read(), [false, true]);
    let remote = apart.all.1.part(PAGE_BYTES, CACHED.len());
    let local = Arena::new(PAGE_BYTES).expect("memory").span(0, CACHED.len());
    assert_eq!(apart.server.one_sided(&local, remote, false), Status::Success);
    assert_eq!(apart.server.one_sided(&local, remote, true), Status::RemoteAccess);
    apart.server.connect_honest();
    assert_eq!(apart.lets_read(), [false, false], "another connection is admitted anew");
    apart.admit();
    let own = apart.own.1.part(PAGE_BYTES, CACHED.len());
    assert_eq!(apart.server.one_sided(&local, own, false), Status::RemoteAccess);
    // What is registered later is told of to those who are admitted, if it is for all.
    apart.server.connect_honest();
    apart.admit();
    let later = Arena::for_readers(2 << 20, 2 << 20, Readers::All).expect("memory");
    let span = later.span(0, later.len());
    span.copy_from(PAGE_BYTES, b"second");
    let region = apart.server.device.register(span, READ).expect("registered");
    let remote = region.part(PAGE_BYTES, 6);
    assert_eq!(apart.server.one_sided(&local, remote, false), Status::Success);
    let mut seen = [0; 6];
    local.copy_to(0, &mut seen);
    assert_eq!(&seen, b"second");
    // Given back, it is gone for them, too, as it is for the server.
    later.discard(PAGE_BYTES, PAGE_BYTES).expect("a hole");
    assert_eq!(apart.server.one_sided(&local, remote, false), Status::Success);
    local.copy_to(0, &mut seen);
    assert_eq!(seen, [0; 6]);
    // An entry that has ended has ended for them.
    drop(region);
    assert_eq!(apart.server.one_sided(&local, remote, false), Status::RemoteAccess);
}

#[test]
fn the_servers_own_user_needs_no_admission() {
    let mut server = Server::new();
    let arena = Arena::for_readers(4 << 20, 2 << 20, Readers::All).expect("memory");
    let region = server.device.register(arena.span(0, 4 << 20), READ).expect("registered");
    server.ping();
    let (_, far) = server.pair.expect("connected");
    assert!(
        server.engine.lets_read(far, Readers::All) && server.engine.lets_read(far, Readers::Own)
    );
    let local = Arena::new(PAGE_BYTES).expect("memory").span(0, 6);
    assert_eq!(server.one_sided(&local, region.part(0, 6), false), Status::Success);
}

/// All that a stranger gets into his hands.
#[test]
fn other_users_are_handed_one_file_and_a_table_of_it_alone() {
    use std::os::unix::fs::MetadataExt;

    use crate::memory_region::{ENTRIES, ENTRY_WORDS, TABLE_BYTES};

    let mut apart = Apart::new();
    let ordinary = Arena::shared(1 << 16).expect("memory").span(0, 1 << 16);
    let _received = apart.server.device.register(ordinary, READ_WRITE).expect("registered");
    let rude = apart.server.rude();
    apart.server.engine.admit(rude.queue_pair);
    apart.server.engine.admit(rude.queue_pair);
    // What is asked for has no answer: there are no words for it. A file of one's own makes no difference.
    let file = memfd(MFdFlags::empty(), 1 << 16, BOTH).expect("a file");
    rude.say(&Message::Segment(1), &[file.as_fd()]);
    let more = Arena::for_readers(2 << 20, 2 << 20, Readers::Own).expect("memory").span(0, 2 << 20);
    let _more = apart.server.device.register(more, READ).expect("registered");
    apart.server.ping();

    let (mut tables, mut segments) = (Vec::new(), Vec::new());
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    while let Ok(received) = sys::receive(rude.socket.as_fd(), &mut bytes, Take::Message) {
        match Message::decode(&bytes[..received.len]) {
            Some(Message::Table) => tables.extend(received.descriptors),
            Some(Message::Segment(_)) => segments.extend(received.descriptors),
            other => assert!(received.descriptors.is_empty(), "{other:?}"),
        }
    }
    let ([table], [segment]) = (tables.as_slice(), segments.as_slice()) else {
        panic!("{} tables, {} segments", tables.len(), segments.len());
    };
    let id = |fd: BorrowedFd<'_>| {
        let file = std::fs::File::from(fd.try_clone_to_owned().expect("a descriptor"));
        let meta = file.metadata().expect("its attributes");
        (meta.dev(), meta.ino(), meta.mode() & 0o7777)
    };
    let shared = apart.all.0.shared().expect("shared").file;
    assert_eq!(id(segment.as_fd()), id(shared.as_fd()));
    assert_eq!(id(segment.as_fd()).2, 0o600, "nobody else opens it anew");
    assert!(Arena::of_peer(segment.as_fd(), 4 << 20).is_err(), "not to be written");
    let zero = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert!(fallocate(segment, zero, 0, 4096).is_err(), "nor are holes made");

    let words = dafs_fabric::Words::of_peer(table.as_fd(), TABLE_BYTES).expect("a table");
    let load = |word| words.load(word, std::sync::atomic::Ordering::Relaxed);
    let used: Vec<u64> =
        (0..ENTRIES).map(|entry| load(entry * ENTRY_WORDS)).filter(|key| *key != 0).collect();
    assert_eq!(used, [apart.all.1.remote().rkey.0], "no other key is in it");
    let of_others = [&apart.own.1].map(|region| region.span().addr());
    for word in 0..ENTRIES * ENTRY_WORDS {
        assert!(!of_others.contains(&load(word)), "an address of what is not for all");
    }
    // Nor does the server write there for it, as if that were memory of its own.
    rude.say(&Message::Segment(2), &[segment.as_fd()]);
    let reason = apart.server.ended(rude.queue_pair);
    assert!(reason.contains("shared memory that is none"), "{reason}");
    apart.server.ping();
}

/// Connections of one user that the server would wait for are bounded; the others go on without.
#[test]
fn one_user_is_admitted_so_often_and_no_more() {
    let mut apart = Apart::new();
    let mut rude: Vec<_> = (0..70).map(|_| apart.server.rude()).collect();
    for one in &rude {
        apart.server.engine.admit(one.queue_pair);
    }
    let lets =
        |apart: &Apart, one: &Rude| apart.server.engine.lets_read(one.queue_pair, Readers::All);
    assert_eq!(rude.iter().filter(|one| lets(&apart, one)).count(), 64);
    apart.admit();
    assert_eq!(apart.lets_read(), [false, false]);
    // One that hangs up makes room; one that only is disconnected does not, as it may still read.
    let gone = rude[0].queue_pair;
    apart.server.engine.disconnect(rude[1].queue_pair);
    apart.server.ping();
    apart.admit();
    assert_eq!(apart.lets_read(), [false, false]);
    drop(rude.swap_remove(0));
    apart.server.ended(gone);
    apart.admit();
    assert_eq!(apart.lets_read(), [false, true]);
}

/// A peer that never reads its socket, and is told of memory when that is full.
#[test]
fn who_reads_nothing_costs_no_call_in_each_pass() {
    const PASSES: usize = 40_000;
    let mut server = Server::of_strangers();
    let arena = Arena::for_readers(1 << 20, 1 << 20, Readers::All).expect("memory");
    let _region = server.device.register(arena.span(0, 1 << 20), READ).expect("registered");
    let rude = server.rude();
    // It says again and again that it sleeps, so it is rung each time.
    let (taken, says) = (places(Side::Client).0, places(Side::Client).1);
    for time in 1..2000 {
        rude.store(says, time << 3 | 1);
        let none = &mut smallvec![];
        server.engine.post_send(rude.queue_pair, WrId(4), b"x", none, false).expect("posted");
        server.engine.ring();
        rude.store(taken, time * 64);
    }
    server.engine.admit(rude.queue_pair);
    assert!(
        !server.engine.lets_read(rude.queue_pair, Readers::All),
        "there was no room to tell it"
    );
    let counts = |server: &Server| (server.engine.system_calls(), server.engine.rounds());
    let before = counts(&server);
    (0..PASSES).for_each(|_| server.poll());
    let (calls, rounds) = (counts(&server).0 - before.0, counts(&server).1 - before.1);
    assert!((1..100).contains(&rounds), "{rounds} rounds");
    assert!(calls <= 2 * rounds, "{calls} calls in {rounds} rounds");
    // It reads after all, and is told.
    wait("to be told", || {
        while heard(&rude.socket).is_some_and(|bytes| !bytes.is_empty()) {}
        server.poll();
        server.engine.lets_read(rude.queue_pair, Readers::All).then_some(())
    });
    server.ping();
}
