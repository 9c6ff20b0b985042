//! A worker over a store in memory and a client, in one process over loopback TCP.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{OpenOptions, Session, SessionOptions};
use dafs_fabric_tcp::TcpProvider;
use dafs_server::Limits;
use dafs_store::memory::MemoryStore;
use dafs_tests::in_process::{self, InProcess};
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
