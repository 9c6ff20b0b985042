//! Too many open files: a process of its own, whose limit is lowered.

use std::os::unix::fs::MetadataExt;

use dafs_fabric::Buffer;
use dafs_protocol::{CreateMode, Identity, OpenFlags};
use dafs_store::Disk;
use dafs_store::{Answer, Store};
use dafs_store_posix::{HandleKey, OpenStoreError, PosixOptions, PosixStore};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const LEN: usize = 256 << 10;

#[test]
fn what_could_not_be_opened_once_is_tried_again() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("f"), vec![7; LEN]).expect("file");
    let key = Some(HandleKey([7; 16]));
    let options = PosixOptions { disk: Disk::Direct, key, ..PosixOptions::default() };
    let store = match PosixStore::open(dir.path(), options) {
        Ok(store) => store,
        Err(OpenStoreError::NotDirect { reason, .. }) => {
            return eprintln!("skipped: no direct I/O here: {reason}");
        }
        Err(error) => panic!("{error}"),
    };
    let myself = std::fs::metadata("/proc/self").expect("this process");
    let (uid, gid, groups) = (myself.uid(), myself.gid(), Vec::new());
    let caller = std::sync::Arc::new(Identity { uid, gid, groups });
    let root = store.root(&caller).wait().expect("root").handle;
    let flags = OpenFlags {
        read: true,
        write: false,
        create: CreateMode::No,
        truncate: false,
        append: false,
        no_follow: false,
        unlinked: false,
        again: false,
    };
    let file = store.open(&caller, &root, b"f", flags, 0).wait().expect("open").file;
    let buffer = Buffer::new(LEN).expect("buffer").post();
    let read =
        || -> Answer<usize> { file.read_at(0, [buffer.span().clone()].into_iter().collect()) };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).expect("a lower one");
    let mut taken = Vec::new();
    let full = loop {
        match std::fs::File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::EMFILE as i32));
    assert_eq!(read().wait(), Ok(LEN), "through the page cache");
    assert_eq!(store.direct_transfers(), 0);
    drop(taken);
    assert_eq!(read().wait(), Ok(LEN));
    assert_eq!(store.direct_transfers(), 1, "directly");
}
