//! Reads that wait for one page of the store, and what may happen to them meanwhile.

#[path = "locks/world.rs"]
mod world;

use std::time::Duration;

use dafs_protocol::*;
use dafs_store::memory::FaultKind;
use world::{LEASE, MEMORY, Who, World};

/// In a large file, where a read is not sequential.
const AT: u64 = 40 * MEMORY as u64;
const SIZE: u64 = 1 << 20;
/// What clients' memory has before something comes.
const NOTHING: u8 = 0xee;

fn read(state: StateId, offset: u64) -> Operation<'static> {
    Operation::Read { state, extents: ExtentList::one(offset, MEMORY as u32) }
}

fn write(state: StateId, offset: u64, bytes: u32) -> Operation<'static> {
    let extents = ExtentList::one(offset, bytes);
    Operation::Write { state, extents, stability: Stability::Unstable, within: false }
}

fn got(bytes: u32, end_of_file: bool) -> Result<Vec<OpResult>, Status> {
    Ok(vec![Ok(Outcome::Read { bytes, end_of_file })])
}

/// A server, a client, and its file of zeros, of which the last page is cached; the store holds its calls.
fn cold() -> (World, Who, StateId) {
    let mut world = World::holding(5);
    let who = world.client(1, 0);
    let state = world.open(who, "file", true, true);
    let tag = world.send_with(who, 0, &write(state, SIZE - 1, 1), (0, 1));
    assert!(world.results(who, tag).expect("begun")[0].is_ok());
    let commit = Operation::Commit { state, offset: 0, len: 0, level: CommitLevel::Data };
    assert!(world.one(who, commit).is_ok());
    world.hold();
    (world, who, state)
}

/// One that waits for the store.
fn begun(world: &mut World, who: Who, slot: u16, state: StateId, offset: u64) -> u32 {
    let before = world.calls();
    let tag = world.send_with(who, slot, &read(state, offset), (NOTHING, 0));
    world.run_until("a call of the store", |world| world.calls() > before);
    tag
}

fn fills(world: &World) -> u64 {
    world.shared().unifier().stats().fills
}

#[test]
fn its_page_is_replied_when_it_comes() {
    let (mut world, who, state) = cold();
    let tag = begun(&mut world, who, 1, state, AT);
    assert_eq!((world.running(), world.has_reply(who, tag)), (1, false));
    world.complete_one();
    assert_eq!(world.results(who, tag), got(MEMORY as u32, false));
    assert_eq!((world.memory(who, 1), world.running()), (vec![0; MEMORY], 0));
    let again = world.send_with(who, 1, &read(state, AT), (NOTHING, 0));
    assert_eq!(world.results(who, again), got(MEMORY as u32, false));
    assert_eq!(world.calls(), 0, "it is cached");
}

#[test]
fn two_clients_that_ask_for_one_page_get_it_by_one_call() {
    let (mut world, first, state) = cold();
    world.release();
    let second = world.client(2, 0);
    let other = world.open(second, "file", true, false);
    world.hold();
    let before = fills(&world);
    let tag = begun(&mut world, first, 1, state, AT);
    let later = world.send_with(second, 1, &read(other, AT), (NOTHING, 0));
    world.run_until("the second begins", |world| world.running() == 2);
    world.complete_one();
    assert_eq!(world.results(first, tag), got(MEMORY as u32, false));
    assert_eq!(world.results(second, later), got(MEMORY as u32, false));
    assert_eq!(world.memory(second, 1), vec![0; MEMORY]);
    assert_eq!((fills(&world) - before, world.running()), (1, 0));
}

#[test]
fn what_is_written_meanwhile_is_what_it_reads() {
    let (mut world, who, state) = cold();
    let tag = begun(&mut world, who, 1, state, AT);
    let written = world.send_with(who, 2, &write(state, AT, MEMORY as u32), (7, MEMORY));
    assert!(world.results(who, written).expect("begun")[0].is_ok());
    assert!(!world.has_reply(who, tag));
    world.complete_one();
    assert_eq!(world.results(who, tag), got(MEMORY as u32, false));
    assert_eq!(world.memory(who, 1), vec![7; MEMORY]);
}

