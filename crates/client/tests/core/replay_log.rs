//! Writes that are kept are written again after a restart.

use std::time::Duration;

use dafs_client::core::{FileKey, Memory, Owner, Work};
use dafs_client::{Output, SessionOptions};
use dafs_protocol::{
    CommitLevel, LockKind, LockRange, LockRequest, Outcome, OwnerKey, SetAttr, Stability, Status,
};

use super::fake::SERVER;
use super::{CLIENT, Pair, bytes, read_write, room, status};

/// Of the scripted server.
pub(super) const LEASE: Duration = Duration::from_secs(3);

impl Pair {
    pub(super) fn keep(&mut self, work: Work, data: &[u8]) {
        self.next_tag += 1;
        let tag = self.next_tag;
        self.core.submit_kept(Owner(0), tag, work, bytes(data), data.to_vec());
        assert_eq!(self.wait(tag).result.expect("write").bytes(), data.len());
    }

    pub(super) fn write_kept(&mut self, file: FileKey, offset: u64, data: &[u8]) {
        let len = u32::try_from(data.len()).expect("small");
        self.keep(
            Work::Write { file, offset, len, stability: Stability::Unstable, within: false },
            data,
        );
    }

    fn append_kept(&mut self, file: FileKey, data: &[u8]) {
        let len = u32::try_from(data.len()).expect("small");
        self.keep(Work::Append { file, len, stability: Stability::Unstable }, data);
    }

    pub(super) fn content(&self, path: &[u8]) -> &[u8] {
        &self.fake.memory.files[path]
    }
}

#[test]
fn kept_writes_are_written_again_as_they_last_were() {
    let mut pair = Pair::new(31);
    pair.fake.put(b"f", b"0000");
    pair.fake.put(b"g", b"");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    let log = pair.open(b"g", read_write());
    pair.write_kept(first, 0, b"aaaa");
    pair.write_kept(second, 1, b"bb");
    pair.append_kept(log, b"one ");
    pair.write_kept(first, 2, b"c");
    pair.append_kept(log, b"two");
    pair.fake.restart();
    assert_eq!(pair.content(b"f"), b"0000", "the server lost them");
    assert_eq!(pair.read(first, 0, 10).expect("read"), b"abca");
    assert_eq!(pair.content(b"g"), b"one two");
    for file in [first, second, log] {
        pair.commit(file).expect("nothing was lost");
    }
    pair.call(Work::Sync).expect("nothing was lost");
    let written = pair.fake.executed.get("write").copied();
    pair.fake.restart();
    pair.read(first, 0, 10).expect("read");
    assert_eq!(pair.fake.executed.get("write"), written.as_ref(), "a commit makes them safe");
}

#[test]
fn what_was_replaced_does_not_come_back_for_a_moment() {
    let mut pair = Pair::new(38);
    pair.fake.put(b"f", b"....");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    pair.write_kept(first, 0, b"aaaa");
    pair.write_kept(second, 1, b"bb");
    pair.write_kept(first, 2, b"c");
    // Somebody's flush stored all of it, of which this client knows nothing.
    pair.fake.disk.files.insert(b"f".to_vec(), b"abca".to_vec());
    let written = pair.fake.executed["write"];
    pair.fake.restart();
    let tag = pair.submit(Work::Read { file: first, offset: 0, len: 4 }, room(4));
    pair.run_until("an answer", |pair| {
        assert_eq!(pair.content(b"f"), b"abca");
        pair.done.iter().any(|done| done.tag == tag)
    });
    assert!(pair.fake.executed["write"] > written, "it is written again");
}

#[test]
fn a_sync_tells_what_a_file_kept_that_is_not_opened_again() {
    for kept in [true, false] {
        let mut pair = Pair::new(40);
        pair.fake.put(b"f", b"....");
        pair.fake.put(b"g", b"....");
        let (file, other) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
        pair.write_kept(if kept { file } else { other }, 0, b"aa");
        // Files are opened again in the order in which they were first.
        pair.fake.script.refused_opens = 1;
        pair.fake.restart();
        pair.read(other, 0, 4).expect("of the other file nothing is lost");
        assert_eq!(status(pair.read(file, 0, 4)), Some(Status::Access));
        let synced = pair.call(Work::Sync).err().and_then(|error| error.status());
        assert_eq!(synced, kept.then_some(Status::WritesLost));
        pair.call(Work::Sync).expect("told once");
    }
}

