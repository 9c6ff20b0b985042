//! Reads by a named reference: who may read what, until when. The client here says what it likes.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use dafs_fabric::{Buffer, PostedBuffer, SgList};
use dafs_message::{ConnId, Event};
use dafs_protocol::*;
use dafs_server::{Limits, Optimistic};

use crate::worker::Driven;

struct World {
    driven: Driven,
    buffer: PostedBuffer,
}

impl Deref for World {
    type Target = Driven;

    fn deref(&self) -> &Driven {
        &self.driven
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Driven {
        &mut self.driven
    }
}

/// A session of a client, whose next request has this number.
struct Client {
    conn: ConnId,
    next: u32,
    session: SessionId,
}

impl World {
    fn new(optimistic: Optimistic) -> World {
        let limits = Limits { lease_seconds: 2, ..Limits::default() };
        let buffer = Buffer::new(128 << 10).expect("memory").post();
        World { driven: Driven::new(limits, optimistic), buffer }
    }

    fn client(&mut self, features: Features) -> Client {
        let (conn, session) = self.driven.session(features);
        Client { conn, next: 1, session }
    }

    fn ask(
        &mut self,
        client: &mut Client,
        operations: &[Operation<'_>],
        data: &[u8],
    ) -> Vec<OpResult> {
        let head = RequestHead { slot: SlotId(0), sequence: client.next, cred: CredHandle(0) };
        client.next += 1;
        let mut header = Vec::new();
        encode_request(&head, operations, &mut header).expect("encode");
        self.buffer.span().copy_from(0, data);
        let data =
            SgList::from_iter((!data.is_empty()).then(|| self.buffer.span().part(0, data.len())));
        let room = SgList::from_iter([self.buffer.span().part(65_536, 65_536)]);
        self.clients.submit(client.conn, 1, &header, data, room).expect("submit");
        self.clients.ring();
        let Event::Reply { header, .. } = self.event() else { panic!("no reply") };
        decode_reply(&header).expect("a reply").results.expect("it was begun")
    }

    /// A new file with these bytes; its state in the client's session.
    fn file(&mut self, client: &mut Client, name: &str, data: &[u8]) -> StateId {
        let flags = OpenFlags {
            read: true,
            write: true,
            create: CreateMode::Unchecked,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let (path, cache) = (name.as_bytes(), CacheHint::default());
        let open = Operation::Open { dir: FileHandle::PREVIOUS, path, flags, mode: 0o600, cache };
        let root = Operation::GetRoot { export: b"" };
        let results = self.ask(client, &[root, open], b"");
        let Ok(Outcome::Opened { state, .. }) = results[1] else { panic!("{results:?}") };
        if !data.is_empty() {
            let extents = ExtentList::one(0, data.len() as u32);
            let write =
                Operation::Write { state, extents, stability: Stability::Unstable, within: false };
            let results = self.ask(client, &[write], data);
            assert!(results[0].is_ok(), "{results:?}");
        }
        state
    }

    fn reference(&mut self, client: &mut Client, state: StateId) -> Result<Vec<u8>, Status> {
        match self
            .ask(client, &[Operation::RefsGet { state, first: 0, count: 0, accessed: 0 }], b"")
            .remove(0)
        {
            Ok(Outcome::Named(named)) => Ok(named.as_bytes().to_vec()),
            Ok(other) => panic!("{other:?}"),
            Err(status) => Err(status),
        }
    }

    /// `None`: it is refused.
    fn read(&mut self, client: &Client, name: &[u8], offset: u64, len: usize) -> Option<Vec<u8>> {
        self.buffer.span().zero();
        let into = (self.buffer.span().clone(), len);
        self.clients
            .read_named(client.conn, 7, (name, offset), (&into.0, into.1))
            .expect("there is room");
        self.clients.ring();
        let Event::NamedRead { tag: 7, bytes, .. } = self.event() else { panic!("something else") };
        bytes.map(|bytes| {
            let mut got = vec![0; bytes as usize];
            self.buffer.span().copy_to(0, &mut got);
            got
        })
    }
}

const NAMED: Features = Features::NAMED_REFERENCES;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at) as u8).collect()
}

