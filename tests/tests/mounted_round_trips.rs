//! What the kernel's requests of programs cost in round trips to the server: the file system of a
//! mount, called as the kernel calls it, and a server in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_fabric_tcp::TcpProvider;
use dafs_fuse::fs::{DafsFs, FsOptions};
use dafs_fuse::kernel::{Answer, Caller, Entry, FileSystem, NodeAttr, Op, SetAttr, SetTime};
use dafs_protocol::Timestamp;
use dafs_server::Limits;
use dafs_store::memory::MemoryStore;
use dafs_tests::in_process::{self, InProcess};

const ROOT: u64 = 1;
const LONG: Duration = Duration::from_secs(3600);

/// The file system of a mount, without a kernel.
struct Mounted {
    fs: Arc<DafsFs>,
    session: Session,
    room: Buffer,
    caller: Caller,
    _server: InProcess,
}

fn mounted() -> Mounted {
    mounted_with(LONG)
}

/// The kernel believes names for so long.
fn mounted_with(entry_timeout: Duration) -> Mounted {
    let server = in_process::serve(MemoryStore::new(), Limits::default());
    let provider = Arc::new(TcpProvider::default());
    let session = Session::connect(provider, &server.address, SessionOptions::default());
    let session = session.expect("connect");
    let (fs, caller) =
        (files_of(&session, believing(entry_timeout)), Caller { uid: 0, gid: 0, pid: 0 });
    Mounted { fs, session, room: Buffer::new(1 << 20).expect("memory"), caller, _server: server }
}

fn believing(entry_timeout: Duration) -> FsOptions {
    FsOptions { attr_timeout: LONG, entry_timeout, ..FsOptions::default() }
}

fn files_of(session: &Session, options: FsOptions) -> Arc<DafsFs> {
    DafsFs::new(session.clone(), b"", options).expect("root")
}

fn as_set(mode: u32) -> dafs_protocol::SetAttr {
    dafs_protocol::SetAttr { mode: Some(mode), ..Default::default() }
}

impl Mounted {
    fn op(&mut self, node: u64, op: Op<'_>) -> Answer {
        self.fs.call(&self.caller, node, op, &mut self.room)
    }

    /// Round trips that a call takes; it must not fail.
    fn cost(&mut self, node: u64, op: Op<'_>) -> u64 {
        self.cost_and_answer(node, op).0
    }

    fn cost_and_answer(&mut self, node: u64, op: Op<'_>) -> (u64, Answer) {
        let before = self.session.info().round_trips;
        let answer = self.op(node, op);
        assert!(!matches!(answer, Answer::Error(_)), "{op:?}: {answer:?}");
        (self.session.info().round_trips - before, answer)
    }

