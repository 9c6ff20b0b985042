//! Of each limit of the server one user has a part only.

#[path = "locks/world.rs"]
mod world;

use dafs_protocol::*;
use dafs_server::Limits;
use world::World;

fn is_refused(reply: &SetupReply) -> bool {
    matches!(reply, SetupReply::Refused { status: Status::Resource, .. })
}

#[test]
fn sessions_of_a_user_are_counted_over_all_workers() {
    let limits = Limits { sessions: 8, sessions_per_user: 2, ..Limits::default() };
    let mut world = World::with(1, 2, limits);
    let mut create = |name: u8, uid: u32, worker: usize| {
        let who = world.stranger(name);
        world.place = Some(worker);
        let reply = world.create(who, uid);
        (who, is_refused(&reply))
    };
    let (first, refused) = create(1, 7, 0);
    assert!(!refused && !create(2, 7, 1).1);
    assert!(create(3, 7, 0).1 && create(4, 7, 1).1, "on no worker");
    assert!(!create(5, 8, 0).1, "another user");
    assert!((6..11).all(|name| !create(name, 0, 0).1), "root may have all");
    assert!(create(11, 9, 1).1, "none is left");
    world.destroy(first);
    let who = world.stranger(12);
    assert!(!is_refused(&world.create(who, 7)));
}

#[test]
fn sessions_of_a_user_are_a_quarter_at_most() {
    let mut world = World::with(1, 1, Limits { sessions: 8, ..Limits::default() });
    let mut create = |name: u8, uid: u32| {
        let who = world.stranger(name);
        !is_refused(&world.create(who, uid))
    };
    assert_eq!([1, 2, 3].map(|name| create(name, 7)), [true, true, false]);
    assert!(create(4, 8), "another user");
    assert!((5..10).all(|name| create(name, 0)), "root may have all");
}

#[test]
fn a_session_goes_on_when_the_groups_of_its_user_have_changed() {
    let mut world = World::new(5, 1);
    world.groups = vec![1, 2];
    let who = world.client(1, 7);
    let root = world.root(who);
    for groups in [vec![3], Vec::new()] {
        world.groups = groups;
        world.cut(who);
        world.bind(who, 7);
        assert_eq!(world.root(who), root);
    }
    world.cut(who);
    assert!(world.is_bind_refused(who, 8), "another user");
}

#[test]
fn opens_of_a_user_are_a_quarter() {
    let mut world = World::with(2, 1, Limits { opens: 8, ..Limits::default() });
    let (user, other, root) = (world.client(1, 7), world.client(2, 8), world.client(3, 0));
    let mut opens = |who, most: usize| {
        let made = (0..10).take_while(|_| world.try_open(who, "file").is_ok()).count();
        assert_eq!(made, most);
    };
    opens(user, 2);
    opens(other, 2);
    opens(root, 4);
}

#[test]
fn clients_with_locks_of_a_user_are_a_quarter() {
    let mut world = World::with(3, 1, Limits { lock_clients: 8, ..Limits::default() });
    let mut locks = |name: u8, uid: u32| {
        let who = world.client(name, uid);
        let state = world.open(who, "file", true, true);
        let owner = OwnerKey { kind: LockKind::Posix, number: 1 };
        let lock = LockRequest { owner, range: LockRange::ALL, exclusive: false, pid: 1 };
        world.one(who, Operation::Lock { state, lock, wait: false, reclaim: false }).is_ok()
    };
    assert_eq!([1, 2, 3].map(|name| locks(name, 7)), [true, true, false]);
    assert!(locks(4, 8) && locks(5, 0));
}

#[test]
fn a_worker_polls_for_those_only_who_may() {
    let granted = |polled: bool, uid: u32| {
        let mut world = World::with(4, 1, Limits { polled, ..Limits::default() });
        world.wait = WaitMode::Polled;
        let who = world.stranger(1);
        match world.create(who, uid) {
            SetupReply::Ready { attr, .. } => attr.wait,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([granted(false, 0), granted(true, 7)], [WaitMode::Polled; 2]);
    assert_eq!(granted(false, 7), WaitMode::Adaptive);
}
