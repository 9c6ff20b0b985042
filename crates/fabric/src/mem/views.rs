//! Memory of a peer that it leaves alone, as slices.

use std::any::Any;
use std::sync::Arc;

use super::Span;
use crate::types::SgList;

/// Bytes that a peer has lent: it neither changes them nor uses their memory again before this is dropped.
pub struct Views {
    spans: SgList,
    /// Has the peer know how long they are read; after the spans, which are not read any more then.
    _hold: Arc<dyn Any + Send + Sync>,
}

impl Views {
    /// Of spans whose owner hears of the end of `hold`.
    ///
    /// # Safety
    /// Until `hold` is dropped, nobody changes the bytes, nor takes their memory away.
    pub unsafe fn new(spans: SgList, hold: Arc<dyn Any + Send + Sync>) -> Views {
        Views { spans, _hold: hold }
    }

    /// On a simulated network, where that promise is what is tested.
    pub(crate) fn simulated(spans: SgList, hold: Arc<dyn Any + Send + Sync>) -> Views {
        Views { spans, _hold: hold }
    }

    /// The bytes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        // SAFETY: mapped as long as the span lives, and not changed: the promise of `new`.
        self.spans.iter().map(|span| unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len) })
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(Span::len).sum()
    }
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Arena, PAGE_BYTES};

    #[test]
    fn the_bytes_are_there_and_the_hold_ends_with_them() {
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        arena.span(0, 8).write_message(0, b"abcdefgh");
        let hold = Arc::new(());
        let spans = SgList::from_iter([arena.span(4, 4), arena.span(0, 2)]);
        // SAFETY: nobody writes to this arena any more.
        let views = unsafe { Views::new(spans, hold.clone()) };
        assert_eq!((views.iter().len(), views.bytes()), (2, 6));
        assert_eq!(views.iter().collect::<Vec<_>>(), [&b"efgh"[..], b"ab"]);
        assert_eq!(Arc::strong_count(&hold), 2);
        drop((arena, views));
        assert_eq!(Arc::strong_count(&hold), 1);
    }
}
