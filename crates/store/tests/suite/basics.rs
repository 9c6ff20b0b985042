//! Objects, attributes, handles.

use dafs_protocol::{FileHandle, FileKind, SetAttr, SetTime, Status, Timestamp};

use super::{Fs, error};

pub fn the_root_is_found(fs: &Fs) {
    let root = fs.store.root(&fs.caller).wait().expect("root");
    assert_eq!(root.attr.kind, FileKind::Directory);
    let parent = fs.store.lookup_parent(&fs.caller, &root.handle).wait().expect("parent");
    assert_eq!(parent.handle, root.handle);
    let empty = fs.find("").expect("empty path");
    assert_eq!((empty.handle, empty.attr.inode), (root.handle, root.attr.inode));
}

pub fn paths_are_walked(fs: &Fs) {
    fs.mkdir("a");
    let b = fs.mkdir("a/b");
    fs.file("a/b/f", b"x");
    assert_eq!(fs.attr("a/b/f").size, 1);
    assert_eq!(fs.attr("a//b/./../b/f").inode, fs.attr("a/b/f").inode);
    assert_eq!(error(fs.find("a/c/f")), Status::NoEnt);
    assert_eq!(error(fs.find("a/b/f/g")), Status::NotDir);
    assert_eq!(error(fs.find("a/b/f/")), Status::NotDir);
    assert_eq!(error(fs.find("nothing")), Status::NoEnt);
    let f = fs.store.lookup(&fs.caller, &b, b"f", false).wait().expect("from a directory");
    assert_eq!(f.handle, fs.handle("a/b/f"));
    let up = fs.store.lookup_parent(&fs.caller, &b).wait().expect("parent");
    assert_eq!(up.handle, fs.handle("a"));
    let of_file = fs.store.lookup_parent(&fs.caller, &f.handle).wait();
    assert_eq!(error(of_file), Status::NotDir);
}

pub fn attributes_are_true(fs: &Fs) {
    fs.mkdir("d");
    let handle = fs.file("d/f", &[7; 5000]);
    let attr = fs.store.attr(&fs.caller, &handle).wait().expect("attr");
    assert_eq!(attr.kind, FileKind::File);
    assert_eq!((attr.mode, attr.links, attr.size), (0o644, 1, 5000));
    assert_eq!((attr.uid, attr.gid), (fs.caller.uid, fs.caller.gid));
    assert_eq!(attr, fs.attr("d/f"));
    assert!(attr.modified >= attr.created.unwrap_or_default());
    let opened = fs.open("d/f", super::WRITE).expect("open");
    changes(fs, "d/f", |_| super::write(&*opened.file, 0, b"1").expect("write"));
    changes(fs, "d", |step| {
        fs.file(&format!("d/{step}"), b"");
    });
    assert_eq!(fs.attr("d").links, 2);
    fs.mkdir("d/sub");
    assert_eq!(fs.attr("d").links, 3);
}

/// `step`, at the latest when it was done for a while (old kernels have coarse clocks), changes
/// what `path` names.
fn changes(fs: &Fs, path: &str, step: impl Fn(u32)) {
    let (before, start) = (fs.attr(path).change, std::time::Instant::now());
    for number in 0.. {
        step(number);
        if fs.attr(path).change != before {
            return;
        }
        assert!(start.elapsed().as_millis() < 200, "{path} has not changed");
    }
}

