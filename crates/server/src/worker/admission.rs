//! When a request may begin: what it needs is taken for it, or it waits, in the order in which its
//! session asked.
//!
//! Data that a peer pushed stops what is behind it on its connection until it is fetched, also the
//! data of requests that have begun. So a request with pushed data never waits: it is answered
//! *delay*, and comes again with data that waits for a grant.

use std::rc::Rc;

use dafs_message::RequestId;
use dafs_protocol::{Extent, ExtentList, Operation, SessionId, SlotId, Status};

use super::Worker;
use crate::budget::{Granted, Needs};
use crate::context::{Grant, SCRATCH_BYTES};
use crate::delayed::{Cached, Delayed};
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::shared::tick;

/// Memory of a request under way: its future, its header, what it refers to.
const REQUEST_BYTES: usize = 8 << 10;
/// Memory of a read that waits for one page.
const PAGE_READ_BYTES: usize = 1 << 10;
const PAGE: u64 = dafs_fabric::mem::PAGE_BYTES as u64;
/// The most that is pinned for one byte.
const FRAME: u64 = 64 << 10;

/// Bytes of the pieces of one extent, each as far as whole units of `unit` bytes reach.
#[inline]
fn units_of(extent: &Extent, unit: u64) -> u64 {
    let len = u64::from(extent.len);
    if len == 0 {
        return 0;
    }
    if extent.count == 1 {
        let end = extent.offset.saturating_add(len).div_ceil(unit);
        return (end - extent.offset / unit).saturating_mul(unit);
    }
    u64::from(extent.count).saturating_mul((len - 1).div_ceil(unit) + 1).saturating_mul(unit)
}

fn sum_of_units(extents: &ExtentList, unit: u64) -> usize {
    let sum = |sum: u64, extent| sum.saturating_add(units_of(extent, unit));
    usize::try_from(extents.as_slice().iter().fold(0, sum)).unwrap_or(usize::MAX)
}

fn scratch_for(bytes: u64) -> usize {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes.checked_next_multiple_of(SCRATCH_BYTES).unwrap_or(usize::MAX)
}

/// What a READ of bytes in one page needs that is answered from the cache.
pub(super) const NEEDS_OF_PAGE: Needs = Needs { pages: FRAME as usize, memory: 0 };

/// What a READ needs that waits for one page of its own: that, and the records of who waits.
#[inline]
pub(super) fn needs_of_page_read() -> Needs {
    uncounted(Needs { pages: PAGE as usize, memory: PAGE_READ_BYTES })
}

/// The pages of a READ of one piece that is answered from the cache, and memory where it has more of
/// them than a transfer takes.
#[inline]
pub(super) fn needs_of_hit(offset: u64, len: u32, segments_max: usize) -> Needs {
    let extent = Extent::one(offset, len);
    let units = |unit| usize::try_from(units_of(&extent, unit)).unwrap_or(usize::MAX);
    let is_scattered = units(PAGE) / PAGE as usize > segments_max;
    let memory = if is_scattered { scratch_for(u64::from(len)) } else { 0 };
    Needs { pages: units(FRAME), memory }
}

/// As [`needs_of`], of a READ of one piece and nothing else.
pub(super) fn needs_of_read(offset: u64, len: u32, segments_max: usize) -> Needs {
    let mut needs = needs_of_hit(offset, len, segments_max);
    needs.add(Needs { pages: 0, memory: REQUEST_BYTES });
    uncounted(needs)
}

fn segments_of(extents: &ExtentList) -> usize {
    sum_of_units(extents, PAGE) / PAGE as usize
}