#[test]
fn what_cannot_be_written_again_is_told_to_all_opens() {
    let mut pair = Pair::new(39);
    pair.fake.put(b"f", b"....");
    pair.fake.put(b"g", b"....");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    let (reader, other) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
    pair.write_kept(first, 0, b"aa");
    pair.write_kept(second, 0, b"bb");
    pair.write_kept(second, 3, b"b");
    pair.write_kept(other, 0, b"gg");
    pair.fake.script.refused_writes = 2;
    pair.fake.restart();
    assert_eq!(pair.read(other, 0, 4).expect("read"), b"gg..", "of the other file nothing is lost");
    assert_eq!(pair.content(b"f"), b"....", "nothing of it was written again");
    for file in [first, second] {
        assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
    }
    pair.commit(reader).expect("it wrote nothing");
    pair.commit(other).expect("nothing was lost");
    assert_eq!(status(pair.call(Work::Sync)), Some(Status::WritesLost));
    pair.call(Work::Sync).expect("told once");
}

#[test]
fn a_refused_request_to_write_again_does_not_hold_up_what_follows() {
    let mut pair = Pair::new(40);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"new");
    // No server refuses so: not the operation, but the request.
    pair.fake.script.lie = Some(|reply| {
        if matches!(reply.results.as_deref(), Ok([Ok(Outcome::Written { .. })])) {
            reply.results = Err(Status::ServerFault);
        }
    });
    pair.fake.restart();
    pair.read(file, 0, 4).expect("read");
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
}

#[test]
fn a_flush_ends_the_keeping() {
    let mut pair = Pair::new(32);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"old");
    pair.call(Work::Commit { file, offset: 0, len: 0, level: CommitLevel::Flush }).expect("flush");
    pair.fake.disk.files.insert(b"f".to_vec(), b"from elsewhere".to_vec());
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"from elsewhere");
    pair.call(Work::Sync).expect("its machine goes on");
    pair.fake.machine += 1;
    pair.fake.restart();
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
}

#[test]
fn a_flush_by_one_open_ends_the_keeping_of_all() {
    let mut pair = Pair::new(34);
    pair.fake.put(b"f", b"....");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    let third = pair.open(b"f", read_write());
    let flush = |file| Work::Commit { file, offset: 0, len: 0, level: CommitLevel::Flush };
    pair.write_kept(first, 0, b"old");
    pair.write_kept(second, 0, b"new");
    pair.call(flush(second)).expect("flush");
    pair.write_kept(first, 3, b"!");
    pair.fake.restart();
    assert_eq!(pair.read(first, 0, 4).expect("read"), b"new!");
    pair.write_kept(first, 0, b"old");
    pair.write_kept(third, 0, b"end");
    pair.call(Work::Close { file: third }).expect("close");
    pair.fake.restart();
    assert_eq!(pair.read(first, 0, 4).expect("read"), b"end!");
    pair.fake.machine += 1;
    pair.fake.restart();
    assert_eq!(status(pair.commit(first)), Some(Status::WritesLost), "flushed, not on the disk");
}

#[test]
fn a_copy_survives_the_server() {
    let mut pair = Pair::new(35);
    pair.fake.put(b"f", b"....");
    pair.fake.put(b"g", b"....");
    let (file, to) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
    pair.call(Work::CopyRange { file, offset: 0, to, to_offset: 0, len: 4 }).expect("copy");
    pair.fake.restart();
    pair.commit(to).expect("nothing was lost");
    pair.call(Work::Sync).expect("nothing was lost");
}

#[test]
fn a_refused_write_is_not_kept() {
    let mut pair = Pair::new(33);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    let closed = pair.open(b"f", read_write());
    pair.call(Work::Close { file: closed }).expect("close");
    let work = Work::Write {
        file: closed,
        offset: 0,
        len: 1,
        stability: Stability::Unstable,
        within: false,
    };
    pair.next_tag += 1;
    let tag = pair.next_tag;
    pair.core.submit_kept(Owner(0), tag, work, bytes(b"x"), b"x".to_vec());
    assert_eq!(status(pair.wait(tag).result), Some(Status::BadF));
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 4).expect("read"), b"....");
}

#[test]
fn writing_again_goes_on_in_the_session_after_the_next() {
    let mut pair = Pair::new(34);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    // Apart from each other: each is a request.
    for at in 0..40 {
        pair.write_kept(file, 2 * at, b"x");
    }
    let all = pair.content(b"f").to_vec();
    let writes = |pair: &Pair| pair.fake.executed.get("write").copied().unwrap_or(0);
    let before = writes(&pair);
    pair.fake.restart();
    pair.run_until("one is written", |pair| writes(pair) > before);
    assert_ne!(pair.content(b"f"), all, "not all of them yet");
    pair.fake.forget_sessions();
    assert_eq!(pair.read(file, 0, 100).expect("read"), all);
    assert_eq!(pair.core.facts().new_sessions, 2);
}

