//! Locks and callbacks, as they are on the wire.

mod grace;
mod world;

use dafs_protocol::*;
use dafs_server::Limits;
use world::{LEASE, Who, World};

fn request(kind: LockKind, first: u64, last: u64, exclusive: bool) -> LockRequest {
    let range = LockRange::new(first, last).expect("in order");
    LockRequest { owner: OwnerKey { kind, number: 1 }, range, exclusive, pid: 42 }
}

const OWNER: OwnerKey = OwnerKey { kind: LockKind::Posix, number: 1 };

/// All bytes, exclusive.
fn lock(state: StateId, wait: bool) -> Operation<'static> {
    let lock = request(LockKind::Posix, 0, u64::MAX, true);
    Operation::Lock { state, lock, wait, reclaim: false }
}

fn reclaim(state: StateId) -> Operation<'static> {
    let lock = request(LockKind::Posix, 0, u64::MAX, true);
    Operation::Lock { state, lock, wait: false, reclaim: true }
}

fn unlock(state: StateId) -> Operation<'static> {
    Operation::Unlock { state, owner: OWNER, range: LockRange::ALL }
}

const GRANTED: OpResult = Ok(Outcome::Lock(Locked::Granted));

fn ticket(result: OpResult) -> LockTicket {
    match result {
        Ok(Outcome::Lock(Locked::Waiting(ticket))) => ticket,
        other => panic!("it does not wait: {other:?}"),
    }
}

/// A holds a lock for which B waits; each on its own worker.
fn pair(world: &mut World) -> ([Who; 2], [StateId; 2], LockTicket) {
    let who = [world.client(1, 0), world.client(2, 1)];
    let states = who.map(|who| world.open(who, "file", true, true));
    assert_eq!(world.one(who[0], lock(states[0], true)), GRANTED);
    assert_eq!(world.one(who[1], lock(states[1], false)), Err(Status::Again));
    let ticket = ticket(world.one(who[1], lock(states[1], true)));
    (who, states, ticket)
}

#[test]
fn a_grant_is_told_and_refers_to_its_request() {
    let mut world = World::new(1, 2);
    let ([a, b], states, ticket) = pair(&mut world);
    assert_eq!(world.callbacks(b), []);
    assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
    let (id, callback) = world.callback(b);
    assert_eq!(callback.what, Callback::Lock { ticket, result: Ok(()) });
    // GET_ROOT, OPEN, LOCK, LOCK were sent on slot 0.
    assert_eq!((callback.sequence, callback.referring), (1, Some((SlotId(0), 4))));
    world.confirm(b, id, &callback, Ok(()));
    assert_eq!(world.one(a, lock(states[0], false)), Err(Status::Again));
    let test = Operation::LockTest { state: states[0], lock: request(LockKind::Ofd, 5, 5, false) };
    let held = Some((request(LockKind::Posix, 0, u64::MAX, true), false));
    assert_eq!(world.one(a, test), Ok(Outcome::Conflict { held }));
    assert_eq!(world.callbacks(b), []);
    assert_eq!(world.disconnects(b), 0);
}

#[test]
fn a_callback_is_sent_again_after_each_break_until_it_is_answered() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        let ([a, b], states, _) = pair(&mut world);
        assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
        let (_, first) = world.callback(b);
        for _ in 0..3 {
            world.cut(b);
            world.bind(b, 1);
            assert_eq!(world.callback(b).1, first);
            assert_eq!(world.one(a, Operation::Null), Ok(Outcome::Done));
        }
        world.cut(b);
        world.bind(b, 1);
        let (id, again) = world.callback(b);
        world.confirm(b, id, &again, Ok(()));
        world.run_for(LEASE / 10);
        world.cut(b);
        world.bind(b, 1);
        assert_eq!(world.callbacks(b), []);
        assert_eq!(world.one(a, lock(states[0], false)), Err(Status::Again), "B holds it");
    }
}

#[test]
fn a_resent_lock_waits_once() {
    let mut world = World::new(3, 1);
    let ([a, b], states, first) = pair(&mut world);
    world.cut(b);
    world.bind(b, 1);
    let tag = world.resend(b, 0, &[lock(states[1], true)]);
    assert_eq!(ticket(world.results(b, tag).expect("ran").remove(0)), first);
    assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
    assert_eq!(world.taken(b), (first, Ok(())));
    assert_eq!(world.one(b, unlock(states[1])), Ok(Outcome::Done));
    assert_eq!(world.one(a, lock(states[0], false)), GRANTED, "nobody waits any more");
}