pub fn mode_and_times_are_set(fs: &Fs) {
    fs.file("f", b"abc");
    assert_eq!(fs.chmod("f", 0o4751).expect("chmod").mode, 0o4751);
    let time = Timestamp { seconds: 1_000_000_000, nanoseconds: 123_456_789 };
    let other = Timestamp { seconds: 1_600_000_000, nanoseconds: 1 };
    let set = SetAttr {
        accessed: Some(SetTime::To(other)),
        modified: Some(SetTime::To(time)),
        ..SetAttr::default()
    };
    let attr = fs.set("f", set).expect("times");
    assert_eq!((attr.modified, attr.accessed), (time, other));
    assert_eq!(attr, fs.attr("f"));
    let now = SetAttr { modified: Some(SetTime::Now), ..SetAttr::default() };
    let attr = fs.set("f", now).expect("now");
    assert!(attr.modified.seconds > 1_600_000_000);
    assert_eq!(attr.accessed, other);
    fs.symlink("l", "f").expect("symlink");
    assert_eq!(fs.set("l", set).expect("a symlink has times").modified, time);
    assert_ne!(fs.attr("f").modified, time);
    assert_eq!(error(fs.chmod("l", 0o600)), Status::NotSupp);
    let bad = Timestamp { seconds: 1, nanoseconds: 1_000_000_000 };
    let bad = SetAttr { modified: Some(SetTime::To(bad)), ..SetAttr::default() };
    assert_eq!(error(fs.set("f", bad)), Status::Inval);
}

pub fn set_attr_is_all_or_nothing(fs: &Fs) {
    fs.mkdir("d");
    let set = SetAttr { mode: Some(0o700), size: Some(3), ..SetAttr::default() };
    assert_eq!(error(fs.set("d", set)), Status::IsDir);
    assert_eq!(fs.attr("d").mode, 0o755);
    let huge = SetAttr { mode: Some(0o700), size: Some(u64::MAX), ..SetAttr::default() };
    fs.file("f", b"abc");
    let status = error(fs.set("f", huge));
    assert!(matches!(status, Status::FBig | Status::Inval), "{status}");
    assert_eq!((fs.attr("f").mode, fs.attr("f").size), (0o644, 3));
    let none = fs.set("f", SetAttr::default()).expect("nothing to change");
    assert_eq!(none, fs.attr("f"));
}

pub fn extended_attributes(fs: &Fs) {
    let f = fs.file("f", b"");
    let set = |name: &[u8], value: &[u8], flags| {
        fs.store.set_xattr(&fs.caller, &f, name, value, flags).wait()
    };
    if set(b"user.a", b"1", 0) == Err(Status::NotSupp) {
        eprintln!("not of this store: this file system has no extended attributes");
        return;
    }
    assert_eq!(set(b"user.a", b"2", 1), Err(Status::Exist));
    assert_eq!(set(b"user.a", b"two\0bytes", 2), Ok(()));
    assert_eq!(set(b"user.b", b"", 2), Err(Status::NoData));
    assert_eq!(set(b"user.b", b"", 1), Ok(()));
    assert_eq!(set(b"user.c", b"", 9), Err(Status::Inval));
    assert_eq!(set(b"", b"", 0), Err(Status::Inval));
    assert_eq!(set(b"user.a\0b", b"", 0), Err(Status::Inval));
    let get = |name: &[u8]| fs.store.xattr(&fs.caller, &f, name).wait();
    assert_eq!(get(b"user.a"), Ok(b"two\0bytes".to_vec()));
    assert_eq!(get(b"user.b"), Ok(Vec::new()));
    assert_eq!(get(b"user.c"), Err(Status::NoData));
    let names = fs.store.list_xattr(&fs.caller, &f).wait().expect("list");
    let mut names: Vec<&[u8]> =
        names.split(|b| *b == 0).filter(|name| name.starts_with(b"user.")).collect();
    names.sort();
    assert_eq!(names, [&b"user.a"[..], b"user.b"]);
    let remove = |name: &[u8]| fs.store.remove_xattr(&fs.caller, &f, name).wait();
    assert_eq!(remove(b"user.a"), Ok(()));
    assert_eq!(remove(b"user.a"), Err(Status::NoData));
    assert_eq!(set(b"user.b", &[0; 65_537], 0), Err(Status::TooBig));
    assert_eq!(set(&[b"user.".as_slice(), &[b'x'; 251]].concat(), b"", 0), Err(Status::Range));
    let longest = [b"user.".as_slice(), &[b'x'; 250]].concat();
    assert_eq!(set(&longest, b"1", 1), Ok(()));
    assert_eq!(get(&longest), Ok(b"1".to_vec()));
    assert_eq!(set(b"strange.a", b"", 0), Err(Status::NotSupp));
    assert_eq!(get(b"strange.a"), Err(Status::NotSupp));
    let large = vec![7; 3000];
    assert_eq!(set(b"user.b", &large, 0), Ok(()));
    assert_eq!(get(b"user.b"), Ok(large));
    fs.symlink("l", "f").expect("symlink");
    let l = fs.handle("l");
    let on_symlink = fs.store.set_xattr(&fs.caller, &l, b"user.x", b"", 0).wait();
    assert_eq!(error(on_symlink), Status::Perm, "not the symlink's target");
    assert_eq!(fs.store.xattr(&fs.caller, &l, b"user.b").wait(), Err(Status::NoData));
}