    fn attr(&mut self, node: u64) -> (u64, NodeAttr) {
        match self.cost_and_answer(node, Op::GetAttr { fh: None }) {
            (cost, Answer::Attr(attr, ttl)) => {
                assert!(ttl <= LONG);
                (cost, attr)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Attributes as the server has them.
    fn true_size_and_mode(&self, path: &[u8]) -> (u64, u32) {
        let attr = self.session.lstat(path).expect("stat");
        (attr.size, attr.mode)
    }

    /// Bytes in the server's cache that its file system has not.
    fn dirty_bytes(&self) -> u64 {
        self.session.stats().expect("stats").dirty_bytes
    }

    fn entry(&mut self, node: u64, op: Op<'_>) -> Entry {
        match self.cost_and_answer(node, op) {
            (1, Answer::Entry(entry)) => entry,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    fn create(&mut self, dir: u64, name: &[u8]) -> (u64, u64) {
        let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u32;
        let op = Op::Create { name, flags, mode: 0o600, umask: 0 };
        match self.cost_and_answer(dir, op) {
            (1, Answer::Created(entry, opened)) => (entry.node, opened.fh),
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, node: u64, fh: u64, data: &[u8]) -> u64 {
        let (offset, flags) = (0, libc::O_WRONLY as u32);
        let (from_cache, kill_suidgid, memory) = (false, false, None);
        let op = Op::Write { fh, offset, data, flags, from_cache, kill_suidgid, memory };
        self.cost(node, op)
    }
}

const NO_DATA: Answer = Answer::Error(libc::ENODATA);
const TIME: SetTime = SetTime::At(Timestamp { seconds: 1_000_000, nanoseconds: 5 });

const NOTHING: SetAttr = SetAttr {
    fh: None,
    lock_owner: None,
    size: None,
    mode: None,
    uid: None,
    gid: None,
    atime: None,
    mtime: None,
};
const TIMES: SetAttr = SetAttr { mtime: Some(TIME), ..NOTHING };

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..NOTHING }
}

/// LOOKUP, CREATE, GETATTR of the directory, two WRITE, three SETATTR, FLUSH.
#[test]
fn attributes_of_an_unpacked_file_are_set_and_it_is_flushed_in_one_round_trip() {
    let mut mounted = mounted();
    assert_eq!(mounted.op(ROOT, Op::Lookup { name: b"f" }), Answer::Error(libc::ENOENT));
    let (node, fh) = mounted.create(ROOT, b"f");
    assert_eq!(mounted.attr(ROOT).0, 0, "the directory was looked at with the change");
    assert_eq!(mounted.write(node, fh, b"else bytes"), 1);
    assert_eq!(mounted.write(node, fh, b"some bytes"), 1);
    let owner = SetAttr { uid: Some(0), gid: Some(0), ..NOTHING };
    for set in [TIMES, owner, mode(0o640)] {
        // Asked for by the kernel before an owner is set.
        let name = b"security.capability";
        assert_eq!(mounted.op(node, Op::GetXattr { name, size: 0 }), NO_DATA);
        let (cost, answer) = mounted.cost_and_answer(node, Op::SetAttr(set));
        let Answer::Attr(attr, ttl) = answer else { panic!("{answer:?}") };
        assert_eq!((cost, attr.size, ttl), (0, 10, Duration::ZERO), "{set:?}");
        assert_eq!(attr.mtime.seconds, 1_000_000);
    }
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 1);
    let attr = mounted.session.lstat(b"f").expect("stat");
    assert_eq!((attr.size, attr.uid, attr.gid, attr.mode), (10, 0, 0, 0o640));
    assert_eq!(attr.modified, Timestamp { seconds: 1_000_000, nanoseconds: 5 });
    assert_eq!(mounted.dirty_bytes(), 0);
    // Of what is closed nobody would tell what it fails with.
    assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o644))), 1);
}

/// Whatever looks at the file, or changes it, finds it as it was told to be.
#[test]
fn what_is_set_of_a_new_file_is_there_before_anything_else_is_done_with_it() {
    let changed = |mounted: &mut Mounted, name: &[u8]| {
        let (node, fh) = mounted.create(ROOT, name);
        assert_eq!(mounted.cost(node, Op::SetAttr(TIMES)), 0);
        assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o644))), 0);
        (node, fh)
    };
    let mut mounted = mounted();
    let (node, _) = changed(&mut mounted, b"a");
    let (cost, attr) = mounted.attr(node);
    assert_eq!((cost, attr.mode & 0o777, attr.mtime.seconds), (2, 0o644, 1_000_000));
    changed(&mut mounted, b"b");
    let looked = mounted.op(ROOT, Op::Lookup { name: b"b" });
    assert!(matches!(looked, Answer::Entry(entry) if entry.attr.mode & 0o777 == 0o644));
    // A write comes after the time that was set, and gives another.
    let (node, fh) = changed(&mut mounted, b"c");
    assert_eq!(mounted.write(node, fh, b"bytes"), 2);
    let attr = mounted.session.lstat(b"c").expect("stat");
    assert_eq!((attr.size, attr.mode), (5, 0o644));
    assert_ne!(attr.modified.seconds, 1_000_000);
    let (node, _) = changed(&mut mounted, b"d");
    assert_eq!(mounted.cost(node, Op::Open { flags: libc::O_RDONLY as u32 }), 2);
    assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o666))), 1, "somebody else has it open");
    changed(&mut mounted, b"e");
    mounted.cost(ROOT, Op::Rename { name: b"e", to_dir: ROOT, to: b"f", flags: 0 });
    assert_eq!(mounted.true_size_and_mode(b"f").1, 0o644);
    let (node, _) = changed(&mut mounted, b"g");
    mounted.cost(ROOT, Op::Link { from: node, name: b"h" });
    assert_eq!(mounted.true_size_and_mode(b"h").1, 0o644);
    changed(&mut mounted, b"i");
    mounted.cost(ROOT, Op::SyncFs);
    assert_eq!(mounted.true_size_and_mode(b"i").1, 0o644);
    let (node, fh) = changed(&mut mounted, b"j");
    mounted.cost(node, Op::FSync { fh, data_only: false });
    assert_eq!(mounted.true_size_and_mode(b"j").1, 0o644);
    // A chown(2) that gives neither owner nor group.
    let (node, _) = changed(&mut mounted, b"k");
    let Answer::Attr(attr, ttl) = mounted.op(node, Op::SetAttr(NOTHING)) else { panic!("attr") };
    assert_eq!((attr.mode & 0o777, attr.mtime.seconds, ttl), (0o644, 1_000_000, LONG));
}

