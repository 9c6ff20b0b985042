//! Files without a name.

use std::thread;

use dafs_protocol::{CreateMode, FileKind, OpenFlags, SetAttr, SetTime, Status, Timestamp};
use dafs_store::Opened;

use super::{BOTH, Fs, MAKE, READ, WRITE, error, read, user, write};

const UNLINKED: OpenFlags = OpenFlags { unlinked: true, ..BOTH };
const NEVER_LINKED: OpenFlags = OpenFlags { create: CreateMode::Exclusive, ..UNLINKED };

const FILES_GONE: usize = 5_000;

/// `None`: there are none here.
fn unlinked(fs: &Fs, path: &str, flags: OpenFlags) -> Option<Opened> {
    match fs.open(path, flags) {
        Err(Status::NotSupp) => {
            eprintln!("not of this store: no files without a name here");
            None
        }
        other => Some(other.expect("open")),
    }
}

pub fn a_file_without_a_name(fs: &Fs) {
    fs.mkdir("d");
    let Some(opened) = unlinked(fs, "d", UNLINKED) else { return };
    assert!(opened.created);
    let attr = &opened.attr;
    assert_eq!((attr.kind, attr.links, attr.size), (FileKind::File, 0, 0));
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o644, fs.caller.uid, fs.caller.gid));
    write(&*opened.file, 0, b"nameless").expect("write");
    assert_eq!(read(&*opened.file, 0, 99).expect("read"), b"nameless");
    let by_handle = fs.store.attr(&fs.caller, &opened.handle).wait().expect("while it is open");
    assert_eq!((by_handle.size, by_handle.inode), (8, attr.inode));
    assert!(fs.list("d").expect("list").is_empty());
    let other = unlinked(fs, "", UNLINKED).expect("in the root");
    assert_ne!(other.file.id(), opened.file.id());
    let handle = opened.handle;
    drop(opened);
    assert_eq!(error(fs.store.attr(&fs.caller, &handle).wait()), Status::Stale);
    fs.remove("d", true).expect("nothing is in it");
    assert_eq!(error(fs.open("", OpenFlags { unlinked: true, ..READ })), Status::Inval);
    fs.file("f", b"");
    assert_eq!(error(fs.open("f", UNLINKED)), Status::NotDir);
    assert_eq!(error(fs.open("missing", UNLINKED)), Status::NoEnt);
}

/// The file system gives the number of a file that went away to the next one.
pub fn gone_while_others_are_made(fs: &Fs) {
    let make = || unlinked(fs, "", UNLINKED).map(|opened| opened.handle);
    let told = thread::scope(|scope| {
        let others = scope.spawn(|| (0..FILES_GONE).filter_map(|_| make()).count());
        let mut told = Vec::new();
        while !others.is_finished() {
            let handle = make()?;
            told.push(fs.store.attr(&fs.caller, &handle).wait().map(|_| ()));
        }
        Some(told)
    });
    let stale = |told: &Result<(), Status>| *told == Err(Status::Stale);
    assert!(told.unwrap_or_default().iter().all(stale));
}

pub fn a_name_comes_later(fs: &Fs) {
    fs.mkdir("d");
    let Some(opened) = unlinked(fs, "d", UNLINKED) else { return };
    write(&*opened.file, 0, b"bytes").expect("write");
    let d = fs.handle("d");
    let link = |dir, name: &[u8]| opened.file.link(&fs.caller, dir, name).wait();
    assert_eq!(error(link(&d, b"a/b")), Status::Inval);
    let found = link(&d, b"n").expect("its first name");
    assert_eq!((found.attr.links, found.attr.size), (1, 5));
    assert_eq!(found.handle, opened.handle);
    assert_eq!(fs.handle("d/n"), found.handle);
    assert_eq!(fs.bytes("d/n"), b"bytes");
    assert_eq!(error(link(&d, b"n")), Status::Exist);
    assert_eq!(link(&fs.root, b"second").expect("another name").attr.links, 2);
    assert_eq!(
        fs.store.link(&fs.caller, &found.handle, &d, b"m").wait().expect("link").attr.links,
        3
    );
    for name in ["d/n", "d/m", "second"] {
        fs.remove(name, false).expect("remove");
    }
    assert_eq!(error(link(&d, b"again")), Status::NoEnt, "its last name was removed");
    let there = fs.open("there", MAKE).expect("open");
    assert_eq!(
        there.file.link(&fs.caller, &d, b"t").wait().expect("a file with a name").attr.links,
        2
    );
}

