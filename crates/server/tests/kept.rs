//! What a server keeps of requests that were answered, for as long as their session lives.

#[path = "locks/world.rs"]
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use dafs_protocol::*;
use world::{Who, World};

/// Bytes that are allocated.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);

struct Counting;

fn count(bytes: usize, sign: i64) {
    ALLOCATED.fetch_add(sign * i64::try_from(bytes).unwrap_or(0), Relaxed);
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(bytes, 1);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLOTS: u16 = 64;
const SESSIONS: u8 = 8;

/// Each slot of each session is used for this chain and then for that one: by how many bytes for
/// each session the second takes more. Both ends are in this process.
fn kept_more(
    first: &[Operation<'_>],
    second: impl Fn(FileHandle) -> Vec<Operation<'static>>,
) -> i64 {
    let mut world = World::new(1, 1);
    let clients: Vec<Who> = (1..=SESSIONS).map(|number| world.client(number, 0)).collect();
    let root = world.root(clients[0]);
    let second = second(root);
    let mut use_all = |chain: &[Operation<'_>]| {
        for client in &clients {
            for slot in 0..SLOTS {
                let tag = world.send(*client, slot, chain);
                let results = world.results(*client, tag).expect("begun");
                assert!(results.len() == chain.len() && results.iter().all(Result::is_ok));
            }
        }
        ALLOCATED.load(Relaxed)
    };
    // What queues and buffers grow to is not what is looked for.
    use_all(&second);
    let before = use_all(first);
    (use_all(&second) - before) / i64::from(SESSIONS)
}

/// One test: the process has one counter.
#[test]
fn what_is_kept_of_answered_requests_has_a_bound() {
    let nothing = kept_more(&[Operation::Null], |_| vec![Operation::Null; CHAIN_MAX]);
    println!("{nothing} bytes for each session of chains without changes");
    assert!(nothing < 1024, "{nothing} bytes for each session are kept of what is done again");
    let change = |handle| Operation::SetAttr { handle, state: StateId(0), set: SetAttr::default() };
    let changes = kept_more(&[Operation::Null], |root| vec![change(root); CHAIN_MAX]);
    println!("{changes} bytes for each session of chains of changes");
    // docs/sizing.md.
    let each = changes / i64::from(SLOTS) / CHAIN_MAX as i64;
    assert!((1..=192).contains(&each), "{each} bytes for each change");
}