/// What takes rights away, or gives the file away, is done when it is answered.
#[test]
fn what_others_may_rely_on_is_set_at_once() {
    let mut mounted = mounted();
    let (node, fh) = mounted.create(ROOT, b"f");
    assert_eq!(mounted.cost(node, Op::SetAttr(TIMES)), 0);
    assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o400))), 1, "with the times before it");
    let attr = mounted.session.lstat(b"f").expect("stat");
    assert_eq!((attr.mode, attr.modified.seconds), (0o400, 1_000_000));
    let now = SetAttr { mtime: Some(SetTime::Now), ..NOTHING };
    assert_eq!(mounted.cost(node, Op::SetAttr(now)), 1);
    assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o4755))), 1);
    assert_eq!(mounted.cost(node, Op::SetAttr(TIMES)), 1, "of a program with setuid");
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
}

/// `tar x` of root: times, the owner, the mode. The owner is in the place of the close.
#[test]
fn files_of_others_are_unpacked_in_one_round_trip_more() {
    let mut mounted = mounted();
    let (node, fh) = mounted.create(ROOT, b"f");
    let owner = SetAttr { uid: Some(7), gid: Some(8), ..NOTHING };
    let costs = [TIMES, owner, mode(0o644)].map(|set| mounted.cost(node, Op::SetAttr(set)));
    assert_eq!(costs, [0, 1, 0]);
    let attr = mounted.session.lstat(b"f").expect("stat");
    assert_eq!((attr.uid, attr.gid, attr.modified.seconds), (7, 8, 1_000_000));
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 1);
    assert_eq!(mounted.true_size_and_mode(b"f").1, 0o644);
}

/// A file that is made and stays open.
#[test]
fn what_is_set_of_a_new_file_is_told_a_moment_later() {
    let mut mounted = mounted();
    for name in [b"f", b"g"] {
        let (node, _) = mounted.create(ROOT, name);
        assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o644))), 0);
        let start = Instant::now();
        while mounted.true_size_and_mode(name).1 != 0o644 {
            assert!(start.elapsed() < Duration::from_secs(10));
        }
    }
}

/// Another machine gave the file to somebody else meanwhile.
#[test]
fn a_close_tells_what_could_not_be_set() {
    let mut mounted = mounted();
    mounted.fs = files_of(&mounted.session, FsOptions { all_users: true, ..believing(LONG) });
    mounted.session.set_attr(b"", as_set(0o777), false).expect("chmod");
    mounted.caller = Caller { uid: 7, gid: 8, pid: 0 };
    // The server is told of the user first.
    mounted.op(ROOT, Op::Access { mask: 7 });
    let (node, fh) = mounted.create(ROOT, b"f");
    let given = dafs_protocol::SetAttr { uid: Some(9), ..Default::default() };
    mounted.session.set_attr(b"f", given, false).expect("chown");
    assert_eq!(mounted.cost(node, Op::SetAttr(mode(0o644))), 0);
    let flush = Op::Flush { fh, owner: 1 };
    assert_eq!(mounted.op(node, flush), Answer::Error(libc::EPERM));
    assert_eq!(mounted.op(node, flush), Answer::Done, "told once");
    assert_eq!(mounted.true_size_and_mode(b"f").1, 0o600);
}

/// A file that is copied: LOOKUP, CREATE, GETATTR of the directory, WRITE, FLUSH. Its first write
/// is flushed in the same round trip; what comes later is flushed at the close.
#[test]
fn a_close_takes_a_round_trip_only_after_a_second_write() {
    let mut mounted = mounted();
    let (node, fh) = mounted.create(ROOT, b"f");
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
    assert_eq!(mounted.write(node, fh, b"some bytes"), 1);
    assert_eq!(mounted.dirty_bytes(), 0, "in the store, not in the cache alone");
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
    assert_eq!(mounted.write(node, fh, b"other"), 1);
    assert_ne!(mounted.dirty_bytes(), 0);
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 1);
    assert_eq!(mounted.dirty_bytes(), 0);
    assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
}

