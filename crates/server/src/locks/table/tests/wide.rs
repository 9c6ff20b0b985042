//! Locks that many wait for.

use super::*;

/// A table in which so many may wait for one file.
fn wide_table(waits: usize) -> LockTable {
    let limits = LockLimits {
        locks_per_session: 1 << 16,
        waits_per_session: waits,
        waits_per_file: waits,
        ..LIMITS
    };
    let mut table = LockTable::new(limits, Grace::default());
    (0..4).for_each(|number| {
        table.begin_session(number, (0, SessionId([number as u8; 16])), (0, 99))
    });
    table
}

const WAITS: usize = 512;

#[test]
fn a_holder_finds_in_one_walk_that_all_wait_for_it() {
    for held_by_others in [false, true] {
        let mut table = wide_table(WAITS);
        let other = owner(2, LockKind::Ofd, 1);
        assert_eq!(table.lock(want(1, posix(0), 0, 9, false), true), GRANTED);
        if held_by_others {
            assert_eq!(table.lock(want(1, other, 0, 9, false), true), GRANTED);
        }
        let writer = |number| want(1, owner(1, LockKind::Ofd, number), 0, 9, true);
        for number in 1..WAITS as u64 {
            ticket(table.lock(writer(number), true));
        }
        let answer = table.lock(want(1, posix(0), 0, 9, true), true);
        assert_eq!(answer == GRANTED, !held_by_others);
        let steps = table.steps.get();
        assert!(steps <= 8 * WAITS * WAITER_STEPS, "{steps}");
        table.release(other);
        assert!(held_by_others == (ends(&mut table).len() == 1), "it passes all writers");
        let steps = table.steps.get();
        assert!(steps <= 8 * WAITS * WAITER_STEPS, "{steps}");
    }
}

#[test]
fn what_one_call_leaves_the_next_one_does() {
    let mut table = wide_table(WAITS);
    table.steps_max = 1 << 12;
    let mut random = Random(1);
    let many = owner(0, LockKind::Ofd, 0);
    assert_eq!(table.lock(want(1, many, 0, 2000, true), true), GRANTED);
    // Each behind two others, and each holds something that another waits for.
    for number in 1..100 {
        let owner = owner(random.below(3) + 1, LockKind::Ofd, number);
        let _ = table.lock(want(2 + number % 9, owner, number, number + 1, false), false);
        let _ = table.lock(want(1, owner, number, number + 1, true), true);
        let _ = table.lock(want(2 + random.below(9), owner, number, number + 9, true), true);
    }
    // Far more than one call may look at; it goes on until nobody can.
    table.end_session(0);
    let mut calls = 1;
    while !table.unsettled.is_empty() {
        let grants = table.stats().grants;
        table.go_on();
        calls += 1;
        assert!(table.unsettled.is_empty() || table.stats().grants > grants);
    }
    assert!(calls > 1);
    (1..4).for_each(|session| table.end_session(session));
    assert_eq!(table.stats().waiting, 0);
}