#[test]
fn what_lies_behind_each_other_is_written_again_in_large_requests() {
    const BYTES: usize = 3 << 20;
    let mut pair = Pair::new(41);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    let data: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    for (at, piece) in (0..).step_by(100_000).zip(data.chunks(100_000)) {
        pair.write_kept(file, at, piece);
    }
    for at in (BYTES as u64..).take(100) {
        pair.write_kept(file, at, b"z");
    }
    let before = pair.fake.executed["write"];
    pair.fake.restart();
    pair.read(file, 0, 1).expect("read");
    // The server takes 256 KiB at a time.
    assert_eq!(pair.fake.executed["write"] - before, 13);
    assert_eq!(&pair.content(b"f")[..BYTES], data);
    assert_eq!(&pair.content(b"f")[BYTES..], [b'z'; 100]);
}

#[test]
fn eight_requests_that_write_again_are_under_way_together() {
    let mut pair = Pair::new(42);
    pair.fake.script.slots = Some(16);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    for at in 0..20 {
        pair.write_kept(file, 2 * at, b"x");
    }
    pair.fake.restart();
    pair.fake.script.stall_writes = true;
    let tag = pair.submit(Work::Read { file, offset: 0, len: 1 }, room(1));
    pair.run_until("requests", |pair| pair.fake.stalled_requests() > 0);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.fake.stalled_requests(), 8);
    pair.fake.script.stall_writes = false;
    pair.wait(tag).result.expect("read");
    assert_eq!(pair.content(b"f").len(), 39);
}

#[test]
fn a_flush_under_way_parts_what_is_behind_each_other() {
    let mut pair = Pair::new(43);
    pair.fake.put(b"f", b"");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"old");
    let flush = Work::Commit { file, offset: 0, len: 0, level: CommitLevel::Flush };
    let tag = pair.submit(flush, Memory::None);
    pair.write_kept(file, 3, b"new");
    pair.wait(tag).result.expect("flush");
    pair.fake.disk.files.insert(b"f".to_vec(), b"elsewhere".to_vec());
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"elsnewere", "the rest was flushed");
}

fn patient(seed: u64) -> Pair {
    let options = super::options();
    Pair::with(seed, SessionOptions { retry: Duration::from_secs(600), ..options })
}

#[test]
fn what_is_kept_is_not_written_again_long_after_the_new_server_started() {
    not_after_the_new_server_started(|| {
        let mut pair = patient(47);
        pair.fake.put(b"f", b"....");
        let file = pair.open(b"f", read_write());
        (pair, file)
    });
}

/// Of a file of four points: a lease after the start it is, not after three.
pub(super) fn not_after_the_new_server_started(opened: impl Fn() -> (Pair, FileKey)) {
    for (leases, is_late) in [(1, false), (3, true)] {
        let (mut pair, file) = opened();
        pair.write_kept(file, 0, b"old");
        pair.fake.restart();
        pair.net.partition(SERVER, CLIENT);
        pair.run_for(LEASE * leases);
        let changed = b"from elsewhere".to_vec();
        pair.fake.memory.files.insert(b"f".to_vec(), changed);
        pair.net.heal(SERVER, CLIENT);
        let expected = if is_late { b"from elsewhere" } else { b"oldm elsewhere" };
        assert_eq!(pair.read(file, 0, 20).expect("read"), expected);
        let lost = pair.commit(file).err().and_then(|error| error.status());
        assert_eq!(lost, is_late.then_some(Status::WritesLost));
        let synced = pair.call(Work::Sync).err().and_then(|error| error.status());
        assert_eq!(synced, lost, "a sync says the same");
    }
}

#[test]
fn a_server_may_start_late() {
    let mut pair = patient(48);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    starts_late(pair, file);
}

/// What is kept of a file of four points is written again, however long nobody was there.
pub(super) fn starts_late(mut pair: Pair, file: FileKey) {
    pair.write_kept(file, 0, b"old");
    pair.fake.leave();
    pair.run_for(LEASE * 10);
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"old.");
    pair.commit(file).expect("nothing was lost");
}

#[test]
fn opens_by_turns_are_written_again_in_the_order_of_their_writes() {
    let mut pair = Pair::new(44);
    pair.fake.put(b"f", b"");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    pair.write_kept(first, 0, b"aaaa");
    pair.write_kept(second, 0, b"bbbbbb");
    pair.write_kept(first, 4, b"aaaa");
    pair.fake.restart();
    assert_eq!(pair.read(first, 0, 20).expect("read"), b"bbbbaaaa");
}

