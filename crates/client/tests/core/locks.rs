//! Locks and callbacks.

use std::time::Duration;

use dafs_client::core::{Cancelled, FileKey, Memory, Owner, Work};
use dafs_client::{Error, OpenOptions, Output};
use dafs_protocol::{
    Callback, LockKind, LockRange, LockRequest, LockTicket, OwnerKey, SlotId, Status,
};

use super::{Pair, read_write, room, status};

const OWNER: OwnerKey = OwnerKey { kind: LockKind::Posix, number: 7 };

fn lock_of(owner: OwnerKey, first: u64, last: u64, exclusive: bool) -> LockRequest {
    let range = LockRange::new(first, last).expect("in order");
    LockRequest { owner, range, exclusive, pid: 42 }
}

fn lock(file: FileKey, first: u64, last: u64) -> Work {
    Work::Lock { file, lock: lock_of(OWNER, first, last, true), wait: true }
}

fn unlock(file: FileKey, first: u64, last: u64) -> Work {
    let range = LockRange::new(first, last).expect("in order");
    Work::Unlock { file, owner: OWNER, range }
}

impl Pair {
    fn with_file(seed: u64) -> (Pair, FileKey) {
        let mut pair = Pair::new(seed);
        pair.fake.put(b"f", &[1; 100]);
        let file = pair.open(b"f", read_write());
        (pair, file)
    }

    /// Asks for a lock that somebody else has, until the server queued it.
    fn start_waiting(&mut self, file: FileKey, owner: Owner) -> u64 {
        self.fake.lock_foreign(b"f");
        self.next_tag += 1;
        self.core.submit(owner, self.next_tag, lock(file, 0, 9), Memory::None);
        self.run_until("it waits", |pair| pair.fake.waiting() == 1);
        self.run_for(Duration::from_millis(100));
        assert!(self.done.is_empty(), "{:?}", self.done);
        self.next_tag
    }

    fn settle(&mut self) {
        self.run_until("settled", |pair| !pair.core.is_unsettled());
    }
}

#[test]
fn locks_are_taken_tested_and_given_back() {
    let (mut pair, file) = Pair::with_file(200);
    pair.call(lock(file, 0, 99)).expect("lock");
    pair.call(unlock(file, 10, 19)).expect("unlock");
    assert_eq!(pair.fake.held(b"f"), [(0, 9, true), (20, 99, true)]);
    let other = OwnerKey { number: 8, ..OWNER };
    let wanted = lock_of(other, 5, 30, false);
    let held = match pair.call(Work::LockTest { file, lock: wanted }) {
        Ok(Output::Conflict(Some((held, ours)))) => (held.range.first(), held.owner, ours),
        other => panic!("{other:?}"),
    };
    assert_eq!(held, (0, OWNER, true));
    let refused = pair.call(Work::Lock { file, lock: wanted, wait: false });
    assert_eq!(status(refused), Some(Status::Again));
    pair.call(Work::OwnerRelease { owner: OWNER }).expect("release");
    assert!(pair.fake.held(b"f").is_empty());
}

#[test]
fn a_wait_ends_by_a_callback() {
    let (mut pair, file) = Pair::with_file(201);
    let tag = pair.start_waiting(file, Owner(0));
    pair.read(file, 0, 10).expect("a wait takes no slot");
    pair.fake.unlock_foreign(b"f");
    pair.wait(tag).result.expect("locked");
    pair.run_until("an answer", |pair| !pair.fake.locks.answers.is_empty());
    assert_eq!(pair.fake.locks.answers[0].result, Ok(()));
    let ticket = LockTicket(99);
    pair.fake.call_back(0, Callback::Lock { ticket, result: Ok(()) }, None);
    pair.fake.call_back(1, Callback::Null, None);
    pair.run_until("answers", |pair| pair.fake.locks.answers.len() == 3);
    let results: Vec<_> = pair.fake.locks.answers.iter().map(|reply| reply.result).collect();
    assert!(results.contains(&Err(Status::NoEnt)), "an unknown ticket: {results:?}");
}

#[test]
fn a_wait_that_fails_says_why() {
    let (mut pair, file) = Pair::with_file(202);
    let tag = pair.start_waiting(file, Owner(0));
    let (ticket, result) = (LockTicket(1), Err(Status::Deadlock));
    pair.fake.call_back(0, Callback::Lock { ticket, result }, None);
    assert_eq!(status(pair.wait(tag).result), Some(Status::Deadlock));
}

#[test]
fn a_grant_before_the_reply_waits_for_it() {
    let (mut pair, file) = Pair::with_file(203);
    pair.fake.script.grant_before_reply = true;
    pair.fake.lock_foreign(b"f");
    pair.call(lock(file, 0, 9)).expect("locked");
    pair.run_until("an answer", |pair| !pair.fake.locks.answers.is_empty());
    assert_eq!(pair.fake.locks.answers[0].result, Ok(()), "not an unknown ticket");
    // Also where the reply is lost and comes on another connection.
    pair.call(unlock(file, 0, 9)).expect("unlock");
    pair.fake.lock_foreign(b"f");
    pair.fake.script.lose_replies = 1;
    pair.call(lock(file, 0, 9)).expect("locked");
    pair.run_until("an answer", |pair| pair.fake.locks.answers.len() == 2);
    assert_eq!(pair.fake.locks.answers[1].result, Ok(()));
    assert_eq!(pair.core.facts().new_sessions, 0);
}

