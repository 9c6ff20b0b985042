//! Locks, and waits for them.

use dafs_protocol::{
    LockKind, LockRange, LockRequest, LockTicket, Locked, Operation, Outcome, OwnerKey, StateId,
    Status,
};

use crate::attack::Attack;
use crate::frames::{Frames, expect, status};

const LOCKS_MAX: u64 = 200;
const WAITS_MAX: u64 = 20;
const WAITS_OF_A_FILE_MAX: usize = 512;

/// For the server's configuration.
pub(crate) fn configuration() -> String {
    format!(
        "locks_per_session = {LOCKS_MAX}\nlock_waits_per_session = {WAITS_MAX}\n\
         lock_waits_per_file = {WAITS_OF_A_FILE_MAX}\n"
    )
}

/// Exclusive, of some bytes, by an owner of this number.
fn lock_request(number: u64, first: u64, last: u64) -> LockRequest {
    let owner = OwnerKey { kind: LockKind::Posix, number };
    let range = LockRange::new(first, last).unwrap_or(LockRange::ALL);
    LockRequest { owner, range, exclusive: true, pid: 1 }
}

/// Of a whole file.
fn whole(number: u64) -> LockRequest {
    lock_request(number, 0, u64::MAX)
}

fn lock(
    frames: &mut Frames,
    state: StateId,
    lock: LockRequest,
    wait: bool,
) -> Result<Result<Locked, Status>, String> {
    let operation = Operation::Lock { state, lock, wait, reclaim: false };
    match frames.chain(&[operation])?.as_deref() {
        Ok([Ok(Outcome::Lock(locked))]) => Ok(Ok(*locked)),
        Ok([Err(status)]) => Ok(Err(*status)),
        other => Err(format!("no answer to LOCK: {other:?}")),
    }
}

/// That it is granted at once.
fn granted(frames: &mut Frames, state: StateId, wanted: LockRequest) -> Result<(), String> {
    let got = lock(frames, state, wanted, false)?;
    expect(&format!("{wanted:?}: {got:?}"), got == Ok(Locked::Granted))
}

/// So many locks or waits of one byte each, until the server has enough.
fn until_refused(frames: &mut Frames, state: StateId, wait: bool) -> Result<u64, String> {
    for n in 0..10_000 {
        match lock(frames, state, lock_request(n % 3, n * 2, n * 2), wait)? {
            Ok(_) => {}
            Err(Status::Resource) => return Ok(n),
            Err(other) => return Err(format!("{n}: {other:?}")),
        }
    }
    Err("without end".into())
}

pub(crate) fn without_end(attack: &Attack) -> Result<(), String> {
    const NAME: &str = "locks without end";
    let (mut frames, state) = Frames::with_file(&attack.url, NAME)?;
    let (mut other, theirs) = Frames::with_file(&attack.url, NAME)?;
    let count = until_refused(&mut frames, state, false)?;
    expect(&format!("{count} locks"), count > 1 && count <= LOCKS_MAX)?;
    granted(&mut other, theirs, lock_request(0, 1, 1))?;
    // Every other byte of one range given back makes as many ranges.
    let cut = |n: u64| Operation::Unlock {
        state: theirs,
        owner: lock_request(0, 0, 0).owner,
        range: lock_request(0, n * 2, n * 2).range,
    };
    granted(&mut other, theirs, lock_request(0, 1 << 40, u64::MAX))?;
    let refused = (1 << 40..(1 << 40) + LOCKS_MAX + 9)
        .any(|n| status(other.chain(&[cut(n)])) == Some(Status::Resource));
    expect("pieces without end", refused)
}

pub(crate) fn waits_without_end(attack: &Attack) -> Result<(), String> {
    const NAME: &str = "waits without end";
    let (mut holder, held) = Frames::with_file(&attack.url, NAME)?;
    let (mut frames, state) = Frames::with_file(&attack.url, NAME)?;
    granted(&mut holder, held, whole(0))?;
    let count = until_refused(&mut frames, state, true)?;
    expect(&format!("{count} waits"), count == WAITS_MAX)?;
    let (mut other, theirs) = Frames::with_file(&attack.url, NAME)?;
    let got = lock(&mut other, theirs, lock_request(0, 0, 0), true)?;
    expect(&format!("another waits: {got:?}"), matches!(got, Ok(Locked::Waiting(_))))
}

