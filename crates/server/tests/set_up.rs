//! Connections that are not part of a session.

#[path = "locks/world.rs"]
mod world;

use std::time::Duration;

use dafs_protocol::{
    ClientId, Features, Operation, Outcome, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST, Purpose,
    SessionAttr, SetupReply, SetupRequest, SizeClass, Status, WaitMode,
};
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

fn hello_of(newest: u32, oldest_spoken: u32) -> SetupRequest {
    let attr = SessionAttr {
        slots: 1,
        data_bytes_max: 1 << 20,
        inline_bytes: 512,
        wait: WaitMode::Adaptive,
        lease_ms: 0,
        tagged: true,
        rdma_read: true,
        read_ahead: true,
    };
    let purpose = Purpose::Create { attr, client: ClientId([1; 16]) };
    let mut hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
    if let SetupRequest::Hello { version, oldest, features, .. } = &mut hello {
        (*version, *oldest, *features) = (newest, oldest_spoken, Features(u64::MAX));
    }
    hello
}

/// A client that says this is answered, after `change` of its bytes.
fn answer(hello: &SetupRequest, change: impl FnOnce(&mut Vec<u8>)) -> SetupReply {
    let mut world = World::with(1, 1, Limits::default());
    let who = world.stranger(1);
    world.connect(who, 7);
    world.say(who, hello, change)
}

#[test]
fn a_newer_client_is_spoken_to_as_it_can_be() {
    let newer = hello_of(PROTOCOL_VERSION + 3, PROTOCOL_VERSION_OLDEST);
    // An option that this server does not know, and may leave out.
    let reply = answer(&newer, |bytes| bytes.extend_from_slice(&[77, 0, 1, 0, 9]));
    let SetupReply::Ready { version, features, .. } = reply else { panic!("{reply:?}") };
    // This one gives no references that are checked: it is not asked to.
    assert_eq!(features, Features::OURS.without(Features::NAMED_REFERENCES));
    assert_eq!(version, PROTOCOL_VERSION);
}

#[test]
fn versions_without_one_in_common_are_named() {
    let told = |reply| match reply {
        SetupReply::Refused { status: Status::Version, text, .. } => text,
        other => panic!("{other:?}"),
    };
    let (ours, newer) = (PROTOCOL_VERSION, PROTOCOL_VERSION + 2);
    let text = told(answer(&hello_of(newer, ours + 1), |_| {}));
    assert_eq!(text, format!("server speaks protocol {ours}, client {} to {newer}", ours + 1));
    // One of another form, of which nothing but the version can be read: as version 5 began.
    let text = told(answer(&hello_of(5, 5), |bytes| bytes.truncate(60)));
    assert_eq!(text, format!("server speaks protocol {ours}, client 5"));
}

#[test]
fn an_operation_of_another_version_fails_by_itself() {
    let mut world = World::with(1, 1, Limits::default());
    let who = world.client(1, 7);
    let unknown = Operation::Unknown { opcode: 9999, body: b"whatever it says" };
    let chain = [Operation::Null, unknown, Operation::Null];
    let results = world.chain(who, &chain).expect("results");
    assert_eq!(results, [Ok(Outcome::Done), Err(Status::NotSupp)]);
    assert_eq!(world.one(who, Operation::Null), Ok(Outcome::Done));
}

fn wish() -> SessionAttr {
    let SetupRequest::Hello { purpose: Purpose::Create { attr, .. }, .. } = hello_of(6, 6) else {
        panic!("a hello that creates")
    };
    attr
}

/// What a client has given up, and comes late, does not end what came after it.
#[test]
fn a_later_attempt_is_the_one_that_counts() {
    let mut world = World::with(1, 1, Limits::default());
    let who = world.stranger(1);
    let create = Purpose::Create { attr: wish(), client: ClientId([1; 16]) };
    let refused = |reply: &SetupReply| matches!(reply, SetupReply::Refused { status: Status::Delay, text, .. } if text.contains("later"));
    let made = world.attempt(who, 7, 5, create);
    let SetupReply::Ready { session, secret, .. } = made else { panic!("{made:?}") };
    let late = world.attempt(who, 7, 4, create);
    assert!(refused(&late) && world.sessions() == 1, "{late:?}");
    let bind = Purpose::Bind { session, secret };
    let late = world.attempt(who, 7, 3, bind);
    assert!(refused(&late), "{late:?}");
    assert!(matches!(world.attempt(who, 7, 6, bind), SetupReply::Ready { .. }));
    // A client that begins anew takes the place of what it had.
    assert!(matches!(world.attempt(who, 7, 7, create), SetupReply::Ready { .. }));
    assert_eq!(world.sessions(), 1);
}

/// Its client may come by another way, on which it is known as who it is.
#[test]
fn a_session_of_another_user_is_not_called_gone() {
    let mut world = World::with(1, 1, Limits::default());
    let who = world.client(1, 7);
    world.cut(who);
    let reply = world.bind_as(who, 0);
    assert!(
        matches!(reply, SetupReply::Refused { status: Status::NotAuthorized, .. }),
        "{reply:?}"
    );
    world.bind(who, 7);
}

#[test]
fn a_session_has_one_connection_of_a_class() {
    let limits = Limits { connections_unproven: 100, ..Limits::default() };
    let mut world = World::with(1, 1, limits);
    let who = world.client(1, 7);
    assert_eq!(world.binds_at_once(who, 7, 10), 1);
}