pub fn space_is_told(fs: &Fs) {
    let attr = fs.store.fs_attr(&fs.caller, &fs.root).wait().expect("fs_attr");
    assert!(attr.bytes_total >= attr.bytes_free && attr.bytes_free >= attr.bytes_available);
    assert!(attr.block_size >= 512 && attr.name_bytes_max == 255 && !attr.read_only);
}

pub fn access_is_told(fs: &Fs) {
    fs.file("f", b"");
    fs.chmod("f", 0o444).expect("chmod");
    let access = |path: &str, mask| fs.store.access(&fs.caller, &fs.handle(path), mask).wait();
    assert_eq!(access("f", 5), Ok(4), "nobody may execute it");
    assert_eq!(access("", 7), Ok(7));
    assert_eq!(access("f", 0), Ok(0));
}

pub fn bad_handles_are_refused(fs: &Fs) {
    let good = fs.file("f", b"x");
    for place in 0..64 {
        let mut bad = good;
        bad.0[place] ^= 1;
        let status = error(fs.store.attr(&fs.caller, &bad).wait());
        assert!(matches!(status, Status::BadHandle | Status::Stale), "byte {place}: {status}");
    }
    for bad in [FileHandle::default(), FileHandle::PREVIOUS, FileHandle([0x5a; 64])] {
        assert_eq!(error(fs.store.attr(&fs.caller, &bad).wait()), Status::BadHandle);
        assert_eq!(error(fs.store.lookup(&fs.caller, &bad, b"f", true).wait()), Status::BadHandle);
        let open = fs.store.open(&fs.caller, &bad, b"f", super::READ, 0).wait();
        assert_eq!(error(open), Status::BadHandle);
    }
}

pub fn removed_objects_are_stale(fs: &Fs) {
    let f = fs.file("f", b"x");
    let d = fs.mkdir("d");
    fs.remove("f", false).expect("remove");
    fs.remove("d", true).expect("remove");
    // The inode numbers may be used again at once; the handles must not come to life.
    fs.file("g", b"other");
    fs.mkdir("e");
    for gone in [f, d] {
        assert_eq!(error(fs.store.attr(&fs.caller, &gone).wait()), Status::Stale);
        let set = SetAttr { mode: Some(0), ..SetAttr::default() };
        assert_eq!(error(fs.store.set_attr(&fs.caller, &gone, &set).wait()), Status::Stale);
    }
    assert_eq!(error(fs.store.open(&fs.caller, &f, b"", super::READ, 0).wait()), Status::Stale);
    let page = fs.store.read_dir(&fs.caller, &d, 0, 4096, false, false).wait();
    assert_eq!(error(page), Status::Stale);
    let made = fs.store.create(&fs.caller, &d, b"x", FileKind::Directory, 0o755, 0, b"").wait();
    assert!(matches!(error(made), Status::Stale | Status::NoEnt));
}
