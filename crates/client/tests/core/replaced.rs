//! What was acknowledged after a kept write is not undone by writing that again.

use dafs_client::OpenOptions;
use dafs_client::core::{FileKey, Memory, Put, Work};
use dafs_protocol::{RequestOutcome, SetAttr, Stability, Status};

use super::{Owner, Pair, bytes, place, read_write};

fn told<T>(result: dafs_client::Result<T>) -> Option<Status> {
    result.err().and_then(|error| error.status())
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn cut(file: FileKey, to: u64) -> Work {
    Work::FileSetAttr { file, set: size(to) }
}

#[test]
fn a_cut_is_not_undone() {
    type Cut = fn(FileKey) -> Work;
    let by_name = |_| Work::SetAttr { place: place(b"f"), set: size(2), no_follow: false };
    let by_open = |file| Work::SetAttrOpen { file, handle: None, set: size(2), flush: false };
    let cuts: [Cut; 3] = [|file| cut(file, 2), by_name, by_open];
    for work in cuts {
        let mut pair = Pair::new(70);
        pair.fake.put(b"f", b"....");
        pair.fake.put(b"g", b"....");
        let (first, second) = (pair.open(b"f", read_write()), pair.open(b"f", read_write()));
        let other = pair.open(b"g", read_write());
        pair.write_kept(first, 0, b"abc");
        pair.write_kept(second, 3, b"defgh");
        pair.write_kept(other, 0, b"another");
        pair.call(work(first)).expect("cut");
        pair.fake.restart();
        assert_eq!(pair.read(first, 0, 9).expect("read"), b"ab");
        assert_eq!(pair.content(b"g"), b"another", "of another file");
        // Nothing old is between the cut and what comes behind it.
        pair.write_kept(second, 5, b"new");
        pair.fake.restart();
        assert_eq!(pair.read(first, 0, 9).expect("read"), b"ab\0\0\0new");
        pair.commit(first).expect("nothing was lost");
        pair.commit(second).expect("nothing was lost");
    }
}

#[test]
fn what_empties_a_file_by_its_name_is_not_undone() {
    let open = Work::Open {
        place: place(b"f"),
        options: OpenOptions { truncate: true, ..OpenOptions::write() },
    };
    let put = Put::new(place(b"f"), 0, 0o644, false, SetAttr::default(), false, None);
    for work in [open, Work::Put(Box::new(put))] {
        let mut pair = Pair::new(71);
        pair.fake.put(b"f", b"....");
        let file = pair.open(b"f", read_write());
        pair.write_kept(file, 0, b"old data");
        pair.call(work).expect("cut");
        pair.write_kept(file, 1, b"n");
        pair.fake.restart();
        assert_eq!(pair.read(file, 0, 9).expect("read"), b"\0n");
        pair.commit(file).expect("nothing was lost");
    }
}

#[test]
fn a_hole_is_not_filled_again() {
    for (mode, expected) in [(0, b"abcdefgh"), (1, b"abcdefgh"), (3, b"ab\0\0\0fgh")] {
        let mut pair = Pair::new(72);
        pair.fake.put(b"f", b"........");
        let file = pair.open(b"f", read_write());
        pair.write_kept(file, 0, b"abcdefgh");
        pair.call(Work::Fallocate { file, mode, offset: 2, len: 3 }).expect("space");
        pair.fake.restart();
        assert_eq!(pair.read(file, 0, 9).expect("read"), expected, "mode {mode}");
    }
}

#[test]
fn what_is_not_kept_is_not_written_over() {
    let mut pair = Pair::new(73);
    pair.fake.put(b"f", b"....");
    pair.fake.put(b"g", b"data");
    let (file, from) = (pair.open(b"f", read_write()), pair.open(b"g", read_write()));
    pair.write_kept(file, 0, b"aaaa");
    let stability = Stability::File;
    let tag = pair
        .submit(Work::Write { file, offset: 1, len: 2, stability, within: false }, bytes(b"bb"));
    pair.wait(tag).result.expect("write");
    let there = pair.content(b"f").to_vec();
    pair.fake.disk.files.insert(b"f".to_vec(), there);
    pair.write_kept(file, 3, b"c");
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 9).expect("read"), b"abbc");
    let copy = Work::CopyRange { file: from, offset: 0, to: file, to_offset: 0, len: 4 };
    pair.call(copy).expect("copy");
    pair.fake.disk.files.insert(b"f".to_vec(), b"data".to_vec());
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 9).expect("read"), b"data");
}

