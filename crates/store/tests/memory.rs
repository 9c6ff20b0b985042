//! The store in memory: the suite, and what only it can do.

mod suite;

use std::sync::{Arc, Mutex};

use dafs_protocol::{OpenFlags, Status, Timestamp};
use dafs_store::memory::{FaultKind, Job, MemoryOptions, MemoryStore};
use dafs_store::{Caller, Store};
use suite::{Fs, MAKE, READ, error, read, user, write};

impl suite::Made for MemoryStore {
    fn store(&self) -> &dyn Store {
        self
    }

    fn switches(&self) -> bool {
        true
    }

    /// Its root is not that of this machine.
    fn caller(&self) -> Caller {
        user(0, 0, &[])
    }
}

fn make() -> MemoryStore {
    MemoryStore::new()
}

store_suite!(make, rights);

/// All of it again with calls done by another thread.
mod later {
    use super::*;

    fn make() -> MemoryStore {
        let (jobs, work) = std::sync::mpsc::channel::<Job>();
        std::thread::spawn(move || work.into_iter().for_each(|job| job()));
        MemoryStore::with_scheduler(Arc::new(move |job| {
            jobs.send(job).expect("the worker lives as long as the store");
        }))
    }

    store_suite!(make, rights);
}

#[test]
fn a_crash_takes_unsynced_data() {
    let store = MemoryStore::new();
    let fs = Fs::new(&store);
    let kept = fs.open("kept", MAKE).expect("open");
    write(&*kept.file, 0, b"synced").expect("write");
    kept.file.sync(true).wait().expect("sync");
    write(&*kept.file, 3, b"later on").expect("write");
    fs.file("lost", b"never synced");
    let unlinked = fs.open("unlinked", MAKE).expect("open");
    fs.remove("unlinked", false).expect("remove");
    let files = store.files();
    store.crash();
    assert_eq!(store.files(), files - 1, "what has no name is gone");
    assert_eq!(fs.bytes("kept"), b"synced");
    assert_eq!(fs.bytes("lost"), b"");
    assert_eq!(error(read(&*kept.file, 0, 1)), Status::Stale);
    assert_eq!(error(write(&*unlinked.file, 0, b"x")), Status::Stale);
    assert_eq!(fs.store.attr(&fs.caller, &kept.handle).wait().expect("handles stay").size, 6);
    drop((kept, unlinked));
    assert_eq!(store.used_bytes(), 4096);
    fs.file("lost", b"again");
    fs.store.sync_fs().wait().expect("sync");
    store.crash();
    assert_eq!(fs.bytes("lost"), b"again");
}

#[test]
fn space_ends() {
    let options = MemoryOptions { capacity_bytes: 8192, ..MemoryOptions::default() };
    let store = MemoryStore::with_options(options);
    let fs = Fs::new(&store);
    let opened = fs.open("f", MAKE).expect("open");
    write(&*opened.file, 0, &[1; 8192]).expect("fits");
    assert_eq!(error(write(&*opened.file, 8192, &[1; 1])), Status::NoSpc);
    write(&*opened.file, 0, &[2; 8192]).expect("no new block");
    assert_eq!(error(opened.file.fallocate(0, 0, 9000, true).wait()), Status::NoSpc);
    assert_eq!(fs.store.fs_attr(&fs.caller, &fs.root).wait().expect("attr").bytes_free, 0);
    fs.remove("f", false).expect("remove");
    assert_eq!(store.used_bytes(), 8192, "open still");
    drop(opened);
    assert_eq!(store.used_bytes(), 0);
    store.set_capacity(0);
    let opened = fs.open("g", MAKE).expect("open");
    assert_eq!(error(write(&*opened.file, 0, b"x")), Status::NoSpc);
}

