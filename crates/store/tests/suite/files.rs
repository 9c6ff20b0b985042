//! Opens and data.

use std::sync::Arc;

use dafs_fabric::{Buffer, SgList};
use dafs_protocol::{CreateMode, FileKind, OpenFlags, SetAttr, Status};
use dafs_store::SeekKind;

use super::{BOTH, Fs, MAKE, READ, WRITE, error, one_span, read, write};

pub fn bytes_come_back(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    assert!(opened.created && opened.attr.size == 0);
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    write(&*opened.file, 0, &bytes).expect("write");
    assert_eq!(read(&*opened.file, 0, 400_000).expect("read"), bytes);
    assert_eq!(read(&*opened.file, 4097, 5000).expect("read"), &bytes[4097..9097]);
    assert_eq!(read(&*opened.file, 299_999, 10).expect("read"), &bytes[299_999..]);
    assert_eq!(read(&*opened.file, 300_000, 10).expect("read"), b"");
    assert_eq!(read(&*opened.file, 1 << 40, 10).expect("read"), b"");
    write(&*opened.file, 100, b"in between").expect("write");
    assert_eq!(read(&*opened.file, 99, 12).expect("read")[1..11], *b"in between");
    assert_eq!(opened.file.attr().wait().expect("attr").size, 300_000);
    let status = error(write(&*opened.file, u64::MAX - 1, b"beyond"));
    assert!(matches!(status, Status::FBig | Status::Inval), "{status}");
    write(&*opened.file, 5, b"").expect("nothing to write");
}

pub fn open_flags(fs: &Fs) {
    assert_eq!(error(fs.open("f", BOTH)), Status::NoEnt);
    let exclusive = OpenFlags { create: CreateMode::Exclusive, ..BOTH };
    assert!(fs.open("f", exclusive).expect("made").created);
    assert_eq!(error(fs.open("f", exclusive)), Status::Exist);
    let again = fs.open("f", MAKE).expect("there");
    assert!(!again.created);
    write(&*again.file, 0, b"some bytes").expect("write");
    let truncate = OpenFlags { truncate: true, ..WRITE };
    assert_eq!(fs.open("f", truncate).expect("truncated").attr.size, 0);
    assert_eq!(fs.attr("f").size, 0);
    let by_handle = fs.store.open(&fs.caller, &fs.handle("f"), b"", BOTH, 0).wait().expect("open");
    assert_eq!(by_handle.handle, again.handle);
    assert!(Arc::ptr_eq(&by_handle.file, &again.file));
    fs.symlink("l", "f").expect("symlink");
    assert_eq!(fs.open("l", READ).expect("followed").handle, again.handle);
    assert_eq!(error(fs.open("l", OpenFlags { no_follow: true, ..READ })), Status::Loop);
    assert_eq!(error(fs.open("l", exclusive)), Status::Exist);
    fs.symlink("dangling", "made").expect("symlink");
    assert!(fs.open("dangling", MAKE).expect("made where it points").created);
    assert_eq!(fs.attr("made").size, 0);
    assert_eq!(error(fs.open("f/", MAKE)), Status::NotDir);
    let mode = fs.store.open(&fs.caller, &fs.root, b"m", MAKE, 0o4640).wait().expect("made");
    assert_eq!(mode.attr.mode, 0o4640, "the mode is taken as it is");
}

pub fn only_regular_files_are_opened(fs: &Fs) {
    fs.mkdir("d");
    assert_eq!(error(fs.open("d", READ)), Status::IsDir);
    assert_eq!(error(fs.open("d", BOTH)), Status::IsDir);
    assert_eq!(error(fs.open("", READ)), Status::IsDir);
    fs.make("fifo", FileKind::Fifo, 0o666).expect("mkfifo");
    fs.make("socket", FileKind::Socket, 0o666).expect("mknod");
    // Neither may block.
    for flags in [READ, WRITE, MAKE] {
        assert_eq!(error(fs.open("fifo", flags)), Status::BadType);
        assert_eq!(error(fs.open("socket", flags)), Status::BadType);
    }
}

