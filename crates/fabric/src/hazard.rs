//! Something that many threads look at, and that may be replaced and let go meanwhile: by hazard pointers.
//!
//! A thread writes into a line of its own what it looks at, and then makes sure that this is still there. Who
//! replaces it looks through the lines of all threads behind that, and gives each of them who is still at it a share
//! of its own, which it drops when it leaves. So what was replaced lives until the last one has left, and no
//! longer; nobody waits. The crate `arc-swap` does the same for any number of such looks at a time in 75
//! instructions; this is a dozen, for one at a time. Those that are made within another take a line that is nobody's.

#[cfg(test)]
mod model;

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::threads::{self, Line};

/// Beside an address in a line: who leaves has a share to drop.
const SHARE: usize = 1;
/// The same: the line is nobody's, and goes back.
const BORROWED: usize = 2;
const MARKS: usize = SHARE | BORROWED;

/// Something, or nothing, that is read by `&self` without a lock.
#[derive(Debug)]
pub struct Guarded<T> {
    at: AtomicPtr<Owned<T>>,
    owns: PhantomData<Option<Arc<Owned<T>>>>,
}

/// What all that is guarded begins with: a line that says an address does not say of what type. One may have been freed
/// since a look saw its address, and another one be there by now; a share of that is dropped as what it is.
#[derive(Debug)]
#[repr(C)]
struct Owned<T> {
    // SAFETY: of its callers is asked what `Owned::drop_share` asks.
    drop_share: unsafe fn(*const ()),
    value: T,
}

impl<T> Owned<T> {
    /// # Safety
    /// The caller has a share in the one of this type at this address, and gives it up.
    unsafe fn drop_share(address: *const ()) {
        // SAFETY: passed on to the caller.
        drop(unsafe { Arc::from_raw(address.cast::<Owned<T>>()) });
    }
}

impl<T> Default for Guarded<T> {
    fn default() -> Guarded<T> {
        Guarded { at: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }
}

/// A look under way.
struct Held {
    line: &'static Line,
    seen: usize,
}

impl Held {
    /// Of no use before it was seen that the same is still there.
    #[inline(always)]
    fn of(seen: usize) -> Option<Held> {
        let line = threads::own().filter(|line| line.held.load(Ordering::Relaxed) == 0);
        let (line, marks) = match line {
            Some(line) => (line, 0),
            None => line_for_another()?,
        };
        line.held.swap(seen | marks, Ordering::SeqCst);
        Some(Held { line, seen })
    }
}

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        let left = self.line.held.swap(0, Ordering::SeqCst);
        if left != self.seen {
            settle(self.line, left);
        }
    }
}

/// For a thread that has no line yet, or looks at something already: in a handler of a signal, for example.
#[cold]
fn line_for_another() -> Option<(&'static Line, usize)> {
    let own = threads::own_or_new().filter(|line| line.held.load(Ordering::Relaxed) == 0);
    own.map(|line| (line, 0)).or_else(|| Some((threads::borrow()?, BORROWED)))
}

#[cold]
fn settle(line: &'static Line, left: usize) {
    if left & BORROWED != 0 {
        threads::give_back(line);
    }
    if left & SHARE != 0 {
        let address: *const () = ptr::with_exposed_provenance(left & !MARKS);
        // SAFETY: who marked it made a share for this look: it lives, and begins so.
        let drop_share = unsafe { *address.cast::<unsafe fn(*const ())>() };
        // SAFETY: this is that share, of the type that it says itself.
        unsafe { drop_share(address) };
    }
}

impl<T> Guarded<T> {
    /// Has `look` see what is there, which is not freed meanwhile. `None`: there is nothing, or it was just replaced, or
    /// more threads than have lines look at something.
    #[inline(always)]
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let seen = self.at.load(Ordering::Relaxed);
        if seen.is_null() {
            return None;
        }
        let held = Held::of(seen.expose_provenance())?;
        // Whoever replaces it from here on finds the line; who did so before is seen.
        if self.at.load(Ordering::SeqCst) != seen {
            return None;
        }
        // SAFETY: it was there after the line said so: who replaces it gives this look a share first.
        let owned = unsafe { &*seen };
        let result = look(&owned.value);
        drop(held);
        Some(result)
    }

    /// Whether there is something.
    pub fn is_some(&self) -> bool {
        !self.at.load(Ordering::Relaxed).is_null()
    }

    /// Replaces it. What was there is dropped when the last look at it ends, which may be now.
    pub fn set(&self, value: Option<T>) {
        const { assert!(align_of::<Owned<T>>() > MARKS, "addresses have room for marks") };
        let owned = |value| Arc::new(Owned { drop_share: Owned::<T>::drop_share, value });
        let new = value.map_or(ptr::null(), |value| Arc::into_raw(owned(value)));
        let old = self.at.swap(new.cast_mut(), Ordering::SeqCst);
        if old.is_null() {
            return;
        }
        for line in threads::used() {
            share(&line.held, old);
        }
        // SAFETY: the share that was made a pointer by an earlier call, and was there until now.
        drop(unsafe { Arc::from_raw(old) });
    }
}

