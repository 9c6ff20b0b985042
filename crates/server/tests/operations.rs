//! Operations on files, as they are on the wire.

mod raw;

use dafs_protocol::{
    Attr, CommitLevel, CreateMode, FileHandle, FileKind, OpenFlags, Operation, Outcome, SetAttr,
    StateId, Status, decode_dir_entries, decode_file_extents,
};
use dafs_server::DataPath;
use raw::{BOTH, MAKE, READ, Raw, Served, is_root};

const UNLINKED: OpenFlags = OpenFlags { unlinked: true, ..BOTH };

fn attr(raw: &mut Raw, handle: FileHandle, state: StateId) -> Result<Attr, Status> {
    match raw.one(Operation::GetAttr { handle, state })? {
        Outcome::Attributes { attr } => Ok(attr),
        other => panic!("no attributes: {other:?}"),
    }
}

fn set(raw: &mut Raw, handle: FileHandle, state: StateId, set: SetAttr) -> Result<Attr, Status> {
    match raw.one(Operation::SetAttr { handle, state, set })? {
        Outcome::Attributes { attr } => Ok(attr),
        other => panic!("no attributes: {other:?}"),
    }
}

fn close(raw: &mut Raw, state: StateId) -> Attr {
    match raw.one(Operation::Close { state }) {
        Ok(Outcome::Closed { attr, .. }) => attr,
        other => panic!("not closed: {other:?}"),
    }
}

fn mode(raw: &mut Raw, state: StateId) -> u32 {
    attr(raw, FileHandle::default(), state).expect("attributes").mode
}

fn chmod(raw: &mut Raw, state: StateId, mode: u32) -> Result<Attr, Status> {
    set(raw, FileHandle::default(), state, SetAttr { mode: Some(mode), ..SetAttr::default() })
}

fn resize(raw: &mut Raw, state: StateId, size: u64) -> Result<Attr, Status> {
    set(raw, FileHandle::default(), state, SetAttr { size: Some(size), ..SetAttr::default() })
}

fn link<'a>(state: StateId, dir: FileHandle, name: &'a [u8]) -> Operation<'a> {
    Operation::Link { handle: FileHandle::default(), state, dir, name }
}

fn copied(raw: &mut Raw, operation: Operation<'_>) -> Result<u64, Status> {
    match raw.one(operation)? {
        Outcome::Copied { bytes } => Ok(bytes),
        other => panic!("not copied: {other:?}"),
    }
}

fn a_file_without_a_name_gets_one(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let root = raw.root;
    let (handle, state) = match raw.open("", UNLINKED, 0o640) {
        Err(Status::NotSupp) => return eprintln!("skipped: no files without a name here"),
        other => other.expect("open"),
    };
    raw.write(state, 0, b"nameless").expect("write");
    let before = attr(&mut raw, handle, StateId::NONE).expect("by handle");
    assert_eq!((before.links, before.size, before.mode), (0, 8, 0o640));
    assert_eq!(std::fs::read_dir(served.directory.path()).expect("dir").count(), 0);
    match raw.one(link(state, root, b"name")) {
        Ok(Outcome::Found { handle: found, attr }) => {
            assert_eq!((found, attr.links, attr.size), (handle, 1, 8));
        }
        other => panic!("not linked: {other:?}"),
    }
    assert_eq!(raw.one(link(state, root, b"name")), Err(Status::Exist));
    assert_eq!(close(&mut raw, state).links, 1);
    assert_eq!(std::fs::read(served.path("name")).expect("read"), b"nameless");

    let exclusive = OpenFlags { create: CreateMode::Exclusive, ..UNLINKED };
    let (handle, state) = raw.open("", exclusive, 0o600).expect("open");
    raw.write(state, 0, b"x").expect("write");
    assert_eq!(raw.one(link(state, root, b"other")), Err(Status::NoEnt));
    assert_eq!(close(&mut raw, state).links, 0);
    assert_eq!(attr(&mut raw, handle, StateId::NONE), Err(Status::Stale));
    let without = OpenFlags { write: false, ..UNLINKED };
    assert_eq!(raw.open("", without, 0o600), Err(Status::Inval));
}