#[test]
fn faults_happen_as_injected() {
    let store = MemoryStore::new();
    let fs = Fs::new(&store);
    let opened = fs.open("f", MAKE).expect("open");
    let file = &*opened.file;
    write(file, 0, b"0123").expect("write");
    store.inject(FaultKind::Read, 1, 2, Status::Io);
    assert_eq!(read(file, 0, 4).expect("the first is good"), b"0123");
    assert_eq!(error(read(file, 0, 4)), Status::Io);
    assert_eq!(error(read(file, 0, 4)), Status::Io);
    assert_eq!(read(file, 0, 4).expect("over"), b"0123");
    store.inject(FaultKind::Write, 0, 1, Status::NoSpc);
    assert_eq!(error(write(file, 0, b"abcd")), Status::NoSpc);
    assert_eq!(read(file, 0, 4).expect("nothing written"), b"0123");
    store.inject(FaultKind::ShortWrite, 0, 1, Status::DQuot);
    assert_eq!(error(write(file, 0, b"abcd")), Status::DQuot);
    assert_eq!(read(file, 0, 4).expect("half"), b"ab23");
    store.inject(FaultKind::Sync, 0, 1, Status::Io);
    assert_eq!(error(file.sync(true).wait()), Status::Io);
    store.inject(FaultKind::Change, 0, 1, Status::Io);
    assert_eq!(error(fs.open("new", MAKE)), Status::Io);
    assert_eq!(error(fs.find("new")), Status::NoEnt);
    store.inject(FaultKind::Change, 0, 5, Status::Io);
    assert_eq!(store.clear_faults(), 5);
    fs.mkdir("d");
}

#[test]
fn calls_complete_when_and_in_the_order_the_scheduler_likes() {
    let jobs: Arc<Mutex<Vec<Job>>> = Arc::default();
    let queue = jobs.clone();
    let store =
        MemoryStore::with_scheduler(Arc::new(move |job| queue.lock().expect("lock").push(job)));
    let caller = suite::myself();
    let mut root = store.root(&caller);
    assert!(root.try_take().is_none(), "not yet");
    jobs.lock().expect("lock").pop().expect("a job")();
    let root = root.try_take().expect("done").expect("root").handle;
    let exclusive = OpenFlags { create: dafs_protocol::CreateMode::Exclusive, ..MAKE };
    let mut first = store.open(&caller, &root, b"f", exclusive, 0o644);
    let mut second = store.open(&caller, &root, b"f", exclusive, 0o644);
    let mut taken: Vec<Job> = std::mem::take(&mut *jobs.lock().expect("lock"));
    taken.pop().expect("the second")();
    taken.pop().expect("the first")();
    assert!(second.try_take().expect("done").is_ok());
    assert_eq!(error(first.try_take().expect("done")), Status::Exist);
    let mut late = store.open(&caller, &root, b"f", READ, 0);
    store.crash();
    let job = jobs.lock().expect("lock").pop().expect("a job");
    job();
    assert_eq!(error(late.try_take().expect("done")), Status::Io, "not done after a crash");
}

#[test]
fn a_read_only_store_refuses_changes() {
    let store =
        MemoryStore::with_options(MemoryOptions { read_only: true, ..MemoryOptions::default() });
    let fs = Fs::new(&store);
    assert_eq!(error(fs.open("f", MAKE)), Status::RoFs);
    assert_eq!(error(fs.make("d", dafs_protocol::FileKind::Directory, 0o755)), Status::RoFs);
    assert_eq!(error(fs.chmod("", 0o700)), Status::RoFs);
    assert!(fs.store.fs_attr(&fs.caller, &fs.root).wait().expect("attr").read_only);
}

#[test]
fn times_come_from_the_clock() {
    let clock = Arc::new(|| Timestamp { seconds: 77, nanoseconds: 5 });
    let store = MemoryStore::with_options(MemoryOptions { clock, ..MemoryOptions::default() });
    let fs = Fs::new(&store);
    fs.file("f", b"x");
    assert_eq!(fs.attr("f").modified, Timestamp { seconds: 77, nanoseconds: 5 });
}
