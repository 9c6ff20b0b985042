//! Calls by handle, and for other users.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::core::{FileKey, Memory, Owner, Place, Work};
use dafs_client::{Error, Object, OpenOptions, Output, SessionOptions};
use dafs_protocol::{CacheHint, CachedRange, CommitLevel, FileHandle, FileKind, Identity, Status};

use super::{Pair, place, read_write, room, status};

fn node(result: Result<Output<FileKey>, Error>) -> Object {
    match result {
        Ok(Output::Object(node)) => node,
        other => panic!("{other:?}"),
    }
}

fn child(dir: FileHandle, name: &[u8]) -> Place {
    Place::child(dir, name).expect("a name")
}

fn rename(from: Place, to: Place) -> Work {
    Work::Rename { from, to, from_dir: None, no_replace: false, exchange: false, whiteout: false }
}

impl Pair {
    fn call_as(&mut self, uid: u32, work: Work, memory: Memory) -> Result<Output<FileKey>, Error> {
        let tag = self.start_as(uid, work, memory);
        self.wait(tag).result
    }

    fn start_as(&mut self, uid: u32, work: Work, memory: Memory) -> u64 {
        self.next_tag += 1;
        let user = Identity { uid, gid: uid, groups: vec![1, 2] };
        self.core.submit_as(Owner(0), self.next_tag, Some(Arc::new(user)), work, memory);
        self.next_tag
    }
}

fn stat(path: &[u8]) -> Work {
    Work::Stat { place: place(path), no_follow: true }
}

#[test]
fn objects_are_found_made_and_renamed_by_handle() {
    let mut pair = Pair::new(100);
    pair.fake.put(b"dir/f", b"data");
    let root = node(pair.call(Work::Find { place: place(b"") }));
    assert_eq!(root.attr.kind, FileKind::Directory);
    let dir = node(pair.call(Work::Find { place: child(root.handle, b"dir") })).handle;
    let file = node(pair.call(Work::Find { place: child(dir, b"f") }));
    assert_eq!(file.attr.size, 4);
    assert_eq!(node(pair.call(Work::Parent { handle: file.handle })).handle, dir);
    pair.call(rename(child(dir, b"f"), child(root.handle, b"g"))).expect("rename");
    assert!(pair.fake.memory.files.contains_key(&b"g"[..]));
    let link = Work::Link { from: Place::at(file.handle), to: child(dir, b"h"), from_handle: None };
    node(pair.call(link));
    assert!(pair.fake.memory.files.contains_key(&b"dir/h"[..]));
    let requests = pair.fake.requests;
    pair.call(Work::Remove { place: child(root.handle, b"g"), directory: false }).expect("remove");
    assert_eq!(pair.fake.requests, requests + 1);
}

#[test]
fn a_change_answers_its_directories_too() {
    let mut pair = Pair::new(110);
    pair.fake.put(b"dir/f", b"data");
    pair.fake.put(b"g", b"data");
    let root = node(pair.call(Work::Find { place: place(b"") }));
    let dir = node(pair.call(Work::Find { place: child(root.handle, b"dir") }));
    let change = |pair: &mut Pair, work| {
        let requests = pair.fake.requests;
        let tag = pair.submit(work, Memory::None);
        let done = pair.wait(tag);
        done.result.expect("the change");
        assert_eq!(pair.fake.requests, requests + 1);
        done.beside.expect("directories").dirs.map(|attr| attr.map(|attr| attr.size))
    };
    let at = |dir: Object, name| child(dir.handle, name).with_dir();
    let [of_root, of_dir] = [root, dir].map(|node| Some(node.attr.size));
    assert_ne!(of_root, of_dir);
    let both = change(&mut pair, rename(at(dir, b"f"), at(root, b"f")));
    assert_eq!(both, [of_dir, of_root]);
    let one = change(&mut pair, rename(at(root, b"f"), at(root, b"h")));
    assert_eq!(one, [of_root, None]);
    let options = OpenOptions { exclusive: true, ..OpenOptions::write() };
    let open = Work::Open { place: at(dir, b"new"), options };
    assert_eq!(change(&mut pair, open), [of_dir, None]);
    // A directory that cannot be looked at fails no change.
    pair.fake.script.lie = Some(|reply| {
        if let Ok(results) = &mut reply.results {
            results[1] = Err(Status::Stale);
        }
    });
    let remove = Work::Remove { place: at(root, b"h"), directory: false };
    assert_eq!(change(&mut pair, remove), [None, None]);
    assert!(!pair.fake.memory.files.contains_key(&b"h"[..]));
}