pub fn opens_share_one_object(fs: &Fs) {
    fs.file("f", b"abc");
    fs.link("f", "g").expect("link");
    let reader = fs.open("f", READ).expect("open");
    let writer = fs.open("g", WRITE).expect("open");
    assert!(Arc::ptr_eq(&reader.file, &writer.file));
    write(&*writer.file, 1, b"X").expect("write, though it was opened for reading first");
    assert_eq!(read(&*reader.file, 0, 9).expect("read"), b"aXc");
    let id = reader.file.id();
    drop((reader, writer));
    assert_eq!(fs.open("f", READ).expect("open").file.id(), id);
}

pub fn an_unlinked_file_lives_while_open(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    write(&*opened.file, 0, b"still here").expect("write");
    fs.remove("f", false).expect("remove");
    fs.file("f", b"another");
    assert_eq!(read(&*opened.file, 0, 99).expect("read"), b"still here");
    assert_eq!(opened.file.attr().wait().expect("attr").links, 0);
    assert_ne!(fs.open("f", READ).expect("open").file.id(), opened.file.id());
}

pub fn holes_stay_holes(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let file = &*opened.file;
    write(file, 10 << 20, b"data").expect("write");
    let attr = file.attr().wait().expect("attr");
    assert_eq!(attr.size, (10 << 20) + 4);
    assert!(attr.allocated < 1 << 20, "{} bytes allocated", attr.allocated);
    let seek = |offset, kind| file.seek(offset, kind).wait().expect("seek");
    assert_eq!(seek(0, SeekKind::Data), Some(10 << 20));
    assert_eq!(seek(0, SeekKind::Hole), Some(0));
    assert_eq!(seek(10 << 20, SeekKind::Hole), Some(attr.size));
    assert_eq!(seek(attr.size, SeekKind::Data), None);
    assert_eq!(seek(attr.size + 5, SeekKind::Hole), None);
    assert_eq!(read(file, (10 << 20) - 4, 100).expect("read"), b"\0\0\0\0data");
}

pub fn fallocate_modes(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let file = &*opened.file;
    let size = || file.attr().wait().expect("attr").size;
    match file.fallocate(0, 0, 10_000, true).wait() {
        Err(Status::NotSupp) => return eprintln!("not of this store: no fallocate here"),
        other => other.expect("allocate"),
    }
    assert_eq!(size(), 10_000);
    file.fallocate(1, 0, 1 << 20, true).wait().expect("keep size");
    assert_eq!(size(), 10_000);
    assert!(file.attr().wait().expect("attr").allocated >= 1 << 20);
    write(file, 0, &[1; 20_000]).expect("write");
    file.fallocate(3, 4096, 8192, true).wait().expect("punch");
    let bytes = read(file, 0, 30_000).expect("read");
    assert!(bytes[..4096].iter().all(|b| *b == 1));
    assert!(bytes[4096..12_288].iter().all(|b| *b == 0));
    assert!(bytes[12_288..].iter().all(|b| *b == 1) && bytes.len() == 20_000);
    if file.fallocate(0x10, 19_000, 2000, true).wait() != Err(Status::NotSupp) {
        assert_eq!(size(), 21_000);
        assert_eq!(read(file, 18_999, 2).expect("read"), [1, 0]);
    }
    assert_eq!(error(file.fallocate(0, 0, 0, true).wait()), Status::Inval);
    let status = error(file.fallocate(0x4000_0000, 0, 10, true).wait());
    assert!(matches!(status, Status::NotSupp | Status::Inval), "{status}");
    let status = error(file.fallocate(0, u64::MAX, 10, true).wait());
    assert!(matches!(status, Status::FBig | Status::Inval), "{status}");
}

