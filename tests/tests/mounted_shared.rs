//! What a mount copies where the server shares memory with it: the file system, called as the kernel calls it,
//! and a server in this process. Copies are those of both ends, so nothing else may run here.

use std::sync::Arc;

use dafs_client::{OpenOptions, Session, SessionOptions};
use dafs_fabric::{Address, Buffer};
use dafs_fabric_shm::ShmProvider;
use dafs_fuse::fs::{DafsFs, FsOptions};
use dafs_fuse::kernel::{Answer, Caller, FileSystem, Op};
use dafs_server::{Config, Server};

const LENGTH: usize = 1 << 20;

#[test]
fn a_large_read_is_copied_once_and_not_by_the_mount() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("served")).expect("a directory");
    let mut config = Config::for_directory(directory.path().join("served"));
    config.listen = vec![format!("shm:{}", directory.path().join("shm").display())];
    config.arena_bytes = Some(64 << 20);
    config.state = Some(directory.path().join("state"));
    // Otherwise memory of the mount's own is read from the cache itself, with one copy, too.
    config.shared_cache = false;
    let server = Server::start(&config, Arc::new(ShmProvider::new()), &dafs_store_posix::open);
    let server = server.expect("a server");
    let address: &Address = &server.addresses()[0];
    let session =
        Session::connect(Arc::new(ShmProvider::new()), address, SessionOptions::default());
    let session = session.expect("connects");
    assert_eq!(session.info().transport, "shm");
    let file = session.open(b"file", OpenOptions { create: true, ..OpenOptions::write() });
    let file = file.expect("opens");
    file.write_at(&vec![7; LENGTH], 0).expect("writes");

    let fs = DafsFs::new(session.clone(), b"", FsOptions::default()).expect("root");
    let caller = Caller { uid: 0, gid: 0, pid: 0 };
    let mut own = Buffer::new(LENGTH).expect("memory");
    let mut call = |node, op: Op<'_>| fs.call(&caller, node, op, &mut own);
    let Answer::Entry(entry) = call(1, Op::Lookup { name: b"file" }) else { panic!("no file") };
    let flags = (libc::O_RDONLY | libc::O_DIRECT) as u32;
    let Answer::Opened(opened) = call(entry.node, Op::Open { flags }) else { panic!("not open") };
    let copies = |room: &mut Buffer| {
        room.fill(0);
        let before = session.info().copied_bytes;
        let read = Op::Read { fh: opened.fh, offset: 0, size: LENGTH as u32, flags };
        assert_eq!(fs.call(&caller, entry.node, read, room), Answer::Read(LENGTH));
        assert!(room.iter().all(|byte| *byte == 7));
        session.info().copied_bytes - before
    };
    // The server's, into memory that stands in, and the mount's.
    assert!(copies(&mut own) >= 2 * LENGTH as u64);
    let mut shared = fs.buffer(LENGTH).expect("memory");
    assert!(copies(&mut shared) < LENGTH as u64 * 5 / 4);
    drop((file, fs, session));
    server.stop();
}