#[test]
fn only_single_names_are_names() {
    let dir = FileHandle::default();
    for (name, status) in [
        (&b""[..], Status::NoEnt),
        (b".", Status::Inval),
        (b"..", Status::Inval),
        (b"a/b", Status::Inval),
        (b"a\0b", Status::Inval),
        (&[b'x'; 256], Status::NameTooLong),
    ] {
        assert_eq!(Place::child(dir, name), Err(status), "{name:?}");
    }
    assert!(Place::child(dir, &[b'x'; 255]).is_ok());
}

#[test]
fn calls_by_handle_go_on_after_a_restart() {
    let mut pair = Pair::new(101);
    pair.fake.put(b"dir/f", b"data");
    let dir = node(pair.call(Work::Find { place: place(b"dir") })).handle;
    let open = Work::Open { place: child(dir, b"f"), options: read_write() };
    let Ok(Output::File(file, opened)) = pair.call(open) else { panic!("no file") };
    assert!(!opened.created);
    // One is under way when the server goes, one is asked while there is none.
    pair.fake.live = false;
    let found = pair.submit(Work::Find { place: child(dir, b"f") }, Memory::None);
    pair.turn();
    pair.net.crash(super::SERVER);
    pair.run_until("the break", |pair| !pair.core.is_connected());
    let renamed = pair.submit(rename(child(dir, b"f"), child(dir, b"g")), Memory::None);
    pair.fake.live = true;
    pair.fake.restart();
    node(pair.wait(found).result);
    pair.wait(renamed).result.expect("renamed in the directory");
    assert!(pair.fake.memory.files.contains_key(&b"dir/g"[..]));
    assert_eq!(status(pair.read(file, 0, 4)), Some(Status::Stale), "the fake knows paths only");
    pair.fake.script.forgets_handles = true;
    pair.fake.restart();
    let find = Work::Find { place: child(dir, b"g") };
    assert_eq!(status(pair.call(find)), Some(Status::Stale), "not looked for from the root");
}

#[test]
fn a_file_opened_by_handle_is_found_where_it_is_said_to_be() {
    for (moved, expected) in [("dir/g", None), ("f", Some(Status::Stale))] {
        let mut pair = Pair::new(102);
        pair.fake.put(b"dir/f", b"data");
        let dir = node(pair.call(Work::Find { place: place(b"dir") })).handle;
        let open = Work::Open { place: child(dir, b"f"), options: read_write() };
        let Ok(Output::File(file, _)) = pair.call(open) else { panic!("no file") };
        pair.call(rename(child(dir, b"f"), child(dir, b"g"))).expect("rename");
        pair.core.found_by(file, move || Some(moved.into()));
        pair.fake.put(b"f", b"not this");
        pair.fake.script.forgets_handles = true;
        pair.fake.restart();
        match (pair.read(file, 0, 4), expected) {
            (Ok(data), None) => assert_eq!(data, b"data"),
            (result, expected) => assert_eq!(status(result), expected),
        }
    }
}

#[test]
fn copies_within_the_server_are_unstable_writes() {
    let mut pair = Pair::new(102);
    pair.fake.put(b"f", b"data");
    pair.fake.put(b"g", b"data");
    let (file, to) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
    let copy = |len| Work::CopyRange { file, offset: 0, to, to_offset: 0, len };
    assert!(matches!(pair.call(copy(4)), Ok(Output::Copied { bytes: 4 })));
    let flush = Work::Commit { file: to, offset: 0, len: 0, level: CommitLevel::Flush };
    pair.call(flush).expect("flush");
    pair.fake.machine += 1;
    pair.fake.restart();
    assert_eq!(status(pair.commit(to)), Some(Status::WritesLost));
    pair.commit(file).expect("nothing was written to the source");
    let extents = Work::Extents { file, offset: 0, len: 100 };
    assert!(matches!(
        pair.call(extents),
        Ok(Output::Extents { extents, end: true }) if extents[0].offset == 7
    ));
    // Both files are held until the copy ended.
    let copied = pair.submit(copy(4), Memory::None);
    let closed = pair.submit(Work::Close { file: to }, Memory::None);
    assert!(pair.wait(copied).result.is_ok());
    assert!(pair.wait(closed).result.is_ok());
    assert_eq!(status(pair.call(copy(4))), Some(Status::BadF));
    pair.call(Work::Close { file }).expect("the failed copy does not hold the source");
}

