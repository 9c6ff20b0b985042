//! Payload bytes that this process copied, counted by each thread for itself: a counter that all change
//! would go from processor to processor with each copy.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::threads;

/// What threads copied that have no line: at their end, and as there are so many.
static OF_OTHERS: AtomicU64 = AtomicU64::new(0);

/// So many more.
#[inline]
pub(super) fn add(bytes: usize) {
    match threads::own() {
        // Nobody else changes it.
        Some(line) => {
            let now = line.copied.load(Ordering::Relaxed).wrapping_add(bytes as u64);
            line.copied.store(now, Ordering::Relaxed);
        }
        None => add_first(bytes),
    }
}

#[cold]
fn add_first(bytes: usize) {
    let count = threads::own_or_new().map_or(&OF_OTHERS, |line| &line.copied);
    count.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Without words of the caller's, who would make them ready for each copy.
#[cold]
pub(super) fn outside() -> ! {
    panic!("copy outside of the span")
}

/// Payload bytes that this process copied in user space, by the functions of this module.
pub fn copied_bytes() -> u64 {
    let threads: u64 = threads::used().iter().map(|line| line.copied.load(Ordering::Relaxed)).sum();
    threads + OF_OTHERS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{LINES_MAX, alone};

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
        let _alone = alone();
        let before = copied_bytes();
        let all_there = std::sync::Barrier::new(LINES_MAX + 10);
        std::thread::scope(|scope| {
            for _ in 0..LINES_MAX + 10 {
                scope.spawn(|| {
                    add(7);
                    all_there.wait();
                    add(7);
                });
            }
        });
        assert!(copied_bytes() - before >= (LINES_MAX as u64 + 10) * 14);
    }
}