#[test]
fn a_file_that_is_cut_is_flushed_in_the_same_round_trip() {
    let mut mounted = mounted();
    let (node, fh) = mounted.create(ROOT, b"f");
    mounted.write(node, fh, b"some bytes");
    for wanted in [Some(fh), None] {
        mounted.write(node, fh, b"some bytes");
        let cut = SetAttr { fh: wanted, size: Some(4), ..SetAttr::default() };
        assert_eq!(mounted.cost(node, Op::SetAttr(cut)), 1);
        assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
        assert_eq!(mounted.true_size_and_mode(b"f").0, 4);
    }
}

/// What was written through several opens is flushed before anything is set.
#[test]
fn all_opens_are_flushed_before_times_are_set() {
    let mut mounted = mounted();
    let (node, fh) = mounted.create(ROOT, b"f");
    let open = Op::Open { flags: libc::O_WRONLY as u32 };
    let Answer::Opened(second) = mounted.op(node, open) else { panic!("open") };
    for _ in 0..2 {
        mounted.write(node, fh, b"some bytes");
    }
    mounted.write(node, second.fh, b"other");
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    mounted.cost(node, Op::SetAttr(set));
    for fh in [fh, second.fh] {
        assert_eq!(mounted.cost(node, Op::Flush { fh, owner: 1 }), 0);
    }
    assert_eq!(mounted.true_size_and_mode(b"f"), (10, 0o644));
}

/// After each change of a directory the kernel asks for its attributes.
#[test]
fn attributes_of_a_changed_directory_take_no_round_trip_of_their_own() {
    let mut mounted = mounted();
    let mkdir = |name| Op::MkDir { name, mode: 0o755, umask: 0 };
    let one = mounted.entry(ROOT, mkdir(b"one")).node;
    assert_eq!(mounted.attr(ROOT).0, 0);
    let two = mounted.entry(ROOT, mkdir(b"two")).node;
    assert_eq!((mounted.attr(ROOT).0, mounted.attr(two).0), (0, 1));
    mounted.entry(one, Op::SymLink { name: b"s", target: b"x" });
    assert_eq!(mounted.attr(one).0, 0);
    assert_eq!(mounted.attr(one).0, 1, "what was learned is told once");
    let fifo = Op::MkNod { name: b"p", mode: libc::S_IFIFO | 0o644, rdev: 0, umask: 0 };
    let fifo = mounted.entry(one, fifo).node;
    assert_eq!(mounted.attr(one).0, 0);
    mounted.entry(one, Op::Link { from: fifo, name: b"q" });
    assert_eq!(mounted.attr(one).0, 0);
    let rename = |name, to_dir, to| Op::Rename { name, to_dir, to, flags: 0 };
    assert_eq!(mounted.cost(one, rename(b"p", two, b"p")), 1);
    assert_eq!((mounted.attr(one).0, mounted.attr(two).0), (0, 0));
    assert_eq!(mounted.cost(two, rename(b"p", two, b"r")), 1);
    assert_eq!(mounted.attr(two).0, 0);
    assert_eq!(mounted.cost(two, Op::Unlink { name: b"r" }), 1);
    let (cost, attr) = mounted.attr(two);
    assert_eq!((cost, attr.nlink), (0, 2));
    assert_eq!(mounted.cost(ROOT, Op::RmDir { name: b"two" }), 1);
    let (cost, attr) = mounted.attr(ROOT);
    let truth = mounted.session.lstat(b"").expect("stat");
    assert_eq!((cost, attr.nlink, attr.mtime), (0, truth.links, truth.modified));
}