#[test]
fn what_is_cached_is_read_without_a_request() {
    let mut world = World::new(Optimistic::Checked);
    let mut client = world.client(NAMED);
    let data = pattern(50_000);
    let file = world.file(&mut client, "f", &data);
    let name = world.reference(&mut client, file).expect("given");
    let requests = world.shared.counters.requests();
    for (offset, len) in
        [(0, 4096), (4096, 10), (4000, 5000), (0, 65_536), (49_999, 10), (12_345, 1)]
    {
        let end = data.len().min(offset + len);
        assert_eq!(
            world.read(&client, &name, offset as u64, len).as_deref(),
            Some(&data[offset..end])
        );
    }
    assert_eq!(world.read(&client, &name, 50_000, 9).as_deref(), Some(&[][..]));
    assert_eq!(world.read(&client, &name, i64::MAX as u64, 9), None);
    assert_eq!(world.read(&client, &name, u64::MAX, 9), None);
    assert_eq!(world.shared.counters.requests(), requests, "no request");
    assert_eq!(world.shared.counters.named_reads(), [7, 2]);
    // What was written before is seen, and the end where it is now.
    let extents = ExtentList::one(4090, 100);
    let stability = Stability::Unstable;
    let write = Operation::Write { state: file, extents, stability, within: false };
    world.ask(&mut client, &[write], &[9; 100]);
    let expected = [&data[4080..4090], &[9; 100], &data[4190..4200]].concat();
    assert_eq!(world.read(&client, &name, 4080, 120), Some(expected));
}

#[test]
fn it_ends_with_its_open_and_its_session() {
    let mut world = World::new(Optimistic::Both);
    let mut client = world.client(NAMED);
    let file = world.file(&mut client, "f", &pattern(5000));
    let name = world.reference(&mut client, file).expect("given");
    assert!(world.read(&client, &name, 0, 10).is_some());
    world.ask(&mut client, &[Operation::Close { state: file }], b"");
    assert_eq!(world.read(&client, &name, 0, 10), None);
    // Another open in its place is another one, and no more open for reading is as closed.
    let next = world.file(&mut client, "f", b"");
    assert_eq!(world.read(&client, &name, 0, 10), None);
    let name = world.reference(&mut client, next).expect("given");
    assert!(world.read(&client, &name, 0, 10).is_some());
    let downgrade = Operation::OpenDowngrade { state: next, read: false, write: true };
    world.ask(&mut client, &[downgrade], b"");
    assert_eq!(world.read(&client, &name, 0, 10), None);
    assert_eq!(world.reference(&mut client, next), Err(Status::BadF));
    // What is asked for by name keeps a session alive, and when it has ended nothing is given.
    let third = world.file(&mut client, "f", b"");
    let name = world.reference(&mut client, third).expect("given");
    for _ in 0..20 {
        world.pass(Duration::from_millis(400));
        assert!(world.read(&client, &name, 0, 10).is_some());
    }
    for _ in 0..20 {
        world.pass(Duration::from_millis(400));
    }
    assert_eq!(world.worker.session_count(), 0);
    let served = world.shared.counters.named_reads()[0];
    let into = (world.buffer.span().clone(), 10);
    let _ = world.clients.read_named(client.conn, 7, (&name, 0), (&into.0, into.1));
    world.clients.ring();
    (0..20).for_each(|_| world.pass(Duration::ZERO));
    assert_eq!(world.shared.counters.named_reads()[0], served);
}

#[test]
fn it_is_good_for_nobody_else() {
    let mut world = World::new(Optimistic::Both);
    let (mut first, mut second) = (world.client(NAMED), world.client(NAMED));
    assert_ne!(first.session, second.session);
    let mine = world.file(&mut first, "mine", &pattern(5000));
    // An open of the same number, and one of the same file.
    let theirs = world.file(&mut second, "theirs", &[5; 5000]);
    let _same = world.file(&mut second, "mine", b"");
    assert_eq!(mine, theirs);
    let (name, other) =
        (world.reference(&mut first, mine).unwrap(), world.reference(&mut second, theirs).unwrap());
    assert_eq!(world.read(&second, &name, 0, 100), None);
    assert_eq!(world.read(&first, &other, 0, 100), None);
    assert_eq!(world.read(&first, &name, 0, 100), Some(pattern(100)));
    for bit in 0..name.len() * 8 {
        let mut forged = name.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(world.read(&first, &forged, 0, 100), None, "bit {bit}");
    }
    for forged in [&[][..], &[0; 52], &[0; 64], &name[..51]] {
        assert_eq!(world.read(&first, forged, 0, 100), None);
    }
    assert_eq!(world.read(&first, &name, 0, 100), Some(pattern(100)), "the connection lives");
}

