//! Copies, shared blocks, extents, ranges that move.

use std::sync::Arc;

use dafs_protocol::Status;
use dafs_store::File;

use super::{Fs, MAKE, READ, error, read, write};

const BLOCK: u64 = 4096;

fn filled(fs: &Fs, name: &str, bytes: usize) -> (Arc<dyn File>, Vec<u8>) {
    let file = fs.open(name, MAKE).expect("open").file;
    let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8 + 1).collect();
    write(&*file, 0, &data).expect("write");
    (file, data)
}

pub fn ranges_are_copied(fs: &Fs) {
    let (from, data) = filled(fs, "from", 100_000);
    let to = fs.open("to", MAKE).expect("open").file;
    match from.copy_range(10, &to, 7, 50_000, false).wait() {
        Err(Status::NotSupp | Status::XDev) => {
            return eprintln!("not of this store: no copies here");
        }
        other => assert_eq!(other, Ok(50_000)),
    }
    assert_eq!(read(&*to, 0, 60_000).expect("read"), [&[0; 7][..], &data[10..50_010]].concat());
    assert_eq!(from.copy_range(99_000, &to, 0, 1 << 40, false).wait(), Ok(1000));
    assert_eq!(read(&*to, 0, 1000).expect("read"), data[99_000..]);
    assert_eq!(to.attr().wait().expect("attr").size, 50_007);
    assert_eq!(from.copy_range(100_000, &to, 0, 10, false).wait(), Ok(0), "the source ends");
    assert_eq!(from.copy_range(1 << 40, &to, 0, 10, false).wait(), Ok(0));
    assert_eq!(from.copy_range(0, &from, 60_000, 40_000, false).wait(), Ok(40_000));
    assert_eq!(read(&*from, 60_000, 40_000).expect("read"), data[..40_000]);
    assert_eq!(error(from.copy_range(0, &from, 10, 20, false).wait()), Status::Inval);
    // The source ends where it ended, not where the copy has brought it.
    assert_eq!(from.copy_range(0, &from, 100_000, 1 << 20, false).wait(), Ok(100_000));
    assert_eq!(from.attr().wait().expect("attr").size, 200_000);
    // Into the middle of nothing.
    assert_eq!(from.copy_range(0, &to, 1 << 30, 10, false).wait(), Ok(10));
    assert_eq!(to.attr().wait().expect("attr").size, (1 << 30) + 10);
    fs.chmod("to", 0o6777).expect("chmod");
    assert_eq!(from.copy_range(0, &to, 0, 10, true).wait(), Ok(10));
    assert_eq!(fs.attr("to").mode, 0o777);
}

pub fn blocks_are_shared(fs: &Fs) {
    let (from, data) = filled(fs, "from", 20_000);
    let to = fs.open("to", MAKE).expect("open").file;
    match from.clone_range(0, &to, 0, 0, false).wait() {
        Err(Status::NotSupp) => return eprintln!("not of this store: no shared blocks here"),
        other => assert_eq!(other, Ok(())),
    }
    assert_eq!(fs.bytes("to"), data);
    write(&*from, 0, b"changed").expect("write");
    assert_eq!(fs.bytes("to"), data, "its own bytes");
    assert_eq!(from.clone_range(BLOCK, &to, 0, BLOCK, false).wait(), Ok(()));
    assert_eq!(fs.bytes("to")[..4096], data[4096..8192]);
    assert_eq!(error(from.clone_range(1, &to, 0, BLOCK, false).wait()), Status::Inval);
    assert_eq!(error(from.clone_range(0, &to, 0, 1 << 30, false).wait()), Status::Inval);
}

pub fn extents_are_told(fs: &Fs) {
    let opened = fs.open("f", MAKE).expect("open");
    let file = &*opened.file;
    for at in [1u64 << 20, 3 << 20, 5 << 20] {
        write(file, at, &[7; 65_536]).expect("write");
    }
    file.sync(true).wait().expect("sync");
    let all = file.extents(0, u64::MAX / 2, 100).wait().expect("extents");
    assert!(all.end);
    for at in [1u64 << 20, 3 << 20, 5 << 20] {
        let covers = |at: u64| all.list.iter().any(|e| e.offset <= at && at < e.offset + e.len);
        assert!(covers(at) && covers(at + 65_535), "{at}: {:?}", all.list);
        assert!(!covers(at - BLOCK) && !covers(at + 65_536), "{at}: {:?}", all.list);
    }
    let mut end = 0;
    for extent in &all.list {
        assert!(extent.offset >= end && extent.len > 0 && !extent.unwritten, "{extent:?}");
        end = extent.offset + extent.len;
    }
    // One at a time, as a caller with little room goes on.
    let (mut pieces, mut at) = (Vec::new(), 0);
    loop {
        let some = file.extents(at, u64::MAX / 2, 1).wait().expect("extents");
        pieces.extend(some.list);
        if some.end {
            break;
        }
        at = pieces.last().map(|e| e.offset + e.len).expect("one, unless it is the end");
    }
    assert_eq!(pieces, all.list);
    let hole = file.extents(2 << 20, 1 << 20, 100).wait().expect("extents");
    assert!(hole.list.is_empty() && hole.end);
    let reader = fs.open("f", READ).expect("open").file;
    assert_eq!(reader.extents(0, u64::MAX / 2, 100).wait(), Ok(all));
}

pub fn ranges_move(fs: &Fs) {
    let (file, mut data) = filled(fs, "f", 5 * 4096 + 100);
    match file.fallocate(8, BLOCK, 2 * BLOCK, false).wait() {
        Err(Status::NotSupp) => return eprintln!("not of this store: ranges do not move here"),
        other => assert_eq!(other, Ok(())),
    }
    drop(data.drain(4096..3 * 4096));
    assert_eq!(fs.bytes("f"), data);
    file.fallocate(0x20, 2 * BLOCK, BLOCK, false).wait().expect("insert");
    drop(data.splice(2 * 4096..2 * 4096, [0; 4096]));
    assert_eq!(fs.bytes("f"), data);
    for (mode, offset, len) in
        [(8, 1, BLOCK), (0x20, BLOCK, 1), (8, 0, 1 << 30), (0x20, 1 << 30, BLOCK)]
    {
        assert_eq!(error(file.fallocate(mode, offset, len, false).wait()), Status::Inval);
    }
    assert_eq!(fs.bytes("f"), data);
    assert_eq!(error(file.fallocate(0x1000, 0, BLOCK, false).wait()), Status::NotSupp);
}
