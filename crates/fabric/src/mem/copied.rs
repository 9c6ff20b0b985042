//! Payload bytes that this process copied, counted by each thread for itself: a counter that all change
//! would go from processor to processor with each copy.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Of a thread, in a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// Counters of all threads. Those of threads that ended go on with the next ones.
#[derive(Debug)]
struct Counters {
    all: Vec<&'static Counter>,
    free: Vec<&'static Counter>,
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters { all: Vec::new(), free: Vec::new() });
/// What threads copied that end.
static AT_THE_END: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: Cell<Option<&'static Counter>> = const { Cell::new(None) };
    static TAKEN: Taken = take();
}

/// A counter until the thread ends.
struct Taken(&'static Counter);

impl Drop for Taken {
    fn drop(&mut self) {
        OWN.set(None);
        COUNTERS.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.0);
    }
}

fn take() -> Taken {
    let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    Taken(counters.free.pop().unwrap_or_else(|| {
        let counter: &'static Counter = Box::leak(Box::default());
        counters.all.push(counter);
        counter
    }))
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
    let counter = TAKEN.try_with(|taken| taken.0).ok();
    OWN.set(counter);
    let count = counter.map_or(&AT_THE_END, |counter| &counter.0);
    count.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Payload bytes that this process copied in user space, by the functions of this module.
pub fn copied_bytes() -> u64 {
    let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let threads: u64 = counters.all.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
    threads + AT_THE_END.load(Ordering::Relaxed)
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
}
