//! What a forked child has in place of shared memory.
//!
//! A mapping that peers have too is not the child's: what it stored there would reach them. But its program
//! may have kept the address of a buffer. So a child finds there a view of its own of the same file: the
//! bytes of its parent, whatever becomes of them, until it stores to a page, which then is its own.

use std::cell::RefCell;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::Arena;

/// Arenas that children are to see.
static SHOWN: Mutex<Vec<Place>> = Mutex::new(Vec::new());

thread_local! {
    /// Held from just before a fork until just after it, in both processes.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Place>>>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    start: usize,
    len: usize,
    fd: RawFd,
}

/// Children that are forked while this lives see the arena of which it is.
#[derive(Debug)]
pub(super) struct Shown(Option<Place>);

fn places() -> MutexGuard<'static, Vec<Place>> {
    // Nothing panics while it is held.
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shown {
    /// For a shared arena, which must outlive it; other ones children have anyway.
    pub(super) fn new(arena: &Arena) -> Shown {
        static ONCE: Once = Once::new();
        // SAFETY: the functions are there as long as what calls them.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
        });
        let place = arena.file.as_ref().map(|file| Place {
            start: arena.base.addr().get(),
            len: arena.len,
            fd: file.as_fd().as_raw_fd(),
        });
        places().extend(place);
        Shown(place)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            places().retain(|other| *other != place);
        }
    }
}

extern "C" fn before() {
    // A thread that ends has nothing to hold it by, and its child sees nothing.
    let _ = HELD.try_with(|held| held.replace(Some(places())));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn in_child() {
    let held = HELD.try_with(RefCell::take);
    let places = held.ok().flatten();
    places.iter().flat_map(|places| places.iter()).for_each(show);
}

/// In the child: no lock, no allocation.
fn show(place: &Place) {
    let start = std::ptr::without_provenance_mut::<c_void>(place.start);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // Where it has mapped something else meanwhile, that stays.
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    // SAFETY: replaces nothing; addresses at which the parent has the same memory.
    unsafe { libc::mmap(start, place.len, prot, flags, place.fd, 0) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{SharedPool, copied};

    const FORKS: usize = 400;

    /// What a forked child answers, which is below 100.
    fn in_child(body: impl FnOnce() -> u8) -> i32 {
        // SAFETY: the child makes no call that another thread's lock could hold up, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends here.
            unsafe { libc::_exit(body().into()) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a number to be filled.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_sees_a_buffer_and_changes_it_for_nobody() {
        let pool = SharedPool::new(1 << 20);
        let mut buffer = pool.buffer(10_000).expect("room");
        buffer.fill(7);
        let seen = in_child(|| {
            let before = buffer[9999];
            buffer.fill(1);
            before * 10 + buffer[5000]
        });
        assert_eq!(seen, 71);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }

    /// Threads begin to copy, and end.
    #[test]
    fn a_child_waits_for_nothing_that_threads_of_its_parent_had() {
        let over = AtomicBool::new(false);
        let copies = || std::thread::spawn(|| copied::add(1)).join().expect("copies");
        let copies_first = || {
            // SAFETY: takes a number; what ends the child is seen.
            unsafe { libc::alarm(10) };
            copied::add(1);
            1
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        copies();
                    }
                });
            }
            let forks = scope.spawn(|| (0..FORKS).all(|_| in_child(copies_first) == 1));
            let outcome = forks.join();
            over.store(true, Ordering::Relaxed);
            assert!(outcome.is_ok_and(|all| all), "see above");
        });
    }
}
