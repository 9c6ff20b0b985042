//! Reads by a named reference: no request of anybody, they have no slot and no reply.
//!
//! Those that have come together on a connection are answered together: what they take of shares is taken once, and let go
//! when the last of them has left.

use std::rc::Rc;

use dafs_fabric::SgList;
use dafs_message::Named;
use dafs_unifier::{PageLook, PinnedPage};

use super::Worker;
use super::admission::{NEEDS_OF_PAGE, needs_of_hit};
use super::transfers::ReplyPins;
use crate::budget::Needs;
use crate::context::Held;
use crate::metrics::count;
use crate::opens::Open;
use crate::operations::file::{note_read, readable};
use crate::paths::{DataPin, FileData};
use crate::planted::{Defect, planted};
use crate::session::Session;

/// Answers that are let go together: as many as one list of what is held, that is used again, has room for.
const TOGETHER: usize = 7;

/// Answers of one connection, of which the last one is to be posted when it is known that it is.
#[derive(Default)]
struct Answers {
    last: Option<(Named, SgList)>,
    held: Vec<Held>,
    /// Reads of a page for which shares are taken.
    paid: usize,
}

/// What is read by name, pinned.
#[allow(clippy::large_enum_variant, reason = "it lives for a call that is inlined")]
enum Found {
    Page(PinnedPage),
    /// Of several pages, and what was taken for them.
    Pages(SgList, [Held; 2]),
}

impl Worker {
    /// Answers what clients have asked for by name, as far as they may have it and the cache has all of it; the
    /// rest is refused, and asked for by a request. True if there was any.
    #[inline]
    pub(super) fn answer_named(&mut self) -> bool {
        match self.node.next_named() {
            Some(first) => {
                self.answer_all_named(first);
                true
            }
            None => false,
        }
    }

    #[inline(never)]
    fn answer_all_named(&mut self, first: Named) {
        let (mut answers, mut served, mut refused) = (Answers::default(), 0, 0);
        let mut next = Some(first);
        let mut conn = None;
        while let Some(named) = next {
            if conn.replace(named.conn()) != Some(named.conn()) || answers.held.len() > TOGETHER {
                self.end_answers(&mut answers);
            }
            match self.find_named(&named, &mut answers) {
                Some(data) => {
                    served += 1;
                    if let Some((before, mut data)) = answers.last.replace((named, data)) {
                        self.node.answer_named(&before, &mut data, None);
                    }
                }
                None => {
                    refused += 1;
                    if let Some(session) = self.connections.bound_to(named.conn()) {
                        count(&session.counters.own_reads.named_refused, 1);
                    }
                    self.end_answers(&mut answers);
                    self.node.refuse_named(&named);
                }
            }
            next = self.node.next_named();
        }
        self.end_answers(&mut answers);
        count(&self.context.counters.named_reads, served);
        count(&self.context.counters.named_refused, refused);
        self.data_plane.note(served + refused);
    }

    /// Posts the last answer: when it has left, all have.
    fn end_answers(&mut self, answers: &mut Answers) {
        let Answers { last, held, .. } = std::mem::take(answers);
        let Some((named, mut data)) = last else { return self.context.recycle_held(held) };
        let (order, pins) = (self.context.transfer(), ReplyPins::All(held));
        let token = self.transfers.leave(order, named.conn(), pins);
        self.node.answer_named(&named, &mut data, Some(token));
    }

    /// What is named, pinned, and taken of the session's share as an answer to a READ is.
    #[inline(always)]
    fn find_named(&mut self, named: &Named, answers: &mut Answers) -> Option<SgList> {
        let conn = named.conn();
        let is_other = self.connections.note_heard(conn);
        let session = self.connections.bound_to(conn)?.clone();
        self.heard(&session, conn, is_other);
        if self.stopping.is_some() || session.life.has_ended() || session.life.is_held_back() {
            return None;
        }
        let open = self.named_open(&session, named)?;
        let (offset, len) = (named.offset(), named.bytes());
        let (found, bytes) = self.look_for(&session, &open, (offset, len))?;
        if answers.held.capacity() == 0 {
            answers.held = self.context.held();
        }
        let data = match found {
            Found::Page(page) => {
                self.pay(&session, answers)?;
                let data = SgList::from_iter([page.span()]);
                answers.held.push(Held::Data(DataPin::Page(page)));
                data
            }
            Found::Pages(data, held) => {
                answers.held.extend(held);
                data
            }
        };
        if let (Some(recorder), Some(file)) = (&self.shared.recorder, open.file.cached()) {
            recorder.read(file, offset, len as usize);
        }
        note_read(&self.context, &session, bytes);
        count(&session.counters.own_reads.named_reads, 1);
        open.read_ahead(offset, len as usize, true);
        Some(data)
    }

    /// What the cache has all of, pinned, and how many bytes that is.
    #[inline(always)]
    fn look_for(
        &self,
        session: &Rc<Session>,
        open: &Rc<Open>,
        (offset, len): (u64, u32),
    ) -> Option<(Found, usize)> {
        let FileData::Cached(file) = &open.file else { return None };
        match file.try_read_page(offset, len as usize) {
            PageLook::Held(page) => {
                count(&self.context.counters.cache_hits, 1);
                let bytes = page.bytes();
                Some((Found::Page(page.keep()), bytes))
            }
            PageLook::Lacking => None,
            PageLook::Other => self.look_for_pages(session, open, (offset, len)),
        }
    }

    /// The same of what is in several pages, as many as a transfer takes.
    #[inline(never)]
    fn look_for_pages(
        &self,
        session: &Rc<Session>,
        open: &Rc<Open>,
        (offset, len): (u64, u32),
    ) -> Option<(Found, usize)> {
        let lease = open.file.cached()?.try_read(offset, len as usize)?;
        let (data, bytes) = (lease.spans(), lease.len());
        if data.len() > self.context.segments_max {
            return None;
        }
        let needs = needs_of_hit(offset, len, self.context.segments_max);
        let grant = self.try_admit(session, needs)?;
        Some((Found::Pages(data, [Held::Data(DataPin::Lease(lease)), Held::Grant(grant)]), bytes))
    }

    /// Takes what a read of a page needs, or several do: what the answers of a connection take is one session's.
    #[inline]
    fn pay(&self, session: &Rc<Session>, answers: &mut Answers) -> Option<()> {
        if answers.paid == 0 {
            let pages = NEEDS_OF_PAGE.pages;
            let several = Needs { pages: pages * TOGETHER, ..NEEDS_OF_PAGE };
            let (grant, paid) = match self.try_admit(session, several) {
                Some(grant) => (grant, TOGETHER),
                None => (self.try_admit(session, NEEDS_OF_PAGE)?, 1),
            };
            answers.held.push(Held::Grant(grant));
            answers.paid = paid;
        }
        answers.paid -= 1;
        Some(())
    }

    /// The open that it is for, if its client may read that by this reference.
    #[inline(always)]
    fn named_open(&self, session: &Rc<Session>, named: &Named) -> Option<Rc<Open>> {
        let capability = self.context.named_key.borrow().open(named.name())?;
        let is_own = capability.session == session.number() || planted(Defect::SessionNotLookedAt);
        let (offset, len) = (named.offset(), named.bytes());
        let may = is_own && capability.covers(offset, len) && len <= session.attr.data_bytes_max;
        readable(session, capability.state).ok().filter(|_| may)
    }

    /// What was told before is asked for again.
    pub(super) fn replace_named_key(&self) {
        let (mut key, now) = (self.context.named_key.borrow_mut(), self.clock.now());
        if key.is_old(now) {
            key.replace(self.shared.random(), now);
        }
    }
}
