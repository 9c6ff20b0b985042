//! In steady state a read through a group allocates one thing: the list of results of its reply.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use dafs_client::{Call, OpenOptions, SessionOptions};
use dafs_fabric::Buffer;
use dafs_protocol::WaitMode;
use threaded::Server;

#[path = "core/fake.rs"]
mod fake;
#[path = "core/threaded.rs"]
mod threaded;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends has no counters any more.
    let on = COUNTING.try_with(Cell::get).unwrap_or(false);
    if on {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    }
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reads_of_a_group_allocate_only_their_results() {
    const ROUNDS: u64 = 200;
    let server = Server::start();
    let options = SessionOptions { wait: WaitMode::Sleeping, ..SessionOptions::default() };
    let session = server.connect(options);
    let write = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let file = session.open(b"f", write).expect("open");
    file.write_at(&[1; 4096], 0).expect("write");
    let group = session.group();
    let mut buffer = Some(Buffer::new(4096).expect("buffer"));
    let mut done = Vec::new();
    for round in 0..ROUNDS * 2 {
        COUNTING.set(round >= ROUNDS);
        let buffer_now = buffer.take().expect("came back");
        let call = Call::Read { file: file.clone(), offset: 0, buffer: buffer_now, len: 4096 };
        assert!(group.submit(round, call).is_ok());
        group.wait_into(&mut done, 1, None);
        COUNTING.set(false);
        let last = done.pop().expect("one");
        assert_eq!(last.bytes().expect("read"), 4096);
        buffer = last.buffer;
    }
    let per_read = ALLOCATIONS.get() as f64 / ROUNDS as f64;
    assert!(per_read < 1.1, "{per_read} allocations for each read");
}