fn an_open_file_goes_on_without_its_name(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    let (handle, state) = raw.open("f", MAKE, 0o644).expect("open");
    raw.write(state, 0, b"some bytes").expect("write");
    raw.one(Operation::Remove { dir, name: b"f", directory: false }).expect("remove");
    raw.write(state, 10, b", more").expect("write");
    assert_eq!(raw.read(state, 5, 100).expect("read"), b"bytes, more");
    let now = attr(&mut raw, handle, StateId::NONE).expect("by handle");
    assert_eq!((now.links, now.size), (0, 16));
    assert_eq!(resize(&mut raw, state, 4).expect("truncate").size, 4);
    assert_eq!(chmod(&mut raw, state, 0o600).expect("chmod").mode, 0o600);
    let by_handle = SetAttr { mode: Some(0o604), size: Some(6), ..SetAttr::default() };
    let now = set(&mut raw, handle, StateId::NONE, by_handle).expect("by handle");
    assert_eq!((now.mode, now.size), (0o604, 6));
    let name = b"user.a";
    let value = Operation::SetXattr { handle, name, value_bytes: 2, flags: 0 };
    raw.chain(&[value], b"v1").expect("an attribute");
    let value = raw.chain(&[Operation::GetXattr { handle, name, size_max: 10 }], b"");
    assert_eq!(value.expect("its value").1, b"v1");
    for level in [CommitLevel::Flush, CommitLevel::Data, CommitLevel::File] {
        raw.one(Operation::Commit { state, offset: 0, len: 0, level }).expect("commit");
    }
    assert_eq!(raw.read(state, 0, 100).expect("read"), b"some\0\0");
    assert_eq!(raw.one(link(state, dir, b"again")), Err(Status::NoEnt));
    assert_eq!(close(&mut raw, state).links, 0);
    assert_eq!(attr(&mut raw, handle, StateId::NONE), Err(Status::Stale));
}

fn a_directory_is_synced_alone(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let (file, state) = raw.open("f", MAKE, 0o644).expect("open");
    assert_eq!(raw.one(Operation::SyncDir { dir: raw.root }), Ok(Outcome::Done));
    assert_eq!(raw.one(Operation::SyncDir { dir: file }), Err(Status::NotDir));
    close(&mut raw, state);
}

fn ranges_are_copied_within_the_server(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let (_, from) = raw.open("from", MAKE, 0o644).expect("open");
    let (_, to) = raw.open("to", MAKE, 0o644).expect("open");
    let data: Vec<u8> = (0..500_000u32).map(|i| (i % 251) as u8).collect();
    raw.write(from, 0, &data).expect("write");
    raw.write(to, 0, &[7; 50_000]).expect("write");
    let copy = |from_offset, to_offset, len| Operation::CopyRange {
        from,
        from_offset,
        to,
        to_offset,
        len,
    };
    assert_eq!(copied(&mut raw, copy(100, 20_000, 300_000)), Ok(300_000));
    let now = raw.read(to, 0, 1 << 20).expect("read");
    assert_eq!(now, [&[7; 20_000][..], &data[100..300_100]].concat());
    assert_eq!(copied(&mut raw, copy(499_000, 0, u64::MAX / 2)), Ok(1000));
    assert_eq!(copied(&mut raw, copy(500_000, 0, 10)), Ok(0));
    let same =
        |to_offset| Operation::CopyRange { from, from_offset: 0, to: from, to_offset, len: 1000 };
    assert_eq!(copied(&mut raw, same(999)), Err(Status::Inval));
    assert_eq!(copied(&mut raw, same(1000)), Ok(1000));
    assert_eq!(raw.read(from, 1000, 1000).expect("read"), data[..1000]);
    let (_, reader) = raw.open("to", READ, 0).expect("open");
    let (_, appender) = raw.open("to", OpenFlags { append: true, ..BOTH }, 0).expect("open");
    for to in [reader, appender] {
        let copy = Operation::CopyRange { from, from_offset: 0, to, to_offset: 0, len: 1 };
        assert_eq!(copied(&mut raw, copy), Err(Status::BadF));
    }
    // No more than one call may take: the rest is asked for again.
    assert_eq!(resize(&mut raw, from, 200 << 20).expect("sparse").size, 200 << 20);
    assert_eq!(copied(&mut raw, copy(0, 0, 200 << 20)), Ok(64 << 20));
    let clone = Operation::CloneRange { from, from_offset: 0, to, to_offset: 0, len: 0 };
    match raw.one(clone) {
        Err(Status::NotSupp) => {}
        other => assert_eq!(other, Ok(Outcome::Done)),
    }
    close(&mut raw, to);
    assert_eq!(std::fs::read(served.path("to")).expect("read")[..1000], data[..1000]);
}

