//! A worker over a store in memory and a client, in one process over loopback TCP.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Call, Error, File, Interrupt, OpenOptions, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::{
    Extent, FileKind, Identity, LockKind, LockRange, LockRequest, OwnerKey, SetAttr, Status,
};
use dafs_server::Limits;
use dafs_store::memory::MemoryStore;
use dafs_tests::in_process::{self, InProcess, late_store};
use dafs_tests::tree::pattern;

fn serve() -> InProcess {
    in_process::serve(MemoryStore::new(), Limits::default())
}

fn connect(running: &InProcess) -> Session {
    let options = SessionOptions { retry: Duration::from_secs(2), ..SessionOptions::default() };
    Session::connect(Arc::new(TcpProvider::default()), &running.address, options).expect("connect")
}

#[test]
fn files_of_all_sizes_come_back_as_written() {
    let running = serve();
    let session = connect(&running);
    for (i, len) in [0, 1, 511, 4096, 4097, 65_536, 1_000_003, 9_000_001].into_iter().enumerate() {
        let name = format!("file-{i}");
        let data = pattern(i as u64, len);
        let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
        let file = session.open(name.as_bytes(), options).expect("open");
        assert_eq!(file.write_at(&data, 0).expect("write"), len);
        let mut back = vec![0; len + 10];
        assert_eq!(file.read_at(&mut back, 0).expect("read"), len);
        assert!(back[..len] == data[..], "file of {len} bytes");
        assert_eq!(file.close().expect("close").size, len as u64);
        assert_eq!(session.stat(name.as_bytes()).expect("stat").size, len as u64);
    }
}

/// A way that is not wanted is not gone: only RDMA registers.
#[test]
fn data_goes_as_both_sides_want() {
    let ways = [(true, true), (false, true), (true, false), (false, false)];
    for (server, (tags, client)) in [true, false].into_iter().flat_map(|s| ways.map(|w| (s, w))) {
        let running = in_process::serve(
            MemoryStore::new(),
            Limits { rdma_read: server, ..Limits::default() },
        );
        let options = SessionOptions { tags, rdma_read: client, ..SessionOptions::default() };
        let session = Session::connect(Arc::new(TcpProvider::default()), &running.address, options)
            .expect("connect");
        let attr = session.info().attr;
        assert_eq!((attr.tagged, attr.rdma_read), (tags, client && server));
        let data = pattern(1, 3_000_003);
        let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
        let file = session.open(b"file", options).expect("open");
        let before = dafs_fabric::mem::registrations();
        assert_eq!(file.write_at(&data, 0).expect("write"), data.len());
        let written = dafs_fabric::mem::registrations();
        assert_eq!(written > before, !tags && client && server, "{server} {tags} {client}");
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_at(&mut back, 0).expect("read"), data.len());
        assert!(back == data, "{server} {tags} {client}");
        assert_eq!(dafs_fabric::mem::registrations() > written, !tags, "{server} {tags} {client}");
    }
}

#[test]
fn a_file_without_a_name_can_be_cut() {
    let running = serve();
    let session = connect(&running);
    let options = OpenOptions { read: true, ..OpenOptions::write() };
    let file = session.open(b"gone", options).expect("open");
    file.write_at(&[1; 5000], 0).expect("write");
    session.remove(b"gone").expect("remove");
    file.set_len(100).expect("set_len");
    assert_eq!(file.attr().expect("attr").size, 100);
}

/// All lists together are more than the cache: nobody may wait for pages while all hold some.
#[test]
fn lists_larger_than_the_cache_end() {
    const PIECE: usize = 256 << 10;
    const PIECES: u64 = 128;
    let running = in_process::serve_with_arena(late_store(), Limits::default(), 16 << 20);
    let session = connect(&running);
    let options = OpenOptions { read: true, ..OpenOptions::write() };
    let file = session.open(b"large", options).expect("open");
    for i in 0..PIECES {
        file.write_at(&vec![i as u8; PIECE], i * PIECE as u64).expect("write");
    }
    let group = session.group();
    let at = |call: u64, piece: u64| (call * 37 + piece * 53 + call / 11) % PIECES;
    let submit = |call: u64, buffer| {
        let extent = |piece| Extent {
            offset: at(call, piece) * PIECE as u64,
            len: PIECE as u32,
            count: 1,
            stride: 0,
        };
        let extents = (0..4).map(extent).collect();
        let call_of = Call::ReadList { file: file.clone(), extents, buffer };
        assert!(group.submit(call, call_of).is_ok(), "room for call {call}");
    };
    let mut next = 0;
    for buffer in Buffer::many(48, 4 * PIECE).expect("buffers") {
        submit(next, buffer);
        next += 1;
    }
    let mut ended = 0;
    while ended < 400 {
        let done = group.wait(1, Some(Duration::from_secs(20)));
        assert!(!done.is_empty(), "{ended} calls ended, then nothing");
        for done in done {
            ended += 1;
            let buffer = done.buffer.expect("given back");
            assert!(done.result.is_ok(), "{:?}", done.result);
            for piece in 0..4 {
                let bytes = &buffer[piece as usize * PIECE..][..PIECE];
                assert!(bytes.iter().all(|byte| *byte == at(done.tag, piece) as u8));
            }
            submit(next, buffer);
            next += 1;
        }
    }
}