/// All that a request may need, whatever its operations find.
pub(super) fn needs_of(operations: &[Operation<'_>], data_len: u32, segments_max: usize) -> Needs {
    let brings = |op: &&Operation<'_>| op.request_data_bytes() != Some(0);
    let data_operations = operations.iter().filter(brings).count();
    let mut needs = Needs { pages: 0, memory: REQUEST_BYTES };
    let (mut read_bytes, mut reply_segments, mut reads, mut lists) = (0u64, 0usize, 0, 0);
    for operation in operations {
        let (pages, scratch) = match operation {
            Operation::Read { extents, .. } => {
                let is_list = !matches!(extents.as_slice(), [extent] if extent.count == 1);
                reads += 1;
                lists += usize::from(is_list);
                read_bytes = read_bytes.saturating_add(extents.bytes().unwrap_or(u64::MAX));
                reply_segments = reply_segments.saturating_add(segments_of(extents));
                (sum_of_units(extents, FRAME), 0)
            }
            Operation::Write { extents, .. } => {
                let gathers = segments_of(extents) > segments_max && data_operations == 1;
                (sum_of_units(extents, PAGE), if gathers { u64::from(data_len) } else { 0 })
            }
            Operation::Append { bytes, .. } => {
                let pages = units_of(&Extent::one(0, *bytes), PAGE).saturating_add(PAGE);
                let pages = usize::try_from(pages).unwrap_or(usize::MAX);
                let gathers = pages / PAGE as usize > segments_max && data_operations == 1;
                (pages, if gathers { u64::from(data_len) } else { 0 })
            }
            // Names, values, lists.
            other => {
                let asked = other.reply_data_bytes().unwrap_or(0).min(SCRATCH_BYTES as u64);
                reply_segments += usize::from(asked > 0);
                (0, other.request_data_bytes().unwrap_or(0).max(asked))
            }
        };
        needs.add(Needs { pages, memory: scratch_for(scratch) });
    }
    // Pieces are copied together where not all of them can be held; a reply in more segments than
    // a transfer takes, too.
    let is_scattered = reply_segments > segments_max;
    let copies = usize::from(lists > 0 || is_scattered)
        + usize::from(lists > 0 && is_scattered && reads > 1);
    needs.add(Needs { pages: 0, memory: scratch_for(read_bytes).saturating_mul(copies) });
    if data_operations > 1 {
        needs.add(Needs { pages: 0, memory: scratch_for(u64::from(data_len)) });
    }
    uncounted(needs)
}

/// Nothing, where a defect is planted that does not count it.
fn uncounted(needs: Needs) -> Needs {
    if planted(Defect::WaitsNotCounted) || planted(Defect::ReadersNotCounted) {
        return Needs::default();
    }
    needs
}

impl Worker {
    /// Takes what a request needs, if that is there and nothing of the session waits.
    #[inline(always)]
    pub(super) fn try_admit(&self, session: &Rc<Session>, needs: Needs) -> Option<Grant> {
        let may = !session.allowance.is_waited_for()
            && session.allowance.leaves_room(needs)
            && self.try_take(session, needs);
        may.then(|| Grant::of(&self.context, session, needs))
    }

    #[inline(always)]
    fn try_take(&self, session: &Session, needs: Needs) -> bool {
        self.shared.budgets.take_at_once(&session.allowance.user, needs)
            || self.try_take_in_turn(session, needs)
    }

    #[cold]
    fn try_take_in_turn(&self, session: &Session, needs: Needs) -> bool {
        match self.shared.budgets.try_take(&session.allowance.user, needs) {
            Ok(()) => true,
            Err(granted) => {
                self.shared.send_granted(granted);
                false
            }
        }
    }

    /// Begins a request, or has its peer send it again without pushing its data.
    pub(super) fn begin_or_decline(&mut self, session: &Rc<Session>, request: Delayed) {
        match self.try_admit(session, request.needs) {
            Some(grant) => self.begin(session, request, grant),
            None => self.decline(session, request),
        }
    }

    /// As [`try_admit`](Self::try_admit); `None`: it is to wait, behind others of its session or
    /// for what its session, its user, or all have under way.
    fn admit(&self, session: &Rc<Session>, needs: Needs) -> Option<Grant> {
        let may = !session.allowance.is_waited_for() && self.take(session, needs);
        may.then(|| Grant::of(&self.context, session, needs))
    }

    /// What the session may have, then what its user and all may. Who is refused there is in
    /// line, and told.
    fn take(&self, session: &Session, needs: Needs) -> bool {
        let allowance = &session.allowance;
        if !allowance.leaves_room(needs) {
            return false;
        }
        if self.try_take(session, needs) {
            return true;
        }
        let (worker, ticket) = (self.context.number, allowance.next_ticket());
        let user = allowance.user.clone();
        let wanted = Granted { user, session: session.id, worker, ticket, needs };
        let taken = self.shared.budgets.take(wanted);
        allowance.set_in_line((!taken).then_some(ticket));
        taken
    }

    /// Begins a request, or has it wait until it can.
    pub(super) fn begin_or_delay(&mut self, session: &Rc<Session>, request: Delayed) {
        if session.life.has_ended() {
            return self.node.recycle(request.header);
        }
        match self.admit(session, request.needs) {
            Some(grant) => self.begin(session, request, grant),
            None => {
                tick(&self.shared.counters.delayed);
                session.allowance.delay(request);
            }
        }
    }

    /// Something of a session's share is free: what waits for it may begin.
    pub(super) fn go_on(&mut self, id: SessionId) {
        let Some(session) = self.session(id) else { return };
        while session.allowance.in_line().is_none() {
            let Some(needs) = session.allowance.first_needs() else { return };
            if !self.take(&session, needs) {
                return;
            }
            self.begin_delayed(&session, needs);
        }
    }

    /// The first request of a session has what it needs.
    pub(super) fn granted(&mut self, granted: Granted) {
        let Granted { user, session: id, ticket, needs, .. } = granted;
        let session =
            self.session(id).filter(|session| session.allowance.in_line() == Some(ticket));
        let Some(session) = session else {
            // It has ended, or left the line, meanwhile.
            return self.shared.give(&user, needs);
        };
        session.allowance.set_in_line(None);
        self.begin_delayed(&session, needs);
        self.go_on(id);
    }

    fn begin_delayed(&mut self, session: &Rc<Session>, needs: Needs) {
        let grant = Grant::of(&self.context, session, needs);
        if let Some(request) = session.allowance.take_first() {
            self.begin(session, request, grant);
        }
    }

    /// A request that has not ended came again, over `id`.
    pub(super) fn resent(
        &mut self,
        session: &Rc<Session>,
        (slot, id): (SlotId, RequestId),
        pushed: bool,
    ) {
        session.set_target(slot, id);
        if !pushed {
            return;
        }
        let Some(place) = session.allowance.place_of(slot) else { return };
        if place == 0 {
            self.leave_line(session);
        }
        if let Some(again) = session.allowance.remove(place) {
            self.decline(session, Delayed { id, ..again });
        }
        self.go_on(session.id);
    }

    fn leave_line(&self, session: &Session) {
        let allowance = &session.allowance;
        if allowance.in_line().is_some() {
            allowance.set_in_line(None);
            let granted = self.shared.budgets.forget(&allowance.user, session.id);
            self.shared.send_granted(granted);
        }
    }

    /// It is as if it had not come.
    fn decline(&mut self, session: &Session, request: Delayed) {
        let Delayed { head, id, header, prior, .. } = request;
        not_begun(session, head.slot, prior);
        tick(&self.shared.counters.delayed);
        self.answer_status(id, head, Status::Delay);
        self.node.recycle(header);
    }

    /// What waits will not begin any more: the session ends, or nobody is left to answer.
    pub(super) fn drop_delayed(&mut self, session: &Session) {
        for delayed in session.allowance.take_all() {
            not_begun(session, delayed.head.slot, delayed.prior);
            self.node.recycle(delayed.header);
        }
        self.leave_line(session);
    }
}

/// A request that was taken into its slot does not run.
fn not_begun(session: &Session, slot: SlotId, prior: Cached) {
    let mut slots = session.slots.borrow_mut();
    match prior.is_empty() {
        true => slots.abandon(slot),
        // What was done of it before stays done.
        false => slots.finish(slot, prior.iter().map(Option::as_ref)),
    }
}

#[cfg(test)]
mod tests {
    use dafs_protocol::{Stability, StateId};

    use super::*;

    fn read(extents: &[Extent]) -> Operation<'static> {
        let extents = ExtentList::new(extents).expect("extents");
        Operation::Read { state: StateId(1), extents }
    }

    fn write(extents: &[Extent]) -> Operation<'static> {
        let extents = ExtentList::new(extents).expect("extents");
        Operation::Write {
            state: StateId(1),
            extents,
            stability: Stability::Unstable,
            within: false,
        }
    }

    fn list(len: u32, count: u32) -> Extent {
        Extent { offset: 0, len, count, stride: 1 << 20 }
    }

    fn memory(operations: &[Operation<'_>], data_len: u32) -> usize {
        needs_of(operations, data_len, 1024).memory - REQUEST_BYTES
    }

    fn pages(operations: &[Operation<'_>]) -> usize {
        needs_of(operations, 0, 1024).pages
    }

    #[test]
    fn a_read_pins_whole_frames_and_a_write_takes_whole_pages() {
        assert_eq!(pages(&[read(&[Extent::one(65_535, 2)])]), 2 << 16);
        assert_eq!(pages(&[read(&[Extent::one(65_536, 4096)])]), 1 << 16);
        assert_eq!(pages(&[read(&[list(1, 1000)])]), 1000 << 16);
        assert_eq!(pages(&[read(&[list(2, 1000)])]), 2000 << 16);
        assert_eq!(pages(&[write(&[Extent::one(4095, 2)])]), 2 * 4096);
        assert_eq!(pages(&[write(&[list(1, 10)]), write(&[Extent::one(0, 1)])]), 11 * 4096);
        let append =
            Operation::Append { state: StateId(1), bytes: 1, stability: Stability::Unstable };
        assert_eq!(pages(&[append]), 2 * 4096);
    }

    #[test]
    fn a_read_of_one_piece_needs_what_a_chain_of_it_does() {
        for (offset, len) in [(0, 1), (65_535, 2), (4096, 4096), (3, 1 << 20), (1 << 50, u32::MAX)]
        {
            for segments_max in [1, 16, 1024] {
                let chain = needs_of(&[read(&[Extent::one(offset, len)])], 0, segments_max);
                assert_eq!(needs_of_read(offset, len, segments_max), chain, "{offset} {len}");
            }
        }
    }

    #[test]
    fn what_is_copied_takes_memory() {
        let large = Extent::one(0, 1 << 20);
        assert_eq!(memory(&[read(&[large])], 0), 0);
        assert_eq!(memory(&[read(&[list(1, 1000)])], 0), SCRATCH_BYTES);
        assert_eq!(memory(&[read(&[list(4096, 256)])], 0), 1 << 20);
        assert_eq!(memory(&[write(&[large])], 1 << 20), 0);
        let two = [write(&[large]), write(&[Extent::one(0, 1)])];
        assert_eq!(memory(&two, (1 << 20) + 1), (1 << 20) + SCRATCH_BYTES);
        let link = Operation::ReadLink { handle: dafs_protocol::FileHandle::PREVIOUS };
        assert_eq!(memory(&[link.clone(), link], 0), 2 * SCRATCH_BYTES);
    }

    #[test]
    fn what_is_in_more_pieces_than_a_transfer_takes_is_gathered_in_memory() {
        let needs =
            |operation, data_len| needs_of(&[operation], data_len, 16).memory - REQUEST_BYTES;
        let append =
            |bytes| Operation::Append { state: StateId(1), bytes, stability: Stability::Unstable };
        let (fits, many) = (15 * 4096, 64 << 10);
        assert_eq!([needs(append(fits), fits), needs(append(many), many)], [0, many as usize]);
        let writes = |len| write(&[Extent::one(1, len)]);
        assert_eq!([needs(writes(fits), fits), needs(writes(many), many)], [0, many as usize]);
        let hit = |len| needs_of_hit(0, len, 16).memory;
        assert_eq!([hit(16 * 4096), hit(16 * 4096 + 1)], [0, 2 * SCRATCH_BYTES]);
    }

    #[test]
    fn a_request_takes_no_more_memory_than_is_counted() {
        fn bytes<A, B, C, D, Future>(_: fn(A, B, C, D) -> Future) -> usize {
            size_of::<Future>()
        }
        let future = bytes(crate::chain::run);
        // The rest is for its header, decoded operations, results and allocator.
        assert!(future + 2048 <= REQUEST_BYTES, "{future}");
    }

    #[test]
    fn a_read_of_a_page_takes_no_more_memory_than_is_counted() {
        let record = size_of::<Option<crate::page_reads::PageRead>>();
        // The rest is for what the cache and the store know of it.
        assert!(record + 512 <= PAGE_READ_BYTES, "{record}");
    }

    #[test]
    fn what_cannot_be_is_counted_all_the_same() {
        let far = Extent { offset: u64::MAX, len: u32::MAX, count: u16::MAX.into(), stride: 1 };
        let huge = needs_of(&[read(&[far; 16]), write(&[far; 16])], u32::MAX, 1024);
        assert!(huge.pages > 1 << 40 && huge.memory > 1 << 30);
    }
}
