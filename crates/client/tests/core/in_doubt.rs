//! Calls whose reply was lost with the server: what the next one knows of them is their answer.

use super::*;
use dafs_protocol::{FileKind, RequestOutcome, SessionId};

const DONE: RequestOutcome = done(1, Ok(()), 0);

const fn done(operations: u16, status: Result<(), Status>, value: u64) -> RequestOutcome {
    RequestOutcome::Done { operations, status, value, created: true }
}

/// The server executes the work, and dies before it answers; the next one knows `request_outcome`.
fn lose(pair: &mut Pair, operation: &'static str, work: Work, memory: Memory) -> u64 {
    pair.fake.script.lose_replies = 1;
    let tag = pair.submit(work, memory);
    pair.run_until("executed", |pair| pair.fake.executed.contains_key(operation));
    pair.fake.disk = pair.fake.memory.clone();
    pair.fake.restart();
    tag
}

fn after(
    request_outcome: RequestOutcome,
    operation: &'static str,
    work: Work,
    memory: Memory,
) -> (Pair, CoreDone) {
    let mut pair = Pair::new(60);
    pair.fake.put(b"f", b"abc");
    // A session there must be first.
    pair.call(Work::Null).expect("a session");
    pair.fake.script.request_outcome = Some(request_outcome);
    let tag = lose(&mut pair, operation, work, memory);
    let done = pair.wait(tag);
    (pair, done)
}

fn create() -> Work {
    let options = OpenOptions { create: true, exclusive: true, ..OpenOptions::write() };
    Work::Open { place: place(b"new"), options }
}

fn remove() -> Work {
    Work::Remove { place: place(b"f"), directory: false }
}

#[test]
fn a_change_that_was_done_is_not_done_again() {
    let (pair, answer) = after(DONE, "remove", remove(), Memory::None);
    assert!(matches!(answer.result, Ok(Output::Unit)), "{:?}", answer.result);
    assert_eq!(pair.fake.executed["remove"], 1);
    assert_eq!(pair.fake.questions.len(), 1);
}

#[test]
fn a_change_that_failed_fails() {
    let request_outcome = done(0, Err(Status::NotEmpty), 0);
    let (pair, answer) = after(request_outcome, "remove", remove(), Memory::None);
    assert_eq!(status(answer.result), Some(Status::NotEmpty));
    assert_eq!(pair.fake.executed["remove"], 1);
}

#[test]
fn what_is_asked_for_beside_a_change_does_not_make_it_fail() {
    let work = Work::Remove { place: place(b"f").with_dir(), directory: false };
    let (_, answer) = after(done(1, Err(Status::Access), 0), "remove", work, Memory::None);
    assert!(matches!(answer.result, Ok(Output::Unit)), "{:?}", answer.result);
}

#[test]
fn a_change_that_was_not_begun_is_sent_again() {
    let (pair, answer) = after(RequestOutcome::NotBegun, "remove", remove(), Memory::None);
    // This fake did it all the same, which the second attempt shows.
    assert_eq!(status(answer.result), Some(Status::NoEnt));
    assert_eq!(pair.fake.executed["remove"], 2);
}

#[test]
fn what_nobody_knows_is_told_so() {
    for request_outcome in [RequestOutcome::Unknown, RequestOutcome::Begun, done(0, Ok(()), 0)] {
        let (pair, answer) = after(request_outcome, "remove", remove(), Memory::None);
        assert_eq!(status(answer.result), Some(Status::OutcomeUnknown), "{request_outcome:?}");
        assert_eq!(pair.fake.executed["remove"], 1);
    }
}

#[test]
fn a_file_that_was_created_is_opened_as_created() {
    let inode = 2;
    let (mut pair, answer) = after(done(1, Ok(()), inode), "open", create(), Memory::None);
    let Ok(Output::File(file, opened)) = answer.result else { panic!("{:?}", answer.result) };
    assert!(opened.created && opened.node.attr.inode == inode);
    pair.write(file, 0, b"mine").expect("it is open");
    pair.call(Work::Close { file }).expect("closed");
    assert_eq!(pair.fake.open_count(), 0);
}

#[test]
fn another_file_of_the_name_is_not_what_was_created() {
    let (mut pair, answer) = after(done(1, Ok(()), 77), "open", create(), Memory::None);
    assert_eq!(status(answer.result), Some(Status::Stale));
    pair.run_until("nothing is open", |pair| pair.fake.open_count() == 0);
}