#[test]
fn names_follow_the_rules() {
    let running = serve();
    let session = connect(&running);
    session.mkdir(b"dir", 0o755).expect("mkdir");
    assert!(session.mkdir(b"dir", 0o755).is_err());
    session.symlink(b"dir", b"link").expect("symlink");
    assert_eq!(session.read_link(b"link").expect("readlink"), b"dir");
    session.rename(b"dir", b"other").expect("rename");
    assert!(session.stat(b"dir").is_err());
    let names: Vec<_> =
        session.read_dir(b"").expect("list").map(|entry| entry.expect("entry").name).collect();
    assert_eq!(names.len(), 2);
    session.remove_dir(b"other").expect("rmdir");
    session.remove(b"link").expect("remove");
    assert_eq!(session.read_dir(b"").expect("list").count(), 0);
}

const OWNER: OwnerKey = OwnerKey { kind: LockKind::Posix, number: 1 };

fn lock_all(exclusive: bool) -> LockRequest {
    LockRequest { owner: OWNER, range: LockRange::ALL, exclusive, pid: 1 }
}

fn read_write(session: &Session, name: &[u8]) -> File {
    let options = OpenOptions { read: true, truncate: false, ..OpenOptions::write() };
    session.open(name, options).expect("open")
}

#[test]
fn two_sessions_hand_a_lock_over() {
    const ROUNDS: u64 = 200;
    let running = serve();
    let sessions = [connect(&running), connect(&running)];
    let count = |session: &Session| {
        let file = read_write(session, b"count");
        for _ in 0..ROUNDS {
            file.lock(&lock_all(true), true).expect("lock");
            let mut bytes = [0; 8];
            file.read_at(&mut bytes, 0).expect("read");
            let next = u64::from_le_bytes(bytes) + 1;
            file.write_at(&next.to_le_bytes(), 0).expect("write");
            file.unlock(OWNER, LockRange::ALL).expect("unlock");
        }
    };
    std::thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(move || count(session));
        }
    });
    let mut bytes = [0; 8];
    read_write(&sessions[0], b"count").read_at(&mut bytes, 0).expect("read");
    assert_eq!(u64::from_le_bytes(bytes), 2 * ROUNDS, "nobody counted under the other's lock");
}

#[test]
fn a_lock_is_seen_by_others_and_ends_with_its_file() {
    let running = serve();
    let (first, second) = (connect(&running), connect(&running));
    let (ours, theirs) = (read_write(&first, b"f"), read_write(&second, b"f"));
    ours.lock(&lock_all(false), false).expect("shared");
    assert_eq!(theirs.test_lock(&lock_all(false)), Ok(None));
    let held = theirs.test_lock(&lock_all(true)).expect("test").expect("held");
    assert_eq!(held, (lock_all(false), false));
    let refused = theirs.lock(&lock_all(true), false).expect_err("held");
    assert_eq!(refused.status(), Some(Status::Again));
    ours.close().expect("close");
    theirs.lock(&lock_all(true), false).expect("free");
}

#[test]
fn an_interrupted_waiter_does_not_stand_in_the_way() {
    let running = serve();
    let (first, second) = (connect(&running), connect(&running));
    let (ours, theirs) = (read_write(&first, b"f"), read_write(&second, b"f"));
    ours.lock(&lock_all(false), true).expect("shared");
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let _guard = interrupt.watch();
            theirs.lock(&lock_all(true), true)
        });
        interrupt.fire();
        assert_eq!(waiter.join().expect("a thread"), Err(Error::Interrupted));
    });
    // A reader behind a writer in the queue would wait.
    let third = connect(&running);
    read_write(&third, b"f").lock(&lock_all(false), false).expect("nobody waits");
}

#[test]
fn a_process_acts_for_other_users() {
    let running = serve();
    let session = connect(&running);
    if session.info().uid != 0 {
        println!("skipped: not root");
        return;
    }
    let root = session.root().expect("root").handle;
    session.set_attr_of(root, SetAttr { mode: Some(0o777), ..SetAttr::default() }).expect("mode");
    let user = session.as_user(&Identity { uid: 1234, gid: 1235, groups: vec![7] });
    let options = OpenOptions { mode: 0o600, read: true, ..OpenOptions::write() };
    let (file, created) = user.open_at(root, b"theirs", options).expect("open");
    assert!(created);
    assert_eq!((file.opened_attr().uid, file.opened_attr().gid), (1234, 1235));
    let other = session.as_user(&Identity { uid: 99, gid: 99, groups: Vec::new() });
    let refused = other.open_at(file.handle(), b"", OpenOptions::read()).expect_err("0600");
    assert_eq!(refused.status(), Some(Status::Access));
    let again = user.open_at(file.handle(), b"", OpenOptions::read()).expect("open");
    assert!(!again.1);
    let dir = user.make_at(root, b"dir", FileKind::Directory, 0o755, 0, b"").expect("mkdir").done;
    user.rename_at(root, b"theirs", dir.handle, b"moved", (false, false, false)).expect("rename");
    assert_eq!(user.parent_of(dir.handle).expect("parent").attr.inode, {
        session.attr_of(root).expect("attr").inode
    });
    let (entries, end) = user.read_dir_of(dir.handle, 0, 4096, true).expect("entries");
    assert!(end && entries.len() == 1);
    assert_eq!(entries[0].handle.map(|handle| user.attr_of(handle).expect("attr").uid), Some(1234));
    user.remove_at(dir.handle, b"moved", false).expect("remove");
    assert_eq!(
        user.lookup_at(dir.handle, b"moved").expect_err("removed").status(),
        Some(Status::NoEnt)
    );
    let unlinked = OpenOptions { unlinked: true, ..options };
    let (file, _) = user.open_at(dir.handle, b"", unlinked).expect("a file without a name");
    file.write_at(b"data", 0).expect("write");
    file.flush().expect("flush");
    let linked = file.link_to(dir.handle, b"named").expect("link").done;
    assert_eq!((linked.attr.size, linked.attr.links), (4, 1));
}