#[test]
fn what_was_written_under_a_lost_lock_is_not_written_again() {
    for grace in [true, false] {
        let mut pair = Pair::new(35);
        pair.fake.put(b"f", b"....");
        pair.fake.put(b"g", b"....");
        let (file, other) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
        let owner = OwnerKey { kind: LockKind::Posix, number: 1 };
        let lock = LockRequest { owner, range: LockRange::ALL, exclusive: true, pid: 1 };
        pair.call(Work::Lock { file, lock, wait: false }).expect("lock");
        pair.write_kept(file, 0, b"old");
        pair.write_kept(other, 0, b"free");
        // Who had the lock meanwhile wrote this.
        pair.fake.disk.files.insert(b"f".to_vec(), b"newer".to_vec());
        pair.fake.script.grace = grace;
        pair.fake.restart();
        assert_eq!(pair.read(other, 0, 4).expect("read"), b"free");
        if grace {
            assert_eq!(pair.read(file, 0, 9).expect("read"), b"older");
            pair.call(Work::Close { file }).expect("nothing was lost");
        } else {
            assert_eq!(status(pair.read(file, 0, 4)), Some(Status::LocksLost));
            assert_eq!(pair.content(b"f"), b"newer");
            assert_eq!(status(pair.call(Work::Close { file })), Some(Status::WritesLost));
            assert_eq!(status(pair.call(Work::Sync)), Some(Status::WritesLost));
        }
    }
}

#[test]
fn a_flush_that_fails_ends_the_keeping_too() {
    let mut pair = Pair::new(36);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"old");
    pair.fake.script.disk_full = true;
    assert_eq!(status(pair.commit(file)), Some(Status::NoSpc));
    pair.fake.script.disk_full = false;
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 9).expect("read"), b"....", "its writer was told");
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
}

#[test]
fn a_flush_that_fails_ends_the_keeping_of_all_opens() {
    let mut pair = Pair::new(37);
    pair.fake.put(b"f", b"....");
    let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
    pair.write_kept(first, 0, b"old");
    pair.write_kept(second, 0, b"new");
    pair.fake.script.disk_full = true;
    assert_eq!(status(pair.commit(second)), Some(Status::NoSpc));
    pair.fake.script.disk_full = false;
    pair.fake.disk.files.insert(b"f".to_vec(), b"new.".to_vec());
    pair.fake.restart();
    assert_eq!(pair.read(first, 0, 9).expect("read"), b"new.", "nothing older comes over it");
    assert_eq!(status(pair.commit(first)), Some(Status::WritesLost));
}

#[test]
fn what_is_written_and_flushed_at_once_survives_the_process() {
    let mut pair = Pair::new(45);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    let write = |pair: &mut Pair| {
        let tag = pair.submit(Work::WriteFlush { file, offset: 0, len: 3 }, bytes(b"new"));
        let done = pair.wait(tag);
        assert_eq!(done.result.expect("written").bytes(), 3);
        done.beside.expect("a flush").flushed
    };
    let requests = pair.fake.requests;
    assert_eq!(write(&mut pair), Ok(()));
    assert_eq!(pair.fake.requests, requests + 1);
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"new.");
    pair.call(Work::Sync).expect("its machine goes on");
    pair.fake.script.disk_full = true;
    assert_eq!(write(&mut pair), Err(Status::NoSpc));
    pair.fake.script.disk_full = false;
    pair.fake.restart();
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost), "in memory alone");
    assert_eq!(write(&mut pair), Ok(()));
    pair.fake.machine += 1;
    pair.fake.restart();
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost), "not on disk");
}

#[test]
fn attributes_and_a_flush_are_one_request() {
    let mut pair = Pair::new(46);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    let set = |pair: &mut Pair| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let work = Work::SetAttrOpen { file, handle: None, set, flush: true };
        let tag = pair.submit(work, Memory::None);
        let done = pair.wait(tag);
        assert!(matches!(done.result, Ok(Output::Attr(_))), "{:?}", done.result);
        done.beside.expect("a flush").flushed
    };
    pair.write_kept(file, 0, b"old");
    let requests = pair.fake.requests;
    assert_eq!(set(&mut pair), Ok(()));
    assert_eq!(pair.fake.requests, requests + 1);
    pair.fake.disk.files.insert(b"f".to_vec(), b"from elsewhere".to_vec());
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"from elsewhere");
    // What the flush could not make safe is told, and not written again.
    pair.write_kept(file, 0, b"new");
    pair.fake.script.disk_full = true;
    assert_eq!(set(&mut pair), Err(Status::NoSpc));
    pair.fake.script.disk_full = false;
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"from elsewhere");
    assert_eq!(status(pair.commit(file)), Some(Status::WritesLost));
}