#[test]
fn a_file_that_is_cut_meanwhile_is_read_as_it_was() {
    let (mut world, who, state) = cold();
    let root = {
        world.release();
        let root = world.root(who);
        world.hold();
        root
    };
    let tag = begun(&mut world, who, 1, state, AT);
    let found = [
        Operation::Lookup { dir: root, path: b"file", no_follow: false },
        Operation::SetAttr {
            handle: FileHandle::PREVIOUS,
            state: StateId(0),
            set: SetAttr { size: Some(1), ..SetAttr::default() },
        },
    ];
    let cut = world.send(who, 2, &found);
    world.complete_one();
    assert_eq!(world.results(who, tag), got(MEMORY as u32, false));
    assert_eq!(world.memory(who, 1), vec![0; MEMORY]);
    world.release();
    assert!(world.results(who, cut).expect("begun").iter().all(Result::is_ok));
    let after = world.send_with(who, 1, &read(state, AT), (NOTHING, 0));
    assert_eq!(world.results(who, after), got(0, true));
}

#[test]
fn what_the_store_cannot_read_is_said() {
    let (mut world, who, state) = cold();
    world.store.inject(FaultKind::Read, 0, 1, Status::Io);
    let tag = begun(&mut world, who, 1, state, AT);
    world.complete_one();
    assert_eq!(world.results(who, tag), Ok(vec![Err(Status::Io)]));
    assert_eq!((world.running(), world.calls()), (0, 0), "it is asked for once");
    let again = begun(&mut world, who, 1, state, AT);
    world.complete_one();
    assert_eq!(world.results(who, again), got(MEMORY as u32, false));
}

#[test]
fn the_reply_goes_where_it_was_asked_for_last() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.cut(who);
    world.bind(who, 0);
    let tag = world.resend_with(who, 1, &read(state, AT), (NOTHING, 0));
    world.run_for(Duration::from_millis(50));
    assert_eq!((world.calls(), world.running()), (1, 1), "it runs once");
    world.complete_one();
    assert_eq!(world.results(who, tag), got(MEMORY as u32, false));
    assert_eq!(world.memory(who, 1), vec![0; MEMORY]);
}

#[test]
fn a_reply_that_nobody_waits_for_is_made_again() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.cut(who);
    world.complete_one();
    world.run_until("its end", |world| world.running() == 0);
    world.bind(who, 0);
    let tag = world.resend_with(who, 1, &read(state, AT), (NOTHING, 0));
    assert_eq!(world.results(who, tag), got(MEMORY as u32, false));
    assert_eq!((world.memory(who, 1), world.calls()), (vec![0; MEMORY], 0));
}

#[test]
fn a_session_that_ends_meanwhile_leaves_nothing() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.destroy(who);
    assert_eq!((world.sessions(), world.calls()), (0, 1));
    world.release();
    world.run_until("its end", |world| world.running() == 0);
    assert_eq!(world.shared().unifier().stats().orphan_bytes, 0);
    // What it took is there for others.
    let other = world.client(2, 0);
    let state = world.open(other, "file", true, false);
    let tag = world.send_with(other, 1, &read(state, AT), (NOTHING, 0));
    assert_eq!(world.results(other, tag), got(MEMORY as u32, false));
}

#[test]
fn a_lease_that_ends_meanwhile_waits_for_it() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.run_for(3 * LEASE);
    assert_eq!((world.sessions(), world.calls()), (1, 1), "its request runs");
    world.release();
    world.run_for(2 * LEASE);
    assert_eq!((world.sessions(), world.running()), (0, 0));
}

#[test]
fn a_server_that_shuts_down_waits_for_it() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.shut_down();
    world.run_for(Duration::from_millis(500));
    assert_eq!((world.sessions(), world.running()), (1, 2), "it waits, and its session does");
    world.release();
    // Not as long as it waits for a disk that does not answer.
    world.run_for(Duration::from_millis(500));
    assert_eq!((world.sessions(), world.running()), (0, 0));
}

#[test]
fn a_disk_that_does_not_answer_holds_up_no_shut_down() {
    let (mut world, who, state) = cold();
    begun(&mut world, who, 1, state, AT);
    world.shut_down();
    world.run_until("the end of the session", |world| world.sessions() == 0);
    assert!(world.running() > 0, "the page is still to come");
    world.release();
    world.run_until("the end of all", |world| world.running() == 0);
}