/// Gives who looks at `old` by this line, if anybody, a share.
fn share<T>(held: &AtomicUsize, old: *const Owned<T>) {
    loop {
        let now = held.load(Ordering::SeqCst);
        // One that has a share already can do without another.
        if now & !MARKS != old.expose_provenance() || now & SHARE != 0 {
            return;
        }
        // SAFETY: the caller has a share in it.
        unsafe { Arc::increment_strong_count(old) };
        let order = Ordering::SeqCst;
        if held.compare_exchange(now, now | SHARE, order, order).is_ok() {
            return;
        }
        // SAFETY: the share that was just made, and was given to nobody.
        unsafe { Arc::decrement_strong_count(old) };
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let last = *self.at.get_mut();
        if !last.is_null() {
            // SAFETY: the share that `set` made a pointer. Nobody looks: that borrows `self`.
            drop(unsafe { Arc::from_raw(last) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::threads::{LINES_MAX, alone};

    /// Says that it lives, and counts those that do.
    #[derive(Debug)]
    struct Counted {
        lives: AtomicBool,
        count: Arc<AtomicUsize>,
    }

    impl Counted {
        fn new(count: &Arc<AtomicUsize>) -> Arc<Counted> {
            count.fetch_add(1, Ordering::Relaxed);
            Arc::new(Counted { lives: AtomicBool::new(true), count: count.clone() })
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.lives.store(false, Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn lives(value: &Arc<Counted>) -> bool {
        value.lives.load(Ordering::Relaxed)
    }

    #[test]
    fn what_is_replaced_lives_as_long_as_somebody_looks_and_no_longer() {
        let _alone = alone();
        let count = Arc::default();
        let left = || AtomicUsize::load(&count, Ordering::Relaxed);
        let guarded = Guarded::default();
        assert!(!guarded.is_some() && guarded.with(lives).is_none());
        guarded.set(Some(Counted::new(&count)));
        assert_eq!((guarded.is_some(), guarded.with(lives)), (true, Some(true)));
        let seen = guarded.with(|outer| {
            // Within this look another one, by a line of nobody's.
            let inner = guarded.with(|inner| {
                guarded.set(Some(Counted::new(&count)));
                guarded.set(None);
                assert_eq!(left(), 1, "the one in between had nobody");
                lives(inner)
            });
            (inner, lives(outer), left())
        });
        assert_eq!((seen, left()), (Some((Some(true), true, 1)), 0));
        guarded.set(Some(Counted::new(&count)));
        drop(guarded);
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_look_that_panics_has_ended() {
        let _alone = alone();
        let (count, guarded) = (Arc::default(), Guarded::default());
        guarded.set(Some(Counted::new(&count)));
        let look = || guarded.with(|_| panic!("on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err());
        guarded.set(None);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    /// As one that saw the address of what was freed since, where now is something of another type.
    #[test]
    fn who_was_too_late_drops_what_is_there_as_what_it_is() {
        let _alone = alone();
        let (count, guarded) = (Arc::default(), Guarded::default());
        guarded.set(Some((Counted::new(&count), Counted::new(&count))));
        let address = guarded.at.load(Ordering::Relaxed).expose_provenance();
        let late = Held::of(address).expect("a line");
        guarded.set(None);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        drop(late);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    fn deeper(guarded: &Guarded<Arc<Counted>>, depth: usize) -> usize {
        guarded.with(|_| deeper(guarded, depth + 1)).unwrap_or(depth)
    }

    #[test]
    fn looks_within_looks_end_where_there_are_no_lines_and_not_worse() {
        let _alone = alone();
        let (count, guarded) = (Arc::default(), Guarded::default());
        guarded.set(Some(Counted::new(&count)));
        for _ in 0..2 {
            let depth = deeper(&guarded, 0);
            assert!(depth > 1 && depth <= LINES_MAX, "{depth}");
        }
        guarded.set(None);
        assert_eq!(count.load(Ordering::Relaxed), 0, "all lines came back");
    }

    /// What was freed is not seen, and all is freed in the end.
    #[test]
    fn threads_look_while_others_replace() {
        let _alone = alone();
        const ROUNDS: usize = 20_000;
        let (count, over) = (Arc::default(), AtomicBool::new(false));
        let guarded: [Guarded<Arc<Counted>>; 2] = Default::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let both = guarded[0].with(|one| {
                            let other = guarded[1].with(lives);
                            other.is_none_or(|other| other) && lives(one)
                        });
                        assert_ne!(both, Some(false));
                    }
                });
            }
            let replace = |number: usize| {
                for round in 0..ROUNDS {
                    let value = (round % 3 > 0).then(|| Counted::new(&count));
                    guarded[(number + round) % 2].set(value.clone());
                    guarded[number].set(value);
                }
            };
            let others = [0, 1].map(|number| scope.spawn(move || replace(number)));
            let ended = others.map(|other| other.join().is_ok());
            over.store(true, Ordering::Relaxed);
            assert_eq!(ended, [true; 2]);
        });
        guarded.iter().for_each(|guarded| guarded.set(None));
        assert_eq!(AtomicUsize::load(&count, Ordering::Relaxed), 0);
    }
}
