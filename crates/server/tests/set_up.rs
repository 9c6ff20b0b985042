//! Connections that are not part of a session.

#[path = "locks/world.rs"]
mod world;

use std::time::Duration;

use dafs_protocol::{SetupReply, Status};
use dafs_server::Limits;
use world::{Who, World};

const PLACES: usize = 8;

/// A server that sets up few connections at a time, and takes long to end those that are late.
fn world() -> World {
    let limits = Limits { connections_unproven: PLACES, setup_seconds: 1000, ..Limits::default() };
    World::with(1, 1, limits)
}

/// Connects and says nothing.
fn silent(world: &mut World, name: u8, uid: u32) -> Who {
    let who = world.stranger(name);
    world.connect(who, uid);
    who
}

#[test]
fn silent_connections_keep_nobody_out() {
    let mut world = world();
    let crowd: Vec<Who> = (0..2 * PLACES as u8).map(|name| silent(&mut world, name, 7)).collect();
    let slow = silent(&mut world, 100, 8);
    let client = world.client(101, 9);
    let same = world.client(102, 7);
    world.run_for(Duration::from_millis(10));
    let ended = |who: &Who| world.disconnects(*who) == 1;
    assert!(crowd[..PLACES].iter().all(ended), "the oldest made room");
    assert!(!crowd[2 * PLACES - 2..].iter().any(ended));
    assert!(![slow, client, same].iter().any(ended), "others have fewer");
}

#[test]
fn a_refused_connection_takes_no_place_for_long() {
    let mut world = world();
    let client = world.client(1, 7);
    let other = world.stranger(1);
    let reply = world.create(other, 8);
    assert!(matches!(reply, SetupReply::Refused { status: Status::NotAuthorized, .. }));
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.disconnects(other), world.disconnects(client)), (1, 0));
}