/// What a change learned of a directory does not outlive another change.
#[test]
fn what_was_learned_of_a_directory_ends_with_the_next_change() {
    let mut mounted = mounted();
    let make = Op::MkDir { name: b"dir", mode: 0o755, umask: 0 };
    let dir = mounted.entry(ROOT, make).node;
    mounted.entry(dir, Op::SymLink { name: b"s", target: b"x" });
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    mounted.cost(dir, Op::SetAttr(set));
    assert_eq!(mounted.attr(dir).1.mode & 0o7777, 0o700);
    mounted.entry(dir, Op::SymLink { name: b"t", target: b"x" });
    let value = b"value".as_slice();
    mounted.cost(dir, Op::SetXattr { name: b"user.a", value, flags: 0 });
    assert_eq!(mounted.attr(dir).0, 1);
    mounted.entry(dir, Op::SymLink { name: b"u", target: b"x" });
    mounted.cost(ROOT, Op::Rename { name: b"dir", to_dir: ROOT, to: b"moved", flags: 0 });
    assert_eq!(mounted.attr(dir).0, 1, "a rename changes what is moved");
    assert_eq!(mounted.attr(ROOT).0, 0);
    // A change that failed may have been done in part.
    mounted.entry(dir, Op::SymLink { name: b"v", target: b"x" });
    let again = mounted.op(dir, Op::SymLink { name: b"v", target: b"x" });
    assert_eq!(again, Answer::Error(libc::EEXIST));
    assert_eq!(mounted.attr(dir).0, 1);
}

fn make_files(mounted: &mut Mounted, count: u64) {
    for i in 0..count {
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        mounted.session.open(format!("file-{i:04}").as_bytes(), options).expect("make");
    }
}

fn open_dir(mounted: &mut Mounted) -> u64 {
    let (cost, opened) = mounted.cost_and_answer(ROOT, Op::OpenDir { flags: 0 });
    let Answer::Opened(opened) = opened else { panic!("{opened:?}") };
    assert_eq!(cost, 0);
    opened.fh
}

/// Entries from `offset` on, as far as one answer goes: their names and positions; and round trips.
fn list(mounted: &mut Mounted, fh: u64, offset: u64) -> (Vec<(Vec<u8>, u64)>, u64) {
    let op = Op::ReadDir { fh, offset, size: 32 << 10, plus: true };
    let (cost, answer) = mounted.cost_and_answer(ROOT, op);
    let Answer::Data(list) = answer else { panic!("{answer:?}") };
    let (mut rest, mut entries) = (list.as_slice(), Vec::new());
    while !rest.is_empty() {
        // Attributes, then inode, cookie, length of the name, kind.
        let number = |at: usize| u64::from_ne_bytes(rest[at..at + 8].try_into().expect("8"));
        let len = number(128 + 16) as u32 as usize;
        let name = &rest[128 + 24..128 + 24 + len];
        assert!(number(0) != 0 || name == b"." || name == b"..", "without attributes: {name:?}");
        entries.push((name.to_vec(), number(128 + 8)));
        rest = &rest[(128 + 24 + len).next_multiple_of(8)..];
    }
    (entries, cost)
}

/// All that follows `offset`.
fn list_all(mounted: &mut Mounted, fh: u64, mut offset: u64) -> (Vec<Vec<u8>>, u64) {
    let (mut names, mut trips) = (Vec::new(), 0);
    loop {
        let (entries, cost) = list(mounted, fh, offset);
        trips += cost;
        let Some(last) = entries.last() else { return (names, trips) };
        offset = last.1;
        names.extend(entries.into_iter().map(|entry| entry.0));
    }
}

/// A list answers for all its entries: names, attributes, handles.
#[test]
fn a_directory_is_listed_in_few_round_trips() {
    let mut mounted = mounted();
    make_files(&mut mounted, 300);
    let fh = open_dir(&mut mounted);
    let (names, trips) = list_all(&mut mounted, fh, 0);
    assert_eq!(names.len(), 300 + 2);
    assert!(trips <= 3, "{trips} round trips");
    assert_eq!(mounted.cost(ROOT, Op::ReleaseDir { fh }), 0);
}

/// What was asked for ahead is only used where the reader goes on there.
#[test]
fn a_directory_is_read_from_any_position() {
    let mut mounted = mounted();
    make_files(&mut mounted, 900);
    let fh = open_dir(&mut mounted);
    let (names, _) = list_all(&mut mounted, fh, 0);
    assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), 900 + 2);
    let (begin, _) = list(&mut mounted, fh, 0);
    let middle = begin[begin.len() / 2].1;
    let (rest, _) = list_all(&mut mounted, fh, middle);
    assert_eq!(rest, names[begin.len() / 2 + 1..]);
    // Closed with entries on their way.
    list(&mut mounted, fh, 0);
    mounted.op(ROOT, Op::ReleaseDir { fh });
    let fh = open_dir(&mut mounted);
    assert_eq!(list_all(&mut mounted, fh, 0).0, names);
}

