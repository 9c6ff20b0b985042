//! The protection table of a device: the memory that is registered, and the work that relies on it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use dafs_fabric::mem::{Deregister, Pin};
use dafs_fabric::{
    Access, Device, MemoryRegion, PostError, QueuePair, RegisterError, Rkey, Span, Status,
    WorkCompletion, WrId,
};

use super::locked::Lock;
use super::{Books, guard};

/// See the module.
pub(super) struct Table {
    books: Arc<Books>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the key.
    regions: HashMap<u64, Region>,
    works: HashMap<WorkKey, Work>,
    /// Engines so far.
    engines: u64,
}

/// An engine, and a work request of it.
type WorkKey = (u64, u64);

/// Ends in this order: no access, no lock, no pin.
struct Region {
    memory: Range<u64>,
    _inner: MemoryRegion,
    lock: Lock,
    _pin: Option<Arc<Pin>>,
}

/// A work request, until the device has left its memory.
pub(super) struct Work {
    /// The caller's name of it.
    pub(super) wr_id: WrId,
    /// Of a receive once it has come back.
    pub(super) queue_pair: Option<QueuePair>,
    /// The caller wants no completion but of a failure.
    pub(super) is_silent: bool,
    /// It has come back, and its queue pair may still write until that is quiescent.
    pub(super) is_back: bool,
    memory: Vec<Range<u64>>,
}

impl Work {
    pub(super) fn new<'a>(
        wr_id: WrId,
        queue_pair: Option<QueuePair>,
        list: impl IntoIterator<Item = &'a Span>,
    ) -> Work {
        let memory = list.into_iter().filter(|span| !span.is_empty()).map(addresses).collect();
        Work { wr_id, queue_pair, is_silent: false, is_back: false, memory }
    }

    pub(super) fn silent_if(mut self, is_silent: bool) -> Work {
        self.is_silent = is_silent;
        self
    }
}

fn addresses(span: &Span) -> Range<u64> {
    span.addr()..span.addr() + span.len() as u64
}

fn holds(region: &Range<u64>, part: &Range<u64>) -> bool {
    region.start <= part.start && part.end <= region.end
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    /// One region has all of it: an entry has one local key.
    fn is_registered(&self, part: &Range<u64>) -> bool {
        self.regions.values().any(|region| holds(&region.memory, part))
    }
}

impl Table {
    pub(super) fn new(books: Arc<Books>) -> Table {
        Table { books, state: Mutex::default() }
    }

    /// Locks the span and makes the device below know it.
    pub(super) fn register(
        self: &Arc<Self>,
        device: &dyn Device,
        span: Span,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let pin = span.pin();
        let limit = self.books.limit.load(Ordering::Relaxed);
        let (lock, bytes) = Lock::new(&span, self.books.number, limit).inspect_err(|_| {
            self.books.refused.fetch_add(1, Ordering::Relaxed);
        })?;
        let inner = device.register(span.clone(), access)?;
        self.books.peak.fetch_max(bytes, Ordering::Relaxed);
        self.books.registrations.fetch_add(1, Ordering::Relaxed);
        let rkey = inner.part(0, 0).rkey;
        let region = Region { memory: addresses(&span), _inner: inner, lock, _pin: pin };
        guard(&self.state).regions.insert(rkey.0, region);
        Ok(MemoryRegion::new(span, rkey, self.clone()))
    }

    pub(super) fn regions(&self) -> Vec<Range<u64>> {
        guard(&self.state).regions.values().map(|region| region.memory.clone()).collect()
    }

    /// Books registered pages that are gone.
    pub(super) fn look_at_pages(&self) {
        for region in guard(&self.state).regions.values() {
            self.look_at(region);
        }
    }

    fn look_at(&self, region: &Region) {
        let absent = region.lock.absent_pages();
        if absent > 0 {
            let text = format!("{absent} pages of {:x?} gone while registered", region.memory);
            self.books.violation(text);
        }
    }

    /// The number of a new engine.
    pub(super) fn add_engine(&self) -> u64 {
        let mut state = guard(&self.state);
        state.engines += 1;
        state.engines
    }

    /// All its work is gone.
    pub(super) fn end_engine(&self, engine: u64) {
        guard(&self.state).works.retain(|key, _| key.0 != engine);
    }

    /// Work that is about to be posted.
    ///
    /// # Errors
    /// [`PostError::NotRegistered`], which is a violation.
    pub(super) fn begin(&self, key: WorkKey, work: Work) -> Result<(), PostError> {
        let mut state = guard(&self.state);
        if let Some(part) = work.memory.iter().find(|part| !state.is_registered(part)) {
            let text = format!("{part:x?} posted without a registration");
            drop(state);
            self.books.violation(text);
            return Err(PostError::NotRegistered);
        }
        state.works.insert(key, work);
        Ok(())
    }

    /// It was not taken.
    pub(super) fn undo(&self, key: WorkKey) {
        guard(&self.state).works.remove(&key);
    }

    /// The device below has ended work: whether it was a receive, and what the caller is told of it,
    /// if anything.
    pub(super) fn end(
        &self,
        engine: u64,
        ended: &WorkCompletion,
    ) -> (bool, Option<WorkCompletion>) {
        let mut state = guard(&self.state);
        let key = (engine, ended.wr_id.0);
        let Some(work) = state.works.get_mut(&key) else { return (false, None) };
        let told = WorkCompletion { wr_id: work.wr_id, ..*ended };
        let is_told = !(work.is_silent && ended.status == Status::Success);
        let is_receive = work.queue_pair.is_none();
        match ended.status {
            // The connection lives.
            Status::Success | Status::Cancelled | Status::RemoteAccess => {
                state.works.remove(&key);
            }
            _ => (work.is_back, work.queue_pair) = (true, Some(ended.queue_pair)),
        }
        (is_receive, is_told.then_some(told))
    }

    /// The device has left all memory of a queue pair.
    pub(super) fn quiescent(&self, engine: u64, queue_pair: QueuePair) {
        let is_of =
            |key: &WorkKey, work: &Work| key.0 == engine && work.queue_pair == Some(queue_pair);
        guard(&self.state).works.retain(|key, work| !is_of(key, work));
    }

    /// What the caller has posted by this name is known below by another one.
    pub(super) fn find(&self, engine: u64, queue_pair: QueuePair, wr_id: WrId) -> Option<WrId> {
        let state = guard(&self.state);
        let is = |(key, work): &(&WorkKey, &Work)| {
            key.0 == engine
                && !work.is_back
                && work.wr_id == wr_id
                && work.queue_pair == Some(queue_pair)
        };
        state.works.iter().find(is).map(|(key, _)| WrId(key.1))
    }
}

impl Deregister for Table {
    fn deregister(&self, rkey: Rkey) {
        let mut state = guard(&self.state);
        let Some(region) = state.regions.remove(&rkey.0) else { return };
        let is_left =
            |part: &&Range<u64>| overlap(&region.memory, part) && !state.is_registered(part);
        let left = state.works.values().flat_map(|work| &work.memory).find(is_left).cloned();
        drop(state);
        if let Some(part) = left {
            self.books.violation(format!("registration ended under posted work of {part:x?}"));
        }
        self.look_at(&region);
    }
}