pub fn an_exclusive_one_gets_no_name(fs: &Fs) {
    let Some(opened) = unlinked(fs, "", NEVER_LINKED) else { return };
    assert_eq!(error(opened.file.link(&fs.caller, &fs.root, b"n").wait()), Status::NoEnt);
    assert!(fs.list("").expect("list").is_empty());
}

/// Everything that can be done to an open file can be done when its name is gone.
pub fn a_removed_file_goes_on(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let (file, handle) = (&*opened.file, opened.handle);
    write(file, 0, b"some bytes").expect("write");
    fs.file("other", b"x");
    fs.rename("other", "f").expect("takes its place");
    let attr = fs.store.attr(&fs.caller, &handle).wait().expect("attributes by handle");
    assert_eq!((attr.links, attr.size), (0, 10));
    assert_eq!(file.attr().wait().expect("attributes").links, 0);
    write(file, 10, b" and more").expect("write");
    file.truncate(12, false).wait().expect("truncate");
    assert_eq!(read(file, 0, 99).expect("read"), b"some bytes a");
    file.sync(false).wait().expect("sync");
    let time = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };
    let set = SetAttr { mode: Some(0o600), modified: Some(SetTime::To(time)), ..<_>::default() };
    assert_eq!(file.set_attr(&fs.caller, &set).wait().expect("set").modified, time);
    let set = SetAttr { mode: Some(0o640), size: Some(4), ..SetAttr::default() };
    let attr = fs.store.set_attr(&fs.caller, &handle, &set).wait().expect("set by handle");
    assert_eq!((attr.mode, attr.size, attr.links), (0o640, 4, 0));
    let again = fs.store.open(&fs.caller, &handle, b"", BOTH, 0).wait().expect("open by handle");
    assert_eq!(again.file.id(), opened.file.id());
    assert_eq!(fs.store.access(&fs.caller, &handle, 2).wait(), Ok(2));
    if fs.store.set_xattr(&fs.caller, &handle, b"user.a", b"1", 0).wait() != Err(Status::NotSupp) {
        assert_eq!(fs.store.xattr(&fs.caller, &handle, b"user.a").wait(), Ok(b"1".to_vec()));
        fs.store.list_xattr(&fs.caller, &handle).wait().expect("list");
        fs.store.remove_xattr(&fs.caller, &handle, b"user.a").wait().expect("remove");
    }
    assert_eq!(error(fs.store.link(&fs.caller, &handle, &fs.root, b"n").wait()), Status::NoEnt);
    assert_eq!(fs.bytes("f"), b"x");
    drop((opened, again));
    assert_eq!(error(fs.store.attr(&fs.caller, &handle).wait()), Status::Stale);
    assert_eq!(error(fs.store.open(&fs.caller, &handle, b"", READ, 0).wait()), Status::Stale);
}

pub fn making_one_needs_rights(fs: &Fs) {
    let (alice, bob) = (fs.by(&user(12_345, 500, &[])), fs.by(&user(12_346, 500, &[])));
    alice.mkdir("d");
    let Some(opened) = unlinked(&alice, "d", UNLINKED) else { return };
    assert_eq!((opened.attr.uid, opened.attr.gid), (12_345, 500));
    assert_eq!(error(bob.open("d", UNLINKED)), Status::Access);
    let linked = opened.file.link(&bob.caller, &bob.handle("d"), b"n").wait();
    assert!(matches!(error(linked), Status::Access | Status::Perm));
    let by_handle = |flags| bob.store.open(&bob.caller, &opened.handle, b"", flags, 0).wait();
    assert_eq!(error(by_handle(WRITE)), Status::Access);
    assert!(by_handle(READ).is_ok(), "mode 644");
}