/// Another machine puts a file of so many bytes there.
fn put(mounted: &Mounted, name: &[u8], bytes: usize) {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = mounted.session.open(b"new", options).expect("make");
    file.write_flushed(&vec![7; bytes], 0).expect("write");
    file.close().expect("close");
    mounted.session.rename(b"new", name).expect("rename");
}

fn open(mounted: &mut Mounted, node: u64) -> Answer {
    mounted.op(node, Op::Open { flags: libc::O_RDONLY as u32 })
}

/// The number is that of the new file from then on: asked by the old one's handle, a server that
/// still holds that one could answer with its size.
#[test]
fn what_is_opened_in_the_place_of_a_file_that_is_gone_is_asked_for_itself() {
    let mut mounted = mounted();
    put(&mounted, b"f", 10);
    let node = mounted.entry(ROOT, Op::Lookup { name: b"f" }).node;
    for bytes in [20, 30] {
        put(&mounted, b"f", bytes);
        let Answer::Opened(opened) = open(&mut mounted, node) else { panic!("open") };
        let (cost, attr) = mounted.attr(node);
        assert_eq!((cost, attr.size), (1, bytes as u64));
        let own = mounted.session.lstat(b"f").expect("stat").inode;
        assert_eq!((attr.ino, mounted.entry(ROOT, Op::Lookup { name: b"f" }).node), (own, node));
        // While it is open, the number stays with what it is.
        put(&mounted, b"f", 5);
        let (cost, attr) = mounted.attr(node);
        assert_eq!((cost, attr.ino, attr.nlink), (1, own, 0));
        let release = Op::Release { fh: opened.fh, flags: 0, owner: 0, flock_unlock: false };
        assert_eq!(mounted.op(node, release), Answer::Done);
    }
}

/// The kernel does not say by which of its names a file is opened.
#[test]
fn a_file_of_two_names_that_is_gone_is_not_opened_in_the_place_of_either() {
    let mut mounted = mounted();
    put(&mounted, b"a", 10);
    mounted.session.link(b"a", b"b").expect("link");
    let node = mounted.entry(ROOT, Op::Lookup { name: b"a" }).node;
    let lookup = mounted.op(ROOT, Op::Lookup { name: b"b" });
    assert!(matches!(lookup, Answer::Entry(other) if other.node == node), "{lookup:?}");
    for name in [b"a", b"b"] {
        put(&mounted, name, 20);
    }
    assert_eq!(open(&mut mounted, node), Answer::Error(libc::ESTALE));
}

/// The kernel would have asked for the name: it means the file that it was.
#[test]
fn a_file_that_is_gone_is_not_opened_by_a_name_that_is_not_believed_any_more() {
    let mut mounted = mounted_with(Duration::ZERO);
    put(&mounted, b"f", 10);
    let node = mounted.entry(ROOT, Op::Lookup { name: b"f" }).node;
    put(&mounted, b"f", 20);
    assert_eq!(open(&mut mounted, node), Answer::Error(libc::ESTALE));
}

/// ESTALE lets the kernel look its name up again.
#[test]
fn a_link_to_a_file_that_is_gone_is_stale() {
    let mut mounted = mounted();
    put(&mounted, b"f", 10);
    let node = mounted.entry(ROOT, Op::Lookup { name: b"f" }).node;
    put(&mounted, b"f", 20);
    let link = mounted.op(ROOT, Op::Link { from: node, name: b"g" });
    assert_eq!(link, Answer::Error(libc::ESTALE));
}

/// The kernel takes what lacks at a file's end for zeros, up to the size that it believes: a read
/// that ends before a size told since may be older than that.
#[test]
fn a_short_read_is_repeated_where_a_larger_size_was_told() {
    let mut mounted = mounted();
    put(&mounted, b"f", 100);
    let node = mounted.entry(ROOT, Op::Lookup { name: b"f" }).node;
    let Answer::Opened(opened) = open(&mut mounted, node) else { panic!("open") };
    let read = Op::Read { fh: opened.fh, offset: 0, size: 4096, flags: 0 };
    assert_eq!(mounted.cost_and_answer(node, read), (1, Answer::Read(100)));
    let cut = dafs_protocol::SetAttr { size: Some(40), ..Default::default() };
    mounted.session.set_attr(b"f", cut, false).expect("cut");
    assert_eq!(mounted.cost_and_answer(node, read), (2, Answer::Read(40)));
    assert_eq!(mounted.cost_and_answer(node, read), (1, Answer::Read(40)), "it was cut");
}
