//! Memory that a device holds on to.
//!
//! A device that pins ([`DeviceAttr::registration_pins`](crate::DeviceAttr::registration_pins)) goes
//! on with the pages that were there when a region was registered. Would they be given back, fresh
//! ones took their place in this process, and the device kept the old ones, where nobody looks. So
//! [`Arena::discard`] refuses what is pinned. What happens to it all the same when that is passed by,
//! the simulated device shows: it asks [`Pin::seen`] for the memory behind a span.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Arena, Keep, PAGE_BYTES, Span};
use crate::types::SgList;

/// What of an arena is pinned.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Something was, once: elsewhere nothing is locked for it.
    any: AtomicBool,
    list: Mutex<Vec<Weak<Pin>>>,
}

/// A range of an arena that a device holds, until this is dropped: see [`Span::pin`].
#[derive(Debug)]
pub struct Pin {
    /// The addresses of its first page and behind its last one.
    start: u64,
    end: u64,
    /// The pages that the device has in place of those given back, by address.
    old: Mutex<BTreeMap<u64, Span>>,
    given_back: AtomicUsize,
}

/// A page that is about to be given back, and who keeps the old one.
pub(super) type OldPage = (Arc<Pin>, u64, Span);

impl Pins {
    /// What `body` answers, unless something of these addresses is pinned. Nobody pins meanwhile.
    pub(super) fn unless_pinned<R>(
        &self,
        addresses: Range<u64>,
        body: impl FnOnce() -> R,
    ) -> Option<R> {
        let list = locked(&self.list);
        let mut pins = list.iter().filter_map(Weak::upgrade);
        let is_pinned = pins.any(|pin| pin.start < addresses.end && addresses.start < pin.end);
        (!is_pinned).then(body)
    }

    /// Copies of the pages of this range that devices hold.
    pub(super) fn old_pages(&self, arena: &Arena, offset: usize, len: usize) -> Vec<OldPage> {
        let mut old = Vec::new();
        if !self.any.load(Ordering::Acquire) {
            return old;
        }
        let pins: Vec<_> = locked(&self.list).iter().filter_map(Weak::upgrade).collect();
        for at in (offset..offset + len).step_by(PAGE_BYTES) {
            let addr = arena.base.as_ptr() as u64 + at as u64;
            let mut holders = pins.iter().filter(|pin| (pin.start..pin.end).contains(&addr));
            let Some(first) = holders.next() else { continue };
            let Some(copy) = arena.copy_of_page(at) else { continue };
            old.extend(holders.map(|pin| (pin.clone(), addr, copy.clone())));
            old.push((first.clone(), addr, copy));
        }
        old
    }
}

impl Span {
    /// Keeps the pages of this span, where they are of an arena, from being given back: for providers
    /// whose devices pin, from before a registration until it has ended.
    pub fn pin(&self) -> Option<Arc<Pin>> {
        let arena = match &self.keep {
            Keep::Arena(arena) => arena,
            Keep::Buffer(memory) => &memory.arena,
            Keep::LentMut(_) | Keep::Lent(_) | Keep::File(_) | Keep::Readable { .. } => {
                return None;
            }
        };
        let pin = Arc::new(Pin {
            start: self.addr() / PAGE_BYTES as u64 * PAGE_BYTES as u64,
            end: self.addr() + self.len() as u64,
            old: Mutex::default(),
            given_back: AtomicUsize::new(0),
        });
        let mut list = locked(&arena.pins.list);
        list.retain(|pin| pin.strong_count() > 0);
        list.push(Arc::downgrade(&pin));
        arena.pins.any.store(true, Ordering::Release);
        Some(pin)
    }
}

impl Pin {
    /// The page was given back.
    pub(super) fn keep(&self, addr: u64, old: Span) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
        // Given back again, it is the first one that the device has.
        locked(&self.old).entry(addr).or_insert(old);
    }

    /// Pages given back since the last call.
    pub(crate) fn take_given_back(&self) -> usize {
        self.given_back.swap(0, Ordering::Relaxed)
    }

    /// The memory that the device has where this process sees `span`.
    pub(crate) fn seen(&self, span: &Span) -> SgList {
        let old = locked(&self.old);
        let mut seen = SgList::new();
        let mut at = 0;
        while at < span.len() {
            let within = (span.addr() as usize + at) % PAGE_BYTES;
            let len = (PAGE_BYTES - within).min(span.len() - at);
            let page = span.addr() + (at as u64) - within as u64;
            let part =
                old.get(&page).map_or_else(|| span.part(at, len), |old| old.part(within, len));
            match seen.last_mut() {
                Some(last) if last.is_followed_by(&part) => last.append(&part),
                _ => seen.push(part),
            }
            at += len;
        }
        seen
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(spans: &[Span]) -> String {
        let mut all = Vec::new();
        for span in spans {
            let mut part = vec![0; span.len()];
            span.copy_to(0, &mut part);
            all.extend(part);
        }
        String::from_utf8(all).expect("letters")
    }

    #[test]
    fn a_device_keeps_the_pages_that_were_given_back() {
        let arena = Arena::new(4 * PAGE_BYTES).expect("arena");
        let whole = arena.span(0, arena.len());
        let (pinned, across) = (arena.span(PAGE_BYTES + 5, PAGE_BYTES), 2 * PAGE_BYTES - 3);
        let pin = pinned.pin().expect("of an arena");
        whole.copy_from(across, b"abcdef");
        arena.discard(0, PAGE_BYTES).expect("another page");
        let refused = arena.discard(PAGE_BYTES, 2 * PAGE_BYTES).expect_err("pinned");
        assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
        assert_eq!(pin.take_given_back(), 0);
        let span = whole.part(across, 6);
        assert_eq!(pin.seen(&span).len(), 1);
        arena.discard_pinned(PAGE_BYTES, PAGE_BYTES).expect("discard");
        assert_eq!((pin.take_given_back(), pin.take_given_back()), (1, 0));
        assert_eq!(text(std::slice::from_ref(&span)), "\0\0\0def");
        let seen = pin.seen(&span);
        assert_eq!(text(&seen), "abcdef");
        // What the device writes there nobody sees, and it lasts.
        seen[0].copy_from(0, b"xyz");
        arena.discard_pinned(PAGE_BYTES, PAGE_BYTES).expect("discard");
        assert_eq!(text(std::slice::from_ref(&span)), "\0\0\0def");
        assert_eq!(text(&pin.seen(&span)), "xyzdef");
    }

    #[test]
    fn what_is_pinned_no_more_is_not_kept() {
        let arena = Arena::new(PAGE_BYTES).expect("arena");
        drop(arena.span(0, 10).pin());
        arena.discard(0, PAGE_BYTES).expect("discard");
        assert!(arena.pins.old_pages(&arena, 0, PAGE_BYTES).is_empty());
        assert!(arena.span(0, 10).pin().is_some());
        assert_eq!(locked(&arena.pins.list).len(), 1);
    }
}