/// The file system can take blocks out of the midst of a file: tmpfs cannot.
fn collapses(dir: &std::path::Path) -> bool {
    let file = std::fs::File::create(dir.join("tried")).expect("create");
    file.set_len(2 << 20).expect("size");
    let flag = nix::fcntl::FallocateFlags::FALLOC_FL_COLLAPSE_RANGE;
    match nix::fcntl::fallocate(&file, flag, 0, 1 << 20) {
        Ok(()) => true,
        Err(nix::errno::Errno::EOPNOTSUPP) => false,
        Err(error) => panic!("fallocate: {error}"),
    }
}

fn extents_and_holes_count_what_is_not_written_back(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let (_, state) = raw.open("f", MAKE, 0o644).expect("open");
    let at = [1u64 << 20, 4 << 20];
    at.iter().for_each(|at| raw.write(state, *at, &[1; 8192]).expect("write"));
    let mut extents = |offset, bytes_max| {
        let operation = Operation::Extents { state, offset, len: 1 << 40, bytes_max };
        let (outcomes, data) = raw.chain(&[operation], b"")?;
        let Some(Outcome::Data { bytes, end }) = outcomes.first() else { panic!("{outcomes:?}") };
        assert_eq!(*bytes as usize, data.len());
        Ok((decode_file_extents(&data).expect("extents"), *end))
    };
    let (all, end) = extents(0, 65_536).expect("extents");
    assert!(
        end && at.iter().all(|at| all.iter().any(|e| e.offset <= *at && *at < e.offset + e.len))
    );
    let (first, end) = extents(0, 17).expect("room for one");
    assert!(!end && first[..] == all[..1]);
    assert_eq!(extents(5 << 20, 65_536), Ok((Vec::new(), true)));
    assert_eq!(extents(0, 16), Err(Status::Range));
    let mut seek = |offset, hole| raw.one(Operation::Seek { state, offset, hole });
    assert_eq!(seek(0, false), Ok(Outcome::Offset { offset: Some(1 << 20) }));
    assert_eq!(seek(1 << 20, true), Ok(Outcome::Offset { offset: Some((1 << 20) + 8192) }));
    assert_eq!(seek(5 << 20, false), Ok(Outcome::Offset { offset: None }));
    raw.one(Operation::Fallocate { state, mode: 3, offset: 1 << 20, len: 4096 }).expect("punch");
    assert_eq!(raw.read(state, 1 << 20, 4097).expect("read"), [&[0; 4096][..], &[1]].concat());
    let (_, other) = raw.open("f", READ, 0).expect("open");
    let collapse = Operation::Fallocate { state, mode: 8, offset: 0, len: 1 << 20 };
    let shift = if collapses(served.directory.path()) {
        raw.one(collapse).expect("collapse");
        1 << 20
    } else {
        assert_eq!(raw.one(collapse), Err(Status::NotSupp));
        0
    };
    let size = attr(&mut raw, FileHandle::default(), other).expect("attr").size;
    assert_eq!(size, (4 << 20) + 8192 - shift);
    let refused = raw.one(Operation::Fallocate { state: other, mode: 0, offset: 0, len: 1 });
    assert_eq!(refused, Err(Status::BadF));
    for state in [state, other] {
        assert_eq!(raw.read(state, (1 << 20) + 4096 - shift, 4096).expect("read"), [1; 4096]);
    }
}

/// Of a file by its opens: root's, and the user's.
type Change = fn(&mut Raw, StateId, StateId);