#[test]
fn callbacks_without_a_slot_wait_for_answers() {
    let mut world = World::new(4, 1);
    let (a, b) = (world.client(1, 0), world.client(2, 1));
    let (mine, theirs) = (world.open(a, "file", true, true), world.open(b, "file", true, true));
    assert_eq!(world.one(a, lock(mine, true)), GRANTED);
    let at = |n: u64| request(LockKind::Posix, n, n, true);
    let mut tickets = Vec::new();
    for n in 0..6 {
        let wish = Operation::Lock { state: theirs, lock: at(n), wait: true, reclaim: false };
        tickets.push(ticket(world.one(b, wish)));
    }
    assert_eq!(world.one(a, unlock(mine)), Ok(Outcome::Done));
    let first = world.callbacks(b);
    assert_eq!(first.len(), usize::from(CALLBACK_SLOTS));
    // Others are served meanwhile, as B is.
    assert_eq!(world.one(b, unlock(theirs)), Ok(Outcome::Done));
    assert_eq!(world.one(a, lock(mine, false)), GRANTED);
    let mut told = Vec::new();
    for (id, callback) in first {
        world.confirm(b, id, &callback, Ok(()));
        told.push(callback);
    }
    for (id, callback) in world.callbacks(b) {
        assert_eq!(callback.sequence, 2);
        world.confirm(b, id, &callback, Ok(()));
        told.push(callback);
    }
    let expected: Vec<_> =
        tickets.iter().map(|&ticket| Callback::Lock { ticket, result: Ok(()) }).collect();
    assert_eq!(told.iter().map(|callback| callback.what).collect::<Vec<_>>(), expected);
}

#[test]
fn a_grant_that_the_client_does_not_know_goes_to_the_next() {
    let mut world = World::new(5, 2);
    let ([a, b], states, _) = pair(&mut world);
    let c = world.client(3, 2);
    let other = world.open(c, "file", true, true);
    let next = ticket(world.one(c, lock(other, true)));
    assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
    let (id, callback) = world.callback(b);
    world.confirm(b, id, &callback, Err(Status::NoEnt));
    assert_eq!(world.taken(c), (next, Ok(())));
    assert_eq!(world.disconnects(b), 0);
}

#[test]
fn an_answer_that_was_not_asked_for_ends_the_connection() {
    let wrong: [fn(&mut CallbackReply); 3] = [
        |reply| reply.sequence += 1,
        |reply| reply.slot = SlotId(1),
        |reply| reply.result = Err(Status::Io),
    ];
    for spoil in wrong {
        let mut world = World::new(6, 1);
        let ([a, b], states, _) = pair(&mut world);
        assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
        let (id, CallbackRequest { slot, sequence, .. }) = world.callback(b);
        let mut reply = CallbackReply { slot, sequence, result: Ok(()) };
        spoil(&mut reply);
        world.answer(b, id, &reply);
        world.run_for(LEASE / 10);
        assert_eq!(world.disconnects(b), 1);
        // Its session lives, and is asked again.
        world.bind(b, 1);
        assert_eq!(world.taken(b).1, Ok(()));
    }
}

#[test]
fn locks_end_with_the_session_and_with_the_lease() {
    for dies in [false, true] {
        let mut world = World::new(7, 2);
        let ([a, b], _, ticket) = pair(&mut world);
        if dies {
            world.cut(a);
            world.live_for(&[b], LEASE / 2);
            assert_eq!(world.callbacks(b), [], "the lease runs");
            world.live_for(&[b], LEASE);
        } else {
            world.destroy(a);
        }
        assert_eq!(world.taken(b), (ticket, Ok(())));
        assert_eq!(world.sessions(), 1);
    }
}

#[test]
fn waits_end_by_cancel_and_by_release() {
    let mut world = World::new(8, 2);
    let ([a, b], states, first) = pair(&mut world);
    let cancel = |ticket| Operation::LockCancel { ticket };
    assert_eq!(world.one(a, cancel(first)), Err(Status::NoEnt), "it is not its ticket");
    assert_eq!(world.one(b, cancel(first)), Ok(Outcome::Done));
    assert_eq!(world.one(b, cancel(first)), Err(Status::NoEnt));
    let second = ticket(world.one(b, lock(states[1], true)));
    assert_eq!(world.one(b, Operation::OwnerRelease { owner: OWNER }), Ok(Outcome::Done));
    assert_eq!(world.taken(b), (second, Err(Status::Intr)));
    // The name of an owner means nothing in another session.
    assert_eq!(world.one(b, lock(states[1], false)), Err(Status::Again));
    assert_eq!(world.one(a, Operation::OwnerRelease { owner: OWNER }), Ok(Outcome::Done));
    assert_eq!(world.callbacks(b), []);
    assert_eq!(world.one(b, lock(states[1], false)), GRANTED);
}