#[test]
fn a_callback_that_is_sent_again_is_done_once() {
    let (mut pair, file) = Pair::with_file(204);
    let tag = pair.start_waiting(file, Owner(0));
    let (ticket, result) = (LockTicket(1), Ok(()));
    let request = pair.fake.call_back(0, Callback::Lock { ticket, result }, None);
    pair.wait(tag).result.expect("locked");
    pair.run_until("an answer", |pair| pair.fake.locks.answers.len() == 1);
    pair.net.break_connections(super::SERVER);
    pair.fake.call_back_again(request);
    pair.run_until("another", |pair| pair.fake.locks.answers.len() == 2);
    assert_eq!(pair.fake.locks.answers[1].result, Ok(()), "the same answer, not NOENT");
}

#[test]
fn a_grant_over_a_break_arrives() {
    for seed in 0..30 {
        let (mut pair, file) = Pair::with_file(2000 + seed);
        let tag = pair.start_waiting(file, Owner(0));
        let mut faults = pair.net.faults();
        faults.break_per_million = 100_000;
        pair.net.set_faults(faults);
        pair.fake.unlock_foreign(b"f");
        pair.wait(tag).result.expect("locked");
        pair.run_until("an answer", |pair| !pair.fake.locks.answers.is_empty());
        assert!(pair.fake.locks.answers.iter().all(|reply| reply.result.is_ok()));
        assert_eq!(pair.core.facts().new_sessions, 0);
    }
}

#[test]
fn callbacks_out_of_sequence_end_the_connection() {
    let (mut pair, file) = Pair::with_file(205);
    let mut request = pair.fake.call_back(2, Callback::Null, None);
    pair.run_until("an answer", |pair| pair.fake.locks.answers.len() == 1);
    request.sequence = 3;
    request.slot = SlotId(2);
    pair.fake.call_back_again(request);
    pair.run_until("a break", |pair| pair.core.facts().reconnects > 0);
    pair.fake.forget_callbacks();
    pair.read(file, 0, 1).expect("another connection");
    assert_eq!(pair.fake.locks.answers.len(), 1);
}

#[test]
fn locks_are_reclaimed_from_a_server_that_restarted() {
    let (mut pair, file) = Pair::with_file(206);
    pair.fake.script.grace = true;
    pair.call(lock(file, 0, 99)).expect("lock");
    pair.call(unlock(file, 10, 19)).expect("unlock");
    let whole = OwnerKey { kind: LockKind::Whole, number: 1 };
    pair.fake.put(b"g", b"");
    let other = pair.open(b"g", OpenOptions::read());
    let flock = Work::Lock { file: other, lock: lock_of(whole, 3, 3, true), wait: false };
    pair.call(flock).expect("lock");
    pair.fake.restart();
    pair.read(file, 0, 1).expect("read");
    assert_eq!(pair.fake.held(b"f"), [(0, 9, true), (20, 99, true)]);
    assert_eq!(pair.fake.held(b"g"), [(0, u64::MAX, true)]);
    assert_eq!(pair.fake.locks.reclaimed, 3);
    assert_eq!(pair.fake.executed["reclaim complete"], 1);
    // What is closed is not reclaimed.
    pair.call(Work::Close { file }).expect("close");
    pair.fake.restart();
    pair.call(Work::Null).expect("connected");
    assert_eq!(pair.fake.locks.reclaimed, 1);
    assert_eq!(pair.fake.executed["reclaim complete"], 2);
}

#[test]
fn a_wait_goes_on_in_a_new_session() {
    let (mut pair, file) = Pair::with_file(207);
    let tag = pair.start_waiting(file, Owner(0));
    pair.fake.restart();
    pair.run_until("it waits again", |pair| pair.fake.waiting() == 1);
    pair.fake.unlock_foreign(b"f");
    pair.wait(tag).result.expect("locked");
    assert_eq!(pair.fake.held(b"f"), [(0, 9, true)]);
}

#[test]
fn lost_locks_are_told_until_the_file_is_closed() {
    for restarts in [false, true] {
        let (mut pair, file) = Pair::with_file(208);
        pair.fake.put(b"g", &[2; 10]);
        let other = pair.open(b"g", read_write());
        pair.call(lock(file, 0, 9)).expect("lock");
        if restarts {
            pair.fake.restart();
        } else {
            pair.fake.forget_sessions();
        }
        for _ in 0..2 {
            assert_eq!(status(pair.read(file, 0, 1)), Some(Status::LocksLost));
        }
        assert_eq!(status(pair.call(lock(file, 0, 9))), Some(Status::LocksLost));
        pair.read(other, 0, 1).expect("another file is not concerned");
        assert_eq!(pair.fake.executed["reclaim complete"], 1);
        let opens = pair.fake.open_count();
        pair.call(Work::Close { file }).expect("close");
        assert_eq!(pair.fake.open_count(), opens - 1, "closed at the server too");
        let again = pair.open(b"f", read_write());
        pair.read(again, 0, 1).expect("read");
    }
}