fn writes_of_who_is_not_root_clear_privileges(path: DataPath) {
    if !is_root() {
        return eprintln!("skipped: needs root");
    }
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let (_, by_root) = raw.open("f", MAKE, 0o666).expect("open");
    raw.write(by_root, 0, &[1; 100]).expect("write");
    chmod(&mut raw, by_root, 0o6777).expect("chmod");
    raw.write(by_root, 0, b"root").expect("write");
    resize(&mut raw, by_root, 50).expect("truncate");
    raw.one(Operation::Fallocate { state: by_root, mode: 0, offset: 0, len: 90 }).expect("space");
    let flush = |state| Operation::Commit { state, offset: 0, len: 0, level: CommitLevel::Flush };
    raw.one(flush(by_root)).expect("flush");
    assert_eq!(mode(&mut raw, by_root), 0o6777, "root's changes");

    raw.act_as(12_345, 12_345);
    let (_, state) = raw.open("f", BOTH, 0).expect("open");
    raw.write(state, 0, b"user").expect("write");
    assert_eq!(mode(&mut raw, state), 0o777, "at once");
    raw.one(flush(state)).expect("flush");
    assert_eq!(mode(&mut raw, state), 0o777);
    let root = dafs_protocol::CredHandle(0);
    let user = std::mem::replace(&mut raw.cred, root);
    let by_user: [(&str, Change); 4] = [
        ("truncate", |raw, _, state| {
            resize(raw, state, 7).expect("truncate");
        }),
        ("space", |raw, _, state| {
            raw.one(Operation::Fallocate { state, mode: 0, offset: 0, len: 90 }).expect("space");
        }),
        ("copy", |raw, from, to| {
            let copy = Operation::CopyRange { from, from_offset: 0, to, to_offset: 50, len: 5 };
            raw.one(copy).expect("copy");
        }),
        // Opened by root, written by the user.
        ("write", |raw, by_root, _| raw.write(by_root, 0, b"x").expect("write")),
    ];
    for (what, change) in by_user {
        raw.cred = root;
        chmod(&mut raw, by_root, 0o6777).expect("chmod");
        raw.cred = user;
        change(&mut raw, by_root, state);
        assert_eq!(mode(&mut raw, state), 0o777, "{what}");
    }
}

fn what_one_open_does_all_others_see(path: DataPath) {
    if !is_root() {
        return eprintln!("skipped: needs root");
    }
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let (_, first) = raw.open("f", MAKE, 0o666).expect("open");
    raw.act_as(12_345, 12_345);
    let (_, second) = raw.open("f", BOTH, 0).expect("open");
    raw.write(first, 0, &[1; 10_000]).expect("write");
    assert_eq!(raw.read(second, 9000, 5000).expect("read"), [1; 1000]);
    assert_eq!(raw.read(second, 10_000, 10).expect("at the end"), b"");
    assert_eq!(raw.read(second, 1 << 40, 10).expect("beyond the end"), b"");
    resize(&mut raw, second, 5000).expect("truncate");
    assert_eq!(raw.read(first, 4000, 5000).expect("read"), [1; 1000]);
    resize(&mut raw, first, 6000).expect("longer");
    assert_eq!(raw.read(second, 4999, 5000).expect("read"), [&[1][..], &[0; 1000]].concat());
    // Rights are asked for at each open, whoever has it open already.
    raw.cred = dafs_protocol::CredHandle(0);
    chmod(&mut raw, first, 0o600).expect("chmod");
    raw.act_as(12_346, 12_346);
    assert_eq!(raw.open("f", READ, 0), Err(Status::Access));
    assert_eq!(raw.open("f", OpenFlags { truncate: true, ..BOTH }, 0), Err(Status::Access));
    raw.write(second, 0, b"still may").expect("who opened it before");
}

