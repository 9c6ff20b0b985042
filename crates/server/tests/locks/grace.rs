//! Restarts: who had locks may reclaim them before others lock.

use super::*;

fn complete(world: &mut World, who: Who) {
    assert_eq!(world.one(who, Operation::ReclaimComplete), Ok(Outcome::Done));
}

/// A and B with new sessions and the file open.
fn back(world: &mut World, who: [Who; 2]) -> [StateId; 2] {
    let mut states = [StateId::NONE; 2];
    for (uid, who) in who.into_iter().enumerate() {
        let reply = world.create(who, uid as u32);
        assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
        states[uid] = world.open(who, "file", true, true);
    }
    states
}

#[test]
fn who_had_locks_reclaims_them_and_others_wait_for_that() {
    for orderly in [false, true] {
        let mut world = World::new(20, 2);
        let (a, b) = (world.client(1, 0), world.client(2, 1));
        let (file, other) = (world.open(a, "file", true, true), world.open(b, "b", true, true));
        assert_eq!(world.one(a, lock(file, true)), GRANTED);
        assert_eq!(world.one(b, lock(other, true)), GRANTED);
        if orderly {
            world.stop();
        } else {
            world.crash();
        }
        world.start(2);
        let states = back(&mut world, [a, b]);
        let other = world.open(b, "b", true, true);
        let tried = ticket(world.one(b, lock(states[1], false)));
        let c = world.client(3, 2);
        let theirs = world.open(c, "file", true, true);
        let waits = ticket(world.one(c, lock(theirs, true)));
        assert_eq!(world.one(c, reclaim(theirs)), Err(Status::NoGrace), "it had none");
        assert_eq!(world.one(a, reclaim(states[0])), GRANTED);
        assert_eq!(world.one(b, reclaim(states[1])), Err(Status::Again), "it did not have that");
        assert_eq!(world.one(b, reclaim(other)), GRANTED);
        complete(&mut world, a);
        complete(&mut world, c);
        assert_eq!(world.callbacks(b), [], "B is missing");
        complete(&mut world, b);
        assert_eq!(world.taken(b), (tried, Err(Status::Again)));
        assert_eq!(world.one(a, reclaim(states[0])), Err(Status::NoGrace));
        assert_eq!(world.callbacks(c), []);
        assert_eq!(world.one(a, unlock(states[0])), Ok(Outcome::Done));
        assert_eq!(world.taken(c), (waits, Ok(())));
    }
}

#[test]
fn the_grace_period_ends_after_a_lease_and_who_came_late_has_lost() {
    let mut world = World::new(21, 1);
    let ([a, b], ..) = pair(&mut world);
    world.crash();
    world.start(1);
    let states = back(&mut world, [a, b]);
    let waits = ticket(world.one(b, lock(states[1], true)));
    complete(&mut world, b);
    world.live_for(&[a, b], LEASE / 2);
    assert_eq!(world.callbacks(b), []);
    world.live_for(&[a, b], LEASE);
    assert_eq!(world.taken(b), (waits, Ok(())));
    assert_eq!(world.one(a, reclaim(states[0])), Err(Status::NoGrace));
    // Also the next server knows that A has nothing to reclaim.
    world.crash();
    world.start(1);
    let states = back(&mut world, [a, b]);
    assert_eq!(world.one(a, reclaim(states[0])), Err(Status::NoGrace));
    assert_eq!(world.one(b, reclaim(states[1])), GRANTED);
}

#[test]
fn there_is_no_grace_period_after_sessions_that_ended() {
    for dies in [false, true] {
        let mut world = World::new(22, 2);
        let a = world.client(1, 0);
        let file = world.open(a, "file", true, true);
        assert_eq!(world.one(a, lock(file, true)), GRANTED);
        if dies {
            world.cut(a);
            world.run_for(LEASE * 2);
        } else {
            world.destroy(a);
            world.run_for(LEASE / 10);
        }
        world.crash();
        world.start(2);
        let b = world.client(2, 1);
        let theirs = world.open(b, "file", true, true);
        assert_eq!(world.one(b, lock(theirs, false)), GRANTED);
        let reply = world.create(a, 0);
        assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
        let file = world.open(a, "file", true, true);
        assert_eq!(world.one(a, reclaim(file)), Err(Status::NoGrace));
    }
}

#[test]
fn files_are_served_in_the_grace_period() {
    let mut world = World::new(23, 1);
    let ([a, b], ..) = pair(&mut world);
    world.crash();
    world.start(1);
    let states = back(&mut world, [a, b]);
    let extents = ExtentList::one(0, 10);
    let read = Operation::Read { state: states[1], extents };
    assert_eq!(world.one(b, read), Ok(Outcome::Read { bytes: 0, end_of_file: true }));
    let free = Operation::LockTest { state: states[1], lock: request(LockKind::Posix, 0, 0, true) };
    assert_eq!(world.one(b, free.clone()), Err(Status::Grace), "it may be reclaimed yet");
    assert_eq!(world.one(a, reclaim(states[0])), GRANTED);
    assert!(matches!(world.one(b, free), Ok(Outcome::Conflict { held: Some(_) })));
}

#[test]
fn only_the_same_user_reclaims() {
    let mut world = World::new(24, 1);
    let ([a, _], ..) = pair(&mut world);
    world.crash();
    world.start(1);
    let reply = world.create(a, 9);
    assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
    let file = world.open(a, "file", true, true);
    assert_eq!(world.one(a, reclaim(file)), Err(Status::NoGrace));
}
