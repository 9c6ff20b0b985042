//! Requests that are sent again: done once, and answered the same.

#[path = "locks/world.rs"]
mod world;

use dafs_protocol::*;
use world::{Who, World};

const ROOT_MODE: u32 = 0o755;

struct Played {
    world: World,
    root: FileHandle,
    client: Who,
    other: Who,
}

/// With a directory and a file in it.
fn played() -> Played {
    let mut world = World::new(5, 1);
    let (client, other) = (world.client(1, 0), world.client(2, 0));
    let root = world.root(client);
    let create = |dir, name, kind| Operation::Create {
        dir,
        name,
        kind,
        mode: ROOT_MODE,
        rdev: 0,
        target_bytes: 0,
    };
    let made = [
        create(root, b"dir", FileKind::Directory),
        create(FileHandle::PREVIOUS, b"name", FileKind::Fifo),
    ];
    world.chain(client, &made).expect("made");
    Played { world, root, client, other }
}

const fn lookup(dir: FileHandle, path: &[u8]) -> Operation<'_> {
    Operation::Lookup { dir, path, no_follow: false }
}

const REMOVE: Operation<'static> =
    Operation::Remove { dir: FileHandle::PREVIOUS, name: b"name", directory: false };

fn rename(dir: FileHandle) -> Operation<'static> {
    let (from, to) = (b"dir", b"elsewhere");
    Operation::Rename {
        from_dir: dir,
        from,
        to_dir: dir,
        to,
        no_replace: false,
        exchange: false,
        whiteout: false,
    }
}

#[test]
fn a_change_by_a_name_that_leads_elsewhere_now_is_answered_as_before() {
    let Played { mut world, root, client, other } = played();
    let chain = [lookup(root, b"dir"), REMOVE];
    let first = world.chain(client, &chain).expect("begun");
    assert!(first.len() == 2 && first.iter().all(Result::is_ok), "{first:?}");
    world.one(other, rename(root)).expect("renamed");
    let tag = world.resend(client, 0, &chain);
    assert_eq!(world.results(client, tag), Ok(first));
}

#[test]
fn what_is_noted_of_a_chain_is_what_its_first_run_did() {
    let Played { mut world, root, client, other } = played();
    let handle = match world.one(client, lookup(root, b"dir")) {
        Ok(Outcome::Found { handle, .. }) => handle,
        other => panic!("{other:?}"),
    };
    // A list is not kept: it is asked for again, and then there is nothing that has one.
    let list = Operation::ListXattr { handle, size_max: 4096 };
    let remove = Operation::Remove { dir: handle, name: b"name", directory: false };
    let chain = [list, remove];
    assert_eq!(world.chain(client, &chain).expect("begun").len(), 2);
    let rmdir = Operation::Remove { dir: root, name: b"dir", directory: true };
    world.one(other, rmdir).expect("removed");
    let tag = world.resend(client, 0, &chain);
    world.results(client, tag).expect("answered");
    let (session, sequence) = (world.session_of(client), world.sequence(client, 0));
    world.crash();
    world.start(1);
    world.create(client, 0);
    let query = Operation::SlotQuery { session, slot: SlotId(0), sequence };
    match world.one(client, query) {
        Ok(Outcome::RequestOutcome(RequestOutcome::Done {
            operations: 2, status: Ok(()), ..
        })) => {}
        other => panic!("another request_outcome: {other:?}"),
    }
}