#[test]
fn a_reference_of_a_former_key_is_refused() {
    let mut world = World::new(Optimistic::Both);
    let mut client = world.client(NAMED);
    let file = world.file(&mut client, "f", &pattern(5000));
    let old = world.reference(&mut client, file).expect("given");
    let hour = Duration::from_secs(3600);
    let mut passed = Duration::ZERO;
    while passed < hour {
        assert!(world.read(&client, &old, 0, 10).is_some(), "{passed:?}");
        world.pass(Duration::from_millis(900));
        passed += Duration::from_millis(900);
    }
    world.pass(Duration::from_millis(900));
    assert_eq!(world.read(&client, &old, 0, 10), None);
    let new = world.reference(&mut client, file).expect("given");
    assert!(new != old && world.read(&client, &new, 0, 10).is_some());
}

#[test]
fn none_is_given_where_it_may_not_be() {
    for optimistic in [Optimistic::Off, Optimistic::Trusted] {
        let mut off = World::new(optimistic);
        let mut client = off.client(NAMED);
        let file = off.file(&mut client, "f", &pattern(10));
        assert_eq!(off.reference(&mut client, file), Err(Status::NotSupp));
    }
    // Nor to a client that does not know of them.
    let mut world = World::new(Optimistic::Both);
    let mut old = world.client(Features::REFERENCES);
    let file = world.file(&mut old, "f", &pattern(10));
    assert_eq!(world.reference(&mut old, file), Err(Status::NotSupp));
}

/// Reads of two files, of pages and of parts of several, such as are refused among them: each has its own answer, in order.
#[test]
fn reads_that_come_together_have_their_own_answers() {
    let mut world = World::new(Optimistic::Both);
    let mut client = world.client(NAMED);
    let contents = [pattern(50_000), vec![5; 9000]];
    let mut names = Vec::new();
    for (name, data) in ["one", "two"].into_iter().zip(&contents) {
        let file = world.file(&mut client, name, data);
        names.push(world.reference(&mut client, file).expect("given"));
    }
    let mut forged = names[0].clone();
    forged[40] ^= 1;
    names.push(forged);
    let places = Buffer::new(8 * 8192).expect("memory").post();
    let mut answered = 0;
    for round in 0..50_u32 {
        let mut expected = Vec::new();
        for read in 0..8 {
            let number = (8 * round + read) as usize;
            let which = [0, 0, 0, 1, 0, 1, 1, 2, 0, 1, 0][number % 11];
            let (offset, len) =
                (number * 4096 % 53_248 + number % 5 / 4, [4096, 100, 8192, 4096][number % 4]);
            let place = places.span().part(read as usize * 8192, 8192);
            let name = (&names[which][..], offset as u64);
            world.clients.read_named(client.conn, read, name, (&place, len)).expect("room");
            expected.push(
                contents.get(which).map(|data| {
                    data[data.len().min(offset)..data.len().min(offset + len)].to_vec()
                }),
            );
        }
        world.clients.ring();
        for (read, expected) in (0..).zip(expected) {
            let Event::NamedRead { tag, bytes, .. } = world.event() else { panic!("no answer") };
            assert_eq!(tag, read);
            let got = bytes.map(|bytes| {
                let mut got = vec![0; bytes as usize];
                places.span().copy_to(read as usize * 8192, &mut got);
                got
            });
            // One for which the session's share of so small a cache has no room is refused, too.
            assert!(got.is_none() || got == expected, "round {round}, read {read}");
            answered += usize::from(got.is_some());
        }
    }
    assert!(answered > 200, "{answered} were answered");
}