#[test]
fn an_interrupted_wait_leaves_the_queue() {
    let (mut pair, file) = Pair::with_file(209);
    let tag = pair.start_waiting(file, Owner(1));
    assert_eq!(pair.core.cancel(Owner(1)), Cancelled::Waiting);
    assert_eq!(pair.wait(tag).result.expect_err("given up"), Error::Interrupted);
    assert_eq!(pair.core.cancel(Owner(1)), Cancelled::Free);
    assert_eq!(pair.fake.waiting(), 0);
    pair.fake.unlock_foreign(b"f");
    pair.settle();
    assert!(pair.fake.held(b"f").is_empty() && pair.fake.locks.answers.is_empty());
}

#[test]
fn a_grant_that_nobody_wants_is_given_back_and_what_was_held_stays() {
    let (mut pair, file) = Pair::with_file(210);
    let shared = lock_of(OWNER, 3, 5, false);
    pair.call(Work::Lock { file, lock: shared, wait: true }).expect("shared");
    pair.start_waiting(file, Owner(1));
    // The grant is on its way when the caller goes, and the cancel comes too late.
    pair.fake.unlock_foreign(b"f");
    pair.core.cancel(Owner(1));
    pair.core.abandon_owner(Owner(1));
    assert!(pair.core.gives_back(OWNER));
    pair.settle();
    assert!(!pair.core.gives_back(OWNER));
    assert_eq!(pair.fake.held(b"f"), [(3, 5, false)]);
    assert_eq!(pair.fake.locks.answers[0].result, Ok(()));
    // And that is what is reclaimed.
    pair.fake.script.grace = true;
    pair.fake.restart();
    pair.read(file, 0, 1).expect("read");
    assert_eq!(pair.fake.held(b"f"), [(3, 5, false)]);
}

#[test]
fn a_lock_whose_caller_goes_at_any_time_is_not_left_behind() {
    for turns in 0..60 {
        let (mut pair, file) = Pair::with_file(3000 + turns);
        let waits = turns % 2 == 0;
        if waits {
            pair.fake.lock_foreign(b"f");
        }
        pair.core.submit(Owner(1), 1, lock(file, 0, 9), Memory::None);
        for _ in 0..turns {
            pair.turn();
        }
        pair.fake.unlock_foreign(b"f");
        pair.core.cancel(Owner(1));
        pair.core.abandon_owner(Owner(1));
        let granted = pair.done.drain(..).any(|done| done.result.is_ok());
        pair.settle();
        let held = if granted { vec![(0, 9, true)] } else { Vec::new() };
        assert_eq!(pair.fake.held(b"f"), held, "after {turns} turns");
    }
}

#[test]
fn what_a_server_may_not_say_about_locks() {
    let (mut pair, file) = Pair::with_file(211);
    let tag = pair.start_waiting(file, Owner(0));
    // The same ticket for another wait.
    pair.fake.script.lie = Some(|reply| {
        use dafs_protocol::{Locked, Outcome};
        reply.results = Ok(vec![Ok(Outcome::Lock(Locked::Waiting(LockTicket(1))))]);
    });
    let second = pair.submit(lock(file, 20, 29), Memory::None);
    assert!(matches!(pair.wait(tag).result, Err(Error::PeerProtocol(_))));
    pair.fake.script.lie = None;
    let (ticket, result) = (LockTicket(1), Ok(()));
    pair.fake.call_back(0, Callback::Lock { ticket, result }, None);
    pair.wait(second).result.expect("locked");
    let read = pair.submit(Work::Read { file, offset: 0, len: 1 }, room(1));
    pair.wait(read).result.expect("read");
}

#[test]
fn a_conversion_that_waits_has_given_up_the_old_lock() {
    let (mut pair, file) = Pair::with_file(212);
    let whole = OwnerKey { kind: LockKind::Whole, number: 1 };
    let flock = |exclusive| {
        let lock = lock_of(whole, 0, 0, exclusive);
        Work::Lock { file, lock, wait: false }
    };
    pair.call(flock(false)).expect("shared");
    pair.fake.lock_foreign(b"f");
    assert_eq!(status(pair.call(flock(true))), Some(Status::Again));
    pair.fake.script.grace = true;
    pair.fake.restart();
    pair.read(file, 0, 1).expect("not lost: it was given up");
    assert_eq!(pair.fake.locks.reclaimed, 0);
}

#[test]
fn callbacks_never_run_out() {
    let (mut pair, _) = Pair::with_file(213);
    for count in 1..=50 {
        pair.fake.call_back(count % 4, Callback::Null, None);
        pair.run_until("an answer", |pair| pair.fake.locks.answers.len() == usize::from(count));
    }
}