pub fn sizes_are_set(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let file = &*opened.file;
    write(file, 0, &[9; 10_000]).expect("write");
    file.truncate(5000, true).wait().expect("truncate");
    file.truncate(9000, true).wait().expect("extend");
    let bytes = read(file, 0, 20_000).expect("read");
    assert!(bytes[..5000].iter().all(|b| *b == 9) && bytes[5000..].iter().all(|b| *b == 0));
    assert_eq!(bytes.len(), 9000);
    let set = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(fs.set("f", set).expect("by handle").size, 3);
    let set = SetAttr { size: Some(7), mode: Some(0o600), ..SetAttr::default() };
    let attr = file.set_attr(&fs.caller, &set).wait().expect("by the open file");
    assert_eq!((attr.size, attr.mode), (7, 0o600));
    assert_eq!(read(file, 0, 20).expect("read"), [9, 9, 9, 0, 0, 0, 0]);
}

pub fn privileges_are_cleared(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let clear_write = || {
        let posted = Buffer::new(1).expect("buffer").post();
        opened.file.write_at(0, one_span(&posted), true).wait().expect("write");
        fs.attr("f").mode
    };
    for (before, after) in [(0o6755, 0o755), (0o4711, 0o711), (0o2745, 0o745), (0o755, 0o755)] {
        fs.chmod("f", before).expect("chmod");
        assert_eq!(clear_write(), after, "{before:o}");
    }
    fs.chmod("f", 0o6755).expect("chmod");
    opened.file.truncate(3, true).wait().expect("truncate");
    assert_eq!(fs.attr("f").mode, 0o755);
    // Asked again and again: the answer must not come from a stale note of the mode.
    for _ in 0..3 {
        fs.chmod("f", 0o4755).expect("chmod");
        assert_eq!(clear_write(), 0o755);
    }
}

pub fn scattered_memory(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let mut from = Buffer::new(10_000).expect("buffer");
    for (i, byte) in from.iter_mut().enumerate() {
        *byte = (i % 253) as u8;
    }
    let from = from.post();
    // Pieces in reverse order, of odd sizes, more than fit a small list, and empty ones.
    let pieces = |span: &dafs_fabric::Span| {
        let cuts: Vec<usize> = (0..=100).map(|i| i * 100).collect();
        let parts = cuts.windows(2).rev().map(|c| span.part(c[0], c[1] - c[0]));
        let mut list: SgList = parts.collect();
        list.insert(50, span.part(3, 0));
        list
    };
    opened.file.write_at(77, pieces(from.span()), false).wait().expect("write");
    let into = Buffer::new(10_000).expect("buffer").post();
    let bytes = opened.file.read_at(77, pieces(into.span())).wait().expect("read");
    assert_eq!(bytes, 10_000);
    let (from, into) = (from.take_back().expect("free"), into.take_back().expect("free"));
    assert_eq!(from[..], into[..]);
    let straight = read(&*opened.file, 77, 10_000).expect("read");
    assert_eq!(straight[..100], from[9900..]);
    // More pieces than one system call takes.
    let into = Buffer::new(5000).expect("buffer").post();
    let list: SgList = (0..5000).map(|i| into.span().part(i, 1)).collect();
    assert_eq!(opened.file.read_at(77, list).wait().expect("read"), 5000);
    assert_eq!(into.take_back().expect("free")[..], straight[..5000]);
}

pub fn sync_answers(fs: &Fs) {
    fs.mkdir("d");
    let opened = fs.open("d/f", MAKE).expect("open");
    write(&*opened.file, 0, b"x").expect("write");
    opened.file.sync(true).wait().expect("data");
    opened.file.sync(false).wait().expect("all");
    fs.store.sync_fs().wait().expect("everything");
    fs.store.sync_dir(&fs.handle("d")).wait().expect("names");
    assert_eq!(fs.store.sync_dir(&fs.handle("d/f")).wait(), Err(Status::NotDir));
}