/// Nobody knows which of the two the server did first.
#[test]
fn a_write_that_was_under_way_with_a_cut_is_kept_no_longer() {
    for (offset, meets) in [(4, true), (0, false)] {
        let mut pair = Pair::new(74);
        pair.fake.put(b"f", b"....");
        let file = pair.open(b"f", read_write());
        pair.write_kept(file, 0, b"abc");
        pair.fake.script.stall_writes = true;
        pair.next_tag += 1;
        let tag = pair.next_tag;
        let stability = Stability::Unstable;
        let work = Work::Write { file, offset, len: 2, stability, within: false };
        pair.core.submit_kept(Owner(0), tag, work, bytes(b"xy"), b"xy".to_vec());
        pair.run_until("a request", |pair| pair.fake.stalled_requests() > 0);
        pair.call(cut(file, 3)).expect("cut");
        pair.fake.script.stall_writes = false;
        pair.wait(tag).result.expect("write");
        pair.fake.restart();
        let expected = if meets { b"abc" } else { b"xyc" };
        assert_eq!(pair.read(file, 0, 9).expect("read"), expected);
        assert_eq!(told(pair.commit(file)), meets.then_some(Status::WritesLost));
        assert_eq!(told(pair.call(Work::Sync)), meets.then_some(Status::WritesLost));
    }
}

#[test]
fn a_cut_whose_answer_was_lost_counts_where_it_was_done() {
    let done = RequestOutcome::Done { operations: 1, status: Ok(()), value: 1, created: false };
    for (outcome, expected, lost) in
        [(done, &b"ab"[..], false), (RequestOutcome::Unknown, b"abcdefgh", false)]
    {
        let mut pair = Pair::new(75);
        pair.fake.put(b"f", b"....");
        let file = pair.open(b"f", read_write());
        pair.write_kept(file, 0, b"abcdefgh");
        pair.fake.script.request_outcome = Some(outcome);
        pair.fake.script.lose_replies = 1;
        let tag = pair.submit(cut(file, 2), Memory::None);
        pair.run_until("cut", |pair| pair.fake.executed.contains_key("set attributes"));
        pair.fake.restart();
        let answer = told(pair.wait(tag).result);
        let unknown = matches!(outcome, RequestOutcome::Unknown);
        assert_eq!(answer, unknown.then_some(Status::OutcomeUnknown));
        assert_eq!(pair.read(file, 0, 9).expect("read"), expected);
        assert_eq!(told(pair.commit(file)), lost.then_some(Status::WritesLost));
    }
}

/// By its name, of which the server noted no more than the number of its file.
#[test]
fn what_a_lost_cut_by_name_took_is_told() {
    for (value, lost) in [(1, true), (9, false)] {
        let mut pair = Pair::new(76);
        pair.fake.put(b"f", b"....");
        let file = pair.open(b"f", read_write());
        pair.write_kept(file, 0, b"abcdefgh");
        let done = RequestOutcome::Done { operations: 2, status: Ok(()), value, created: false };
        pair.fake.script.request_outcome = Some(done);
        pair.fake.script.lose_replies = 1;
        let work = Work::SetAttr { place: place(b"f"), set: size(2), no_follow: false };
        let tag = pair.submit(work, Memory::None);
        pair.run_until("cut", |pair| pair.fake.executed.contains_key("set attributes"));
        pair.fake.restart();
        pair.wait(tag);
        assert_eq!(pair.read(file, 0, 9).expect("read").len(), if lost { 2 } else { 8 });
        assert_eq!(told(pair.commit(file)), lost.then_some(Status::WritesLost));
    }
}

/// Numbers of files that are gone are used again.
#[test]
fn a_cut_of_the_next_file_of_that_number_takes_nothing() {
    let mut pair = Pair::new(78);
    pair.fake.put(b"f", b"....");
    pair.fake.put(b"g", b"....");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"abcdefgh");
    let done = RequestOutcome::Done { operations: 2, status: Ok(()), value: 1, created: false };
    pair.fake.script.request_outcome = Some(done);
    pair.fake.script.lose_replies = 1;
    let work = Work::SetAttr { place: place(b"g"), set: size(2), no_follow: false };
    let tag = pair.submit(work, Memory::None);
    pair.run_until("cut", |pair| pair.fake.executed.contains_key("set attributes"));
    pair.fake.disk.files.remove(&b"f"[..]);
    pair.fake.restart();
    pair.wait(tag);
    assert_eq!(told(pair.call(Work::Close { file })), Some(Status::Stale));
}

#[test]
fn many_changes_end_the_keeping() {
    let mut pair = Pair::new(77);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    pair.write_kept(file, 0, b"a");
    for piece in 0..2000 {
        pair.write(file, 2 * piece + 1, b"b").expect("write");
    }
    pair.write_kept(file, 0, b"c");
    pair.fake.restart();
    assert_eq!(pair.read(file, 0, 4).expect("read"), b"c...");
    assert_eq!(told(pair.commit(file)), Some(Status::WritesLost));
}