#[test]
fn the_cache_is_asked_by_name_and_by_open_file() {
    let mut pair = Pair::new(107);
    pair.fake.put(b"f", b"data");
    let range = CachedRange { offset: 4096, len: 8192, dirty: true };
    let at = Work::CacheQueryAt { place: place(b"f"), offset: 0, len: 0 };
    match pair.call(at) {
        Ok(Output::Cached { info, ranges }) => {
            assert_eq!((info.next, ranges), (Some(1 << 20), vec![range]));
        }
        other => panic!("{other:?}"),
    }
    let missing = Work::CacheQueryAt { place: place(b"none"), offset: 0, len: 0 };
    assert_eq!(status(pair.call(missing)), Some(Status::NoEnt));
    let file = pair.open(b"f", read_write());
    match pair.call(Work::CacheQuery { file, offset: 0, len: 0 }) {
        Ok(Output::Cached { info, ranges }) => assert_eq!((info.next, ranges), (None, vec![range])),
        other => panic!("{other:?}"),
    }
    let cache = CacheHint { unit: 65_536, policy: 1, class: 2 };
    let advise = Work::Advise { file, offset: 0, len: 77, advice: 3, cache };
    assert!(matches!(
        pair.call(advise),
        Ok(Output::Advised(advised)) if advised.bytes == 77 && advised.cache == cache
    ));
}

#[test]
fn users_are_registered_once_and_again_in_a_new_session() {
    let mut pair = Pair::new(103);
    pair.fake.script.uid = 0;
    pair.fake.put(b"f", b"data");
    for _ in 0..3 {
        pair.call_as(7, stat(b"f"), Memory::None).expect("stat");
    }
    let open = Work::Open { place: place(b"f"), options: OpenOptions::read() };
    let Ok(Output::File(file, _)) = pair.call_as(8, open, Memory::None) else { panic!("no file") };
    assert_eq!(pair.read(file, 0, 4).expect("read"), b"data");
    assert_eq!(pair.fake.executed["register"], 2);
    assert_eq!(pair.fake.executed_as[&("lookup", 7)], 3);
    assert_eq!(pair.fake.executed_as[&("read", 8)], 1, "an open file acts for who opened it");
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 4).expect("read"), b"data");
    assert_eq!(pair.fake.executed_as[&("open", 8)], 2, "opened again by the same user");
    assert_eq!(pair.fake.executed_as[&("read", 8)], 2);
    assert_eq!(pair.fake.executed["register"], 3, "only who is needed");
}

#[test]
fn only_root_acts_for_others() {
    let mut pair = Pair::new(104);
    pair.fake.script.uid = 1000;
    pair.fake.put(b"f", b"");
    pair.call(Work::Null).expect("connected");
    let refused = pair.call_as(1000, stat(b"f"), Memory::None);
    assert_eq!(status(refused), Some(Status::NotAuthorized));
    pair.call(stat(b"f")).expect("for itself");
    assert!(!pair.fake.executed.contains_key("register"));
}

#[test]
fn credentials_that_are_long_unused_are_released() {
    let mut pair = Pair::new(105);
    pair.fake.script.uid = 0;
    pair.fake.put(b"f", &[1; 100]);
    let open = Work::Open { place: place(b"f"), options: OpenOptions::read() };
    let Ok(Output::File(file, _)) = pair.call_as(1, open, Memory::None) else { panic!("no file") };
    for uid in 2..520 {
        pair.call_as(uid, stat(b"f"), Memory::None).expect("stat");
    }
    pair.run_until("settled", |pair| !pair.core.is_unsettled());
    assert_eq!(pair.fake.user_count(), 512);
    assert_eq!(pair.fake.executed["release"], 7);
    // The first is gone, and comes back.
    let read = Work::Read { file, offset: 0, len: 9 };
    let tag = pair.submit(read, room(9));
    pair.wait(tag).result.expect("read");
    assert_eq!(pair.fake.executed["register"], 520);
}

#[test]
fn a_hard_session_waits_for_ever() {
    let options = SessionOptions { retry: Duration::MAX, ..SessionOptions::default() };
    let mut pair = Pair::with(106, options);
    pair.fake.put(b"f", b"data");
    let file = pair.open(b"f", read_write());
    pair.net.crash(super::SERVER);
    pair.fake.live = false;
    let tag = pair.submit(Work::Read { file, offset: 0, len: 4 }, room(4));
    pair.run_for(Duration::from_secs(4000));
    assert!(pair.done.is_empty(), "{:?}", pair.done);
    assert!(!pair.core.is_connected());
    pair.fake.live = true;
    pair.fake.restart();
    pair.wait(tag).result.expect("read");
    assert!(pair.core.is_connected());
    assert!(pair.notices.iter().any(|notice| notice.contains("until it is back")));
    // And whatever the server forgets meanwhile.
    for _ in 0..12 {
        let tag = pair.submit(Work::Read { file, offset: 0, len: 4 }, room(4));
        pair.fake.forget_sessions();
        pair.wait(tag).result.expect("read");
    }
}

#[test]
fn nothing_is_called_as_the_directory_above() {
    let mut pair = Pair::new(8);
    let work = Work::Remove { place: place(b".."), directory: true };
    assert_eq!(status(pair.call(work)), Some(Status::Inval));
    pair.call(Work::Null).expect("the session goes on");
}