#[test]
fn a_lock_needs_an_open_of_its_kind() {
    let mut world = World::new(9, 1);
    let a = world.client(1, 0);
    let (reads, writes) = (world.open(a, "file", true, false), world.open(a, "file", false, true));
    for kind in [LockKind::Posix, LockKind::Ofd, LockKind::Whole] {
        for (state, exclusive) in [(reads, false), (reads, true), (writes, false), (writes, true)] {
            let lock = request(kind, 0, u64::MAX, exclusive);
            let result = world.one(a, Operation::Lock { state, lock, wait: false, reclaim: false });
            let may = kind == LockKind::Whole || exclusive == (state == writes);
            assert_eq!(result, if may { GRANTED } else { Err(Status::BadF) }, "{kind:?}");
            let owner = lock.owner;
            assert_eq!(world.one(a, Operation::OwnerRelease { owner }), Ok(Outcome::Done));
        }
    }
    let gone = world.one(a, lock(StateId(99), false));
    assert_eq!(gone, Err(Status::BadStateId));
}

#[test]
fn locks_end_with_the_opens_they_were_taken_through() {
    let mut world = World::new(10, 2);
    let (a, b) = (world.client(1, 0), world.client(2, 1));
    let [one, two] = [0; 2].map(|_| world.open(a, "file", true, true));
    let theirs = world.open(b, "file", true, true);
    let whole = request(LockKind::Whole, 0, u64::MAX, true);
    let ofd = request(LockKind::Ofd, 0, 9, true);
    let posix = request(LockKind::Posix, 10, 19, true);
    for lock in [whole, ofd, posix] {
        let taken = Operation::Lock { state: one, lock, wait: false, reclaim: false };
        assert_eq!(world.one(a, taken), GRANTED);
    }
    let again = Operation::Lock { state: two, lock: ofd, wait: false, reclaim: false };
    assert_eq!(world.one(a, again), GRANTED);
    let is_free =
        |world: &mut World, lock| match world.one(b, Operation::LockTest { state: theirs, lock }) {
            Ok(Outcome::Conflict { held }) => held.is_none(),
            other => panic!("{other:?}"),
        };
    let free = |world: &mut World| [whole, ofd, posix].map(|lock| is_free(world, lock));
    assert_eq!(free(&mut world), [false, false, false]);
    assert!(world.one(a, Operation::Close { state: one }).is_ok());
    assert_eq!(free(&mut world), [true, false, false], "the other open was used for the second");
    assert!(world.one(a, Operation::Close { state: two }).is_ok());
    assert_eq!(free(&mut world), [true, true, true]);
}

#[test]
fn a_new_session_of_a_client_ends_its_older_one() {
    for workers in [1, 2] {
        let mut world = World::new(11, workers);
        let ([a, _], states, ticket) = pair(&mut world);
        // Of another worker where there are two, but of the same user.
        let thief = world.stranger(1);
        match world.create(thief, 5) {
            SetupReply::Refused { status, .. } => assert_eq!(status, Status::NotAuthorized),
            other => panic!("another user: {other:?}"),
        }
        assert_eq!(world.sessions(), 2);
        let again = world.stranger(2);
        let reply = world.create(again, 1);
        assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
        assert_eq!(world.sessions(), 2);
        assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
        let mine = world.open(again, "file", true, true);
        assert_eq!(world.one(again, lock(mine, false)), GRANTED, "nobody waits: {ticket:?}");
        assert_eq!(world.callbacks(again), []);
    }
}

#[test]
fn an_older_session_on_another_worker_ends_before_the_new_one_is_answered() {
    let mut world = World::new(12, 2);
    let ([_, b], _, ticket) = pair(&mut world);
    world.place = Some(1);
    let again = world.stranger(1);
    let reply = world.create(again, 0);
    world.place = None;
    assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
    assert_eq!(world.sessions(), 2);
    assert_eq!(world.taken(b), (ticket, Ok(())));
}

#[test]
fn limits_hold() {
    let limits = Limits {
        lease_seconds: LEASE.as_secs() as u32,
        lock_waits_per_session: 3,
        locks_per_session: 10,
        lock_clients: 2,
        ..Limits::default()
    };
    let mut world = World::with(13, 1, limits);
    let (a, b) = (world.client(1, 0), world.client(2, 1));
    let (mine, theirs) = (world.open(a, "file", true, true), world.open(b, "file", true, true));
    let at = |state, n: u64, wait| {
        let lock = request(LockKind::Posix, n, n, true);
        Operation::Lock { state, lock, wait, reclaim: false }
    };
    let taken = (0..20).filter(|n| world.one(a, at(mine, n * 2, false)) == GRANTED).count();
    assert!((5..=10).contains(&taken), "{taken}");
    for n in 0..6 {
        let result = world.one(b, at(theirs, 0, true));
        assert_eq!(result == Err(Status::Resource), n >= 3, "{result:?}");
    }
    let c = world.client(3, 2);
    let other = world.open(c, "file", true, true);
    assert_eq!(world.one(c, at(other, 101, false)), Err(Status::Resource), "clients");
    world.destroy(a);
    assert_eq!(world.one(c, at(other, 101, false)), GRANTED);
}
