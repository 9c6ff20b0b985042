//! Memory that a caller lends while it waits.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Keep, Span};

impl Span {
    /// Its owner waits until no span of it is left: it is a buffer, or lent.
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        matches!(self.keep, Keep::Buffer(_) | Keep::LentMut(_) | Keep::Lent(_))
    }
}

/// Lends `memory` as a span for the time of `body`, which must not return before every clone of
/// the span is dropped: the process is aborted otherwise, since a network could still write to
/// memory that its owner uses again. No allocation.
pub fn lend_mut<R>(memory: &mut [u8], body: impl FnOnce(&Span) -> R) -> R {
    lend_raw(NonNull::from(&mut *memory).cast(), memory.len(), true, body)
}

/// As [`lend_mut`], for memory that is only read: the span may be a source, never a target.
pub fn lend<R>(memory: &[u8], body: impl FnOnce(&Span) -> R) -> R {
    lend_raw(NonNull::from(memory).cast(), memory.len(), false, body)
}

fn lend_raw<R>(start: NonNull<u8>, len: usize, writable: bool, body: impl FnOnce(&Span) -> R) -> R {
    struct Guard<'a>(&'a AtomicUsize);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            if self.0.load(Ordering::Acquire) != 1 {
                // Also on unwinding: whoever holds a span may write to memory that is not lent
                // any more.
                let text = "dafs: lent memory is still in use at the end of the loan";
                let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{text}\n"));
                std::process::abort();
            }
        }
    }
    // One for `span`, one so that the count stays above zero until the guard looks.
    let count = AtomicUsize::new(2);
    let _guard = Guard(&count);
    let alive = NonNull::from(&count);
    let keep = if writable { Keep::LentMut(alive) } else { Keep::Lent(alive) };
    let span = Span { start, len, keep };
    body(&span)
}