#[test]
fn a_name_that_was_made_is_looked_up() {
    let work = Work::Make {
        place: place(b"link"),
        kind: FileKind::Symlink,
        mode: 0,
        rdev: 0,
        target: b"there".to_vec(),
    };
    let (pair, answer) = after(done(1, Ok(()), 2), "create", work, Memory::None);
    let Ok(Output::Object(node)) = answer.result else { panic!("{:?}", answer.result) };
    assert_eq!((node.attr.inode, pair.fake.executed["create"]), (2, 1));
    assert!(answer.buffer.is_none(), "the target's memory is the core's");
}

#[test]
fn a_file_that_was_put_is_looked_up_under_its_last_name() {
    let put = Put::new(place(b"t"), 3, 0o644, true, SetAttr::default(), false, Some(place(b"n")));
    let work = Work::Put(Box::new(put));
    let (pair, answer) = after(done(4, Ok(()), 2), "rename", work, bytes(b"xyz"));
    assert!(matches!(answer.result, Ok(Output::Attr(attr)) if attr.size == 3));
    assert!(answer.buffer.is_some(), "the caller's memory comes back");
    assert_eq!(pair.fake.executed["open"], 1);
}

#[test]
fn an_append_is_answered_where_its_bytes_are_safe() {
    for (stability, known) in [(Stability::File, true), (Stability::Unstable, false)] {
        let mut pair = Pair::new(61);
        pair.fake.put(b"f", b"abc");
        let file = pair.open(b"f", read_write());
        pair.fake.script.request_outcome = Some(done(1, Ok(()), 3));
        let append = Work::Append { file, len: 2, stability };
        let tag = lose(&mut pair, "append", append, bytes(b"de"));
        match pair.wait(tag).result {
            Ok(Output::Written { bytes: 2, offset: 3 }) => assert!(known),
            other => assert_eq!((status(other), known), (Some(Status::OutcomeUnknown), false)),
        }
        assert_eq!(pair.fake.executed["append"], 1);
    }
}

#[test]
fn a_kept_append_that_was_done_is_written_again_in_its_place() {
    let mut pair = Pair::new(62);
    pair.fake.put(b"f", b"abc");
    let file = pair.open(b"f", read_write());
    pair.fake.script.request_outcome = Some(done(1, Ok(()), 3));
    pair.fake.script.lose_replies = 1;
    pair.next_tag += 1;
    let (tag, stability) = (pair.next_tag, Stability::Unstable);
    let append = Work::Append { file, len: 2, stability };
    pair.core.submit_kept(Owner(0), tag, append, bytes(b"de"), b"de".to_vec());
    pair.run_until("executed", |pair| pair.fake.executed.contains_key("append"));
    // The server's memory is gone with it.
    pair.fake.restart();
    let result = pair.wait(tag).result;
    assert!(matches!(result, Ok(Output::Written { bytes: 2, offset: 3 })), "{result:?}");
    assert_eq!(pair.read(file, 0, 9).expect("read"), b"abcde");
    assert_eq!(pair.fake.executed["append"], 1);
    pair.commit(file).expect("nothing was lost");
}

#[test]
fn a_third_server_is_asked_for_a_session_with_the_first() {
    let mut pair = Pair::new(63);
    pair.fake.put(b"f", b"abc");
    pair.call(Work::Null).expect("a session");
    pair.fake.script.request_outcome = Some(DONE);
    pair.fake.script.lose_replies = 1;
    let tag = pair.submit(remove(), Memory::None);
    pair.run_until("executed", |pair| pair.fake.executed.contains_key("remove"));
    pair.fake.disk = pair.fake.memory.clone();
    pair.fake.restart();
    // The answer of the second is lost with it.
    let before = pair.fake.requests;
    pair.run_until("the root is found", |pair| pair.fake.requests > before);
    pair.fake.script.lose_replies = 1;
    pair.run_until("asked", |pair| !pair.fake.questions.is_empty());
    pair.fake.restart();
    assert!(matches!(pair.wait(tag).result, Ok(Output::Unit)));
    let questions = &pair.fake.questions;
    assert!(questions.len() == 2 && questions[0] == questions[1], "{questions:?}");
    assert_ne!(questions[0].0, SessionId::default());
}

#[test]
fn calls_in_doubt_end_when_they_are_given_up() {
    let mut pair = Pair::new(64);
    pair.fake.put(b"f", b"abc");
    pair.call(Work::Null).expect("a session");
    pair.fake.script.request_outcome = Some(RequestOutcome::NotBegun);
    let tag = lose(&mut pair, "remove", remove(), Memory::None);
    pair.fake.script.stall = true;
    pair.run_for(Duration::from_millis(100));
    pair.core.abandon_owner(Owner(0));
    pair.fake.script.stall = false;
    pair.call(Work::Null).expect("the session goes on");
    assert!(!pair.done.iter().any(|done| done.tag == tag));
    assert_eq!(pair.fake.executed["remove"], 1, "it is not sent again");
    assert!(!pair.core.is_unsettled());
}