fn release(number: u64) -> Operation<'static> {
    Operation::OwnerRelease { owner: lock_request(number, 0, 0).owner }
}

fn done(frames: &mut Frames, operation: Operation<'_>) -> Result<(), String> {
    let results = frames.chain(&[operation])?;
    expect(&format!("{results:?}"), status(Ok(results.clone())).is_none())
}

pub(crate) fn callbacks_never_answered(attack: &Attack) -> Result<(), String> {
    const NAME: &str = "callbacks never answered";
    let (mut holder, held) = Frames::with_file(&attack.url, NAME)?;
    let (mut frames, state) = Frames::with_file(&attack.url, NAME)?;
    granted(&mut holder, held, whole(0))?;
    until_refused(&mut frames, state, true)?;
    done(&mut holder, release(0))?;
    // All waits are granted and given back. Their ends are not confirmed, so that they count.
    (0..3).try_for_each(|number| done(&mut frames, release(number)))?;
    granted(&mut holder, held, whole(0))?;
    let more = lock(&mut frames, state, lock_request(0, 0, 0), true)?;
    expect(&format!("more waits: {more:?}"), more == Err(Status::Resource))
}

pub(crate) fn of_others(attack: &Attack) -> Result<(), String> {
    const NAME: &str = "locks of others";
    let (mut holder, held) = Frames::with_file(&attack.url, NAME)?;
    let (mut waiter, waits) = Frames::with_file(&attack.url, NAME)?;
    let all = whole(7);
    granted(&mut holder, held, all)?;
    let Ok(Locked::Waiting(ticket)) = lock(&mut waiter, waits, all, true)? else {
        return Err("the second waits".into());
    };
    let (mut thief, state) = Frames::with_file(&attack.url, NAME)?;
    for number in 1..ticket.0 + 9 {
        let got = status(thief.chain(&[Operation::LockCancel { ticket: LockTicket(number) }]));
        expect(&format!("ticket {number} of another: {got:?}"), got == Some(Status::NoEnt))?;
    }
    let owner = all.owner;
    done(&mut thief, Operation::Unlock { state, owner, range: LockRange::ALL })?;
    done(&mut thief, Operation::OwnerRelease { owner })?;
    let got = lock(&mut thief, state, all, false)?;
    expect(&format!("the owner number of another: {got:?}"), got == Err(Status::Again))?;
    let reclaim = Operation::Lock { state, lock: all, wait: false, reclaim: true };
    let got = status(thief.chain(&[reclaim]));
    expect(&format!("a reclaim of what it never had: {got:?}"), got == Some(Status::NoGrace))?;
    done(&mut waiter, Operation::LockCancel { ticket })
}

/// One who shares a file asks for it alone, again and again, while as many wait for him as may.
pub(crate) fn a_graph(attack: &Attack) -> Result<(), String> {
    const NAME: &str = "a file that all wait for";
    const ASKED: usize = 64;
    let (mut holder, held) = Frames::with_file(&attack.url, NAME)?;
    granted(&mut holder, held, LockRequest { exclusive: false, ..whole(0) })?;
    let (mut kept, mut waiting) = (Vec::new(), 0);
    'full: loop {
        let (mut frames, state) = Frames::with_file(&attack.url, NAME)?;
        for number in 0..WAITS_MAX {
            match lock(&mut frames, state, whole(number + 1), true)? {
                Ok(Locked::Waiting(_)) => waiting += 1,
                Err(Status::Resource) => break 'full,
                other => return Err(format!("waiter {waiting}: {other:?}")),
            }
        }
        kept.push(frames);
    }
    expect(&format!("{waiting} waiters"), waiting == WAITS_OF_A_FILE_MAX)?;
    for _ in 0..ASKED {
        match lock(&mut holder, held, whole(0), true)? {
            // Nobody else has any of it, and those who wait, wait for the holder.
            Ok(Locked::Granted) => {
                granted(&mut holder, held, LockRequest { exclusive: false, ..whole(0) })?;
            }
            Ok(Locked::Waiting(ticket)) => done(&mut holder, Operation::LockCancel { ticket })?,
            Err(Status::Resource) => {}
            other => return Err(format!("the holder: {other:?}")),
        }
    }
    // The table is for others too.
    let (mut other, theirs) = Frames::with_file(&attack.url, "another file")?;
    granted(&mut other, theirs, whole(0))?;
    attack.ask("serve")
}
