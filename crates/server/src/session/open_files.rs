//! What a session has open.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dafs_protocol::{StateId, Status};

use crate::opens::Open;
use crate::paths::{PageCache, Share};

/// Bits of a number that say where its file is; the others count opens.
const PLACE_BITS: u32 = 24;
/// The most open files of a session.
pub(crate) const OPENS_MAX: usize = 1 << PLACE_BITS;

/// An open file and the number that the client has for it, if there is one.
type Place = Option<(StateId, Rc<Open>)>;

/// Open files, by the numbers that the client has for them.
pub(crate) struct OpenFiles {
    places: RefCell<Vec<Place>>,
    free: RefCell<Vec<usize>>,
    next_open: Cell<u64>,
    /// Buffers, once it has opened a file whose data the kernel caches.
    buffers: OnceCell<Arc<Share>>,
}

/// Where a file of this number is, if there is one.
#[inline(always)]
fn place_of(state: StateId) -> usize {
    state.0 as usize & (OPENS_MAX - 1)
}

impl OpenFiles {
    /// None.
    pub(crate) fn new() -> OpenFiles {
        OpenFiles {
            places: RefCell::default(),
            free: RefCell::default(),
            next_open: Cell::new(1),
            buffers: OnceCell::new(),
        }
    }

    /// What files whose data the kernel caches may take of the buffers.
    pub(crate) fn buffers(&self, page_cache: &PageCache, uid: u32) -> Arc<Share> {
        self.buffers.get_or_init(|| page_cache.share(uid)).clone()
    }

    /// One more, of at most [`OPENS_MAX`]. Its number is used for no other.
    pub(crate) fn add(&self, open: Rc<Open>) -> StateId {
        let mut places = self.places.borrow_mut();
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| {
            places.push(None);
            places.len() - 1
        });
        let number = self.next_open.get();
        self.next_open.set(number + 1);
        let state = StateId(number << PLACE_BITS | place as u64);
        places[place] = Some((state, open));
        state
    }

    /// By its number.
    #[inline(always)]
    pub(crate) fn find(&self, state: StateId) -> Result<Rc<Open>, Status> {
        match self.places.borrow().get(place_of(state)) {
            Some(Some((is, open))) if *is == state => Ok(open.clone()),
            _ => Err(Status::BadStateId),
        }
    }

    /// It is closed.
    pub(crate) fn remove(&self, state: StateId) -> Result<Rc<Open>, Status> {
        let mut places = self.places.borrow_mut();
        let place = places.get_mut(place_of(state)).ok_or(Status::BadStateId)?;
        let (_, open) = place.take_if(|(is, _)| *is == state).ok_or(Status::BadStateId)?;
        self.free.borrow_mut().push(place_of(state));
        Ok(open)
    }

    /// Whether there is such an open.
    pub(crate) fn any(&self, is: impl Fn(StateId, &Open) -> bool) -> bool {
        self.places.borrow().iter().flatten().any(|(state, open)| is(*state, open))
    }

    /// All, in the order in which they were opened; it has them no more.
    pub(crate) fn take_all(&self) -> Vec<Rc<Open>> {
        self.free.borrow_mut().clear();
        let mut opens: Vec<_> = self.places.take().into_iter().flatten().collect();
        opens.sort_unstable_by_key(|(state, _)| state.0);
        opens.into_iter().map(|(_, open)| open).collect()
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.places.borrow().len() - self.free.borrow().len()
    }
}
