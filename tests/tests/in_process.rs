//! A worker over a store in memory and a client, in one process over loopback TCP.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Call, OpenOptions, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::Extent;
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
