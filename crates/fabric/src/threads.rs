//! What each thread has for itself, and others look at: in a line of the processor's cache of its own, so that
//! nothing goes from processor to processor when it changes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Threads that have a line at a time.
pub(crate) const LINES_MAX: usize = 512;

/// Of a thread.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line {
    /// Payload bytes that it copied, and those before it that had this line.
    pub(crate) copied: AtomicU64,
    /// What it looks at that others may not free: see [`hazard`](crate::hazard).
    pub(crate) held: AtomicUsize,
}

/// Those of threads that ended go on with the next ones. There is no lock: a child that is forked while
/// another thread had it would wait for it for ever.
static LINES: [Line; LINES_MAX] =
    [const { Line { copied: AtomicU64::new(0), held: AtomicUsize::new(0) } }; LINES_MAX];
static ARE_TAKEN: [AtomicBool; LINES_MAX] = [const { AtomicBool::new(false) }; LINES_MAX];
/// Lines that were ever taken: those before this one.
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<Option<&'static Line>> = const { Cell::new(None) };
    static TAKEN: Option<Taken> = take();
}

/// A line until the thread ends: its number.
struct Taken(usize);

impl Drop for Taken {
    fn drop(&mut self) {
        OWN.set(None);
        give_back(&LINES[self.0]);
    }
}

fn take() -> Option<Taken> {
    let takes = |is_taken: &AtomicBool| {
        !is_taken.load(Ordering::Relaxed) && !is_taken.swap(true, Ordering::Acquire)
    };
    let number = ARE_TAKEN.iter().position(takes)?;
    // Before anything is written there: who looks at those that are used finds it.
    USED.fetch_max(number + 1, Ordering::SeqCst);
    Some(Taken(number))
}

/// That of this thread, where it has one already.
#[inline]
pub(crate) fn own() -> Option<&'static Line> {
    OWN.get()
}

/// As [`own`](own()), of a thread that may get one now. `None`: it ends, or there are too many.
pub(crate) fn own_or_new() -> Option<&'static Line> {
    let taken = TAKEN.try_with(|taken| taken.as_ref().map(|taken| &LINES[taken.0]));
    let line = taken.ok().flatten();
    OWN.set(line);
    line
}

/// One that is nobody's, until it is [given back](give_back).
pub(crate) fn borrow() -> Option<&'static Line> {
    let taken = take()?;
    let line = &LINES[taken.0];
    std::mem::forget(taken);
    Some(line)
}

/// The next one goes on with what is in it.
pub(crate) fn give_back(line: &'static Line) {
    let number = LINES.iter().position(|other| std::ptr::eq(other, line));
    if let Some(is_taken) = number.and_then(|number| ARE_TAKEN.get(number)) {
        is_taken.store(false, Ordering::Release);
    }
}

/// All that a thread may have written in.
pub(crate) fn used() -> &'static [Line] {
    LINES.get(..USED.load(Ordering::SeqCst)).unwrap_or(&LINES)
}

/// Tests that need a free line, or take all of them, hold this one by one.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
