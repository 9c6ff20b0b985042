//! What a session has open.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dafs_protocol::{StateId, Status};
use rustc_hash::FxHashMap;

use crate::opens::Open;
use crate::paths::{PageCache, Share};

/// Open files, by the numbers that the client has for them.
pub(crate) struct OpenFiles {
    by_state: RefCell<FxHashMap<u64, Rc<Open>>>,
    next_state: Cell<u64>,
    /// Buffers, once it has opened a file whose data the kernel caches.
    buffers: OnceCell<Arc<Share>>,
}

impl OpenFiles {
    /// None.
    pub(crate) fn new() -> OpenFiles {
        OpenFiles {
            by_state: RefCell::default(),
            next_state: Cell::new(1),
            buffers: OnceCell::new(),
        }
    }

    /// What files whose data the kernel caches may take of the buffers.
    pub(crate) fn buffers(&self, page_cache: &PageCache, uid: u32) -> Arc<Share> {
        self.buffers.get_or_init(|| page_cache.share(uid)).clone()
    }

    /// One more.
    pub(crate) fn add(&self, open: Rc<Open>) -> StateId {
        let number = self.next_state.get();
        self.next_state.set(number + 1);
        self.by_state.borrow_mut().insert(number, open);
        StateId(number)
    }

    /// By its number.
    #[inline(always)]
    pub(crate) fn find(&self, state: StateId) -> Result<Rc<Open>, Status> {
        self.by_state.borrow().get(&state.0).cloned().ok_or(Status::BadStateId)
    }

    /// It is closed.
    pub(crate) fn remove(&self, state: StateId) -> Result<Rc<Open>, Status> {
        self.by_state.borrow_mut().remove(&state.0).ok_or(Status::BadStateId)
    }

    /// Whether there is such an open.
    pub(crate) fn any(&self, is: impl Fn(StateId, &Open) -> bool) -> bool {
        self.by_state.borrow().iter().any(|(state, open)| is(StateId(*state), open))
    }

    /// All, in the order in which they were opened; it has them no more.
    pub(crate) fn take_all(&self) -> Vec<Rc<Open>> {
        let mut opens: Vec<_> = self.by_state.borrow_mut().drain().collect();
        opens.sort_unstable_by_key(|open| open.0);
        opens.into_iter().map(|(_, open)| open).collect()
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.by_state.borrow().len()
    }
}
