//! Payload bytes that this process copied, counted by each thread for itself: a counter that all change
//! would go from processor to processor with each copy.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Threads that have a counter at a time; those beyond that have one together.
const OWN_MAX: usize = 256;

/// Of a thread, in a line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// Those of threads that ended go on with the next ones. There is no lock: a child that is forked while
/// another thread had it would wait for it for ever.
static COUNTERS: [Counter; OWN_MAX] = [const { Counter(AtomicU64::new(0)) }; OWN_MAX];
static ARE_TAKEN: [AtomicBool; OWN_MAX] = [const { AtomicBool::new(false) }; OWN_MAX];
/// What threads copied that have none: at their end, and as there are so many.
static OF_OTHERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: Cell<Option<&'static Counter>> = const { Cell::new(None) };
    static TAKEN: Option<Taken> = take();
}

/// A counter until the thread ends: its number.
struct Taken(usize);

impl Drop for Taken {
    fn drop(&mut self) {
        OWN.set(None);
        // The next one goes on with what this one counted.
        ARE_TAKEN[self.0].store(false, Ordering::Release);
    }
}

fn take() -> Option<Taken> {
    let takes = |is_taken: &AtomicBool| {
        !is_taken.load(Ordering::Relaxed) && !is_taken.swap(true, Ordering::Acquire)
    };
    ARE_TAKEN.iter().position(takes).map(Taken)
}

/// So many more.
#[inline]
pub(super) fn add(bytes: usize) {
    match OWN.get() {
        // Nobody else changes it.
        Some(Counter(count)) => {
            let now = count.load(Ordering::Relaxed).wrapping_add(bytes as u64);
            count.store(now, Ordering::Relaxed);
        }
        None => add_first(bytes),
    }
}

#[cold]
fn add_first(bytes: usize) {
    let taken = TAKEN.try_with(|taken| taken.as_ref().map(|taken| &COUNTERS[taken.0]));
    let counter = taken.ok().flatten();
    OWN.set(counter);
    let count = counter.map_or(&OF_OTHERS, |counter| &counter.0);
    count.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Payload bytes that this process copied in user space, by the functions of this module.
pub fn copied_bytes() -> u64 {
    let threads: u64 = COUNTERS.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
    threads + OF_OTHERS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_copied_stays_counted() {
        let before = copied_bytes();
        for _ in 0..10 {
            let threads: Vec<_> =
                (0..4).map(|_| std::thread::spawn(|| (0..100).for_each(|_| add(7)))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        }
        assert!(copied_bytes() - before >= 4 * 10 * 700);
    }

    #[test]
    fn more_threads_than_have_a_counter_are_counted() {
        let before = copied_bytes();
        let all_there = std::sync::Barrier::new(OWN_MAX + 10);
        std::thread::scope(|scope| {
            for _ in 0..OWN_MAX + 10 {
                scope.spawn(|| {
                    add(7);
                    all_there.wait();
                    add(7);
                });
            }
        });
        assert!(copied_bytes() - before >= (OWN_MAX as u64 + 10) * 14);
    }
}