fn only_regular_files_are_opened(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket)] {
        let name = name.as_bytes();
        let create = Operation::Create { dir, name, kind, mode: 0o666, rdev: 0, target_bytes: 0 };
        raw.one(create).expect("create");
        let text = std::str::from_utf8(name).expect("text");
        assert_eq!(raw.open(text, BOTH, 0), Err(Status::BadType));
    }
    std::os::unix::fs::symlink("fifo", served.path("link")).expect("symlink");
    assert_eq!(raw.open("link", OpenFlags { no_follow: true, ..READ }, 0), Err(Status::Loop));
    assert_eq!(raw.open("link", READ, 0), Err(Status::BadType));
    assert_eq!(raw.open("", READ, 0), Err(Status::IsDir));
    if is_root() {
        raw.act_as(12_345, 12_345);
    }
    let device = Operation::Create {
        dir,
        name: b"device",
        kind: FileKind::CharDevice,
        mode: 0o666,
        rdev: 259,
        target_bytes: 0,
    };
    assert!(matches!(raw.one(device), Err(Status::Perm | Status::Access)));
}

fn found(raw: &mut Raw, dir: FileHandle, path: &[u8]) -> FileHandle {
    match raw.one(Operation::Lookup { dir, path, no_follow: true }) {
        Ok(Outcome::Found { handle, .. }) => handle,
        other => panic!("{other:?}"),
    }
}

fn a_listing_has_attributes_and_handles(path: DataPath) {
    let served = Served::on(path);
    let mut raw = Raw::connect(&served);
    let dir = raw.root;
    let name = |number: usize| format!("{number:0255}");
    (0..400).for_each(|number| std::fs::write(served.path(&name(number)), b"x").expect("write"));
    let (_, dirty) = raw.open(&name(7), BOTH, 0).expect("open");
    raw.write(dirty, 0, &[1; 5000]).expect("write");
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let list =
            Operation::ReadDir { dir, cookie, bytes_max: 65_536, attributes: true, handles: true };
        let (outcomes, data) = raw.chain(&[list], b"").expect("page");
        let entries = decode_dir_entries(&data).expect("entries");
        for entry in entries {
            let known = entry.attr.expect("attributes");
            let handle = match entry.handle {
                Some(handle) => handle,
                None if is_root() => panic!("no handle"),
                // They are of what was looked up.
                None => found(&mut raw, dir, &entry.name),
            };
            let now = attr(&mut raw, handle, StateId::NONE).expect("a good handle");
            assert_eq!((now.inode, now.size), (known.inode, known.size));
            assert_eq!(known.size, if entry.name == name(7).as_bytes() { 5000 } else { 1 });
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name).expect("digits"));
        }
        if matches!(outcomes[..], [Outcome::Data { end: true, .. }]) {
            break;
        }
    }
    names.sort();
    assert_eq!(names, (0..400).map(name).collect::<Vec<_>>());
}

macro_rules! on_each_data_path {
    (on $($case:ident)*) => {
        on_each_data_path!(unifier Unifier $($case)*);
        on_each_data_path!(normal Normal $($case)*);
        on_each_data_path!(mmap Mmap $($case)*);
        on_each_data_path!(sendfile Sendfile $($case)*);
    };
    ($module:ident $path:ident $($case:ident)*) => {
        mod $module {
            $(#[test]
            fn $case() {
                super::$case(dafs_server::DataPath::$path);
            })*
        }
    };
}

on_each_data_path! { on
    a_file_without_a_name_gets_one
    an_open_file_goes_on_without_its_name
    a_directory_is_synced_alone
    ranges_are_copied_within_the_server
    extents_and_holes_count_what_is_not_written_back
    writes_of_who_is_not_root_clear_privileges
    what_one_open_does_all_others_see
    only_regular_files_are_opened
    a_listing_has_attributes_and_handles
}

/// Who sends no target keeps nobody from a name.
#[test]
fn a_name_does_not_wait_for_the_data_of_a_peer() {
    let served = Served::start();
    let (mut silent, mut other) = (Raw::connect_untagged(&served), Raw::connect(&served));
    let make = |dir, kind, target_bytes| Operation::Create {
        dir,
        name: b"wanted",
        kind,
        mode: 0o755,
        rdev: 0,
        target_bytes,
    };
    let bytes = 4000;
    silent.begin_with_data(1, &[make(silent.root, FileKind::Symlink, bytes)], bytes as usize);
    // The server has it by then.
    for _ in 0..50 {
        other.one(Operation::Null).expect("null");
    }
    let made = other.one(make(other.root, FileKind::Directory, 0));
    assert!(matches!(made, Ok(Outcome::Found { .. })), "{made:?}");
}
