//! Reads by a named reference: no request of anybody, they have no slot and no reply.
//!
//! Those that have come together on a connection are answered together: what is the same for all of them is looked up once,
//! what they take of shares is taken once, and let go when the last of them has left.

use std::rc::Rc;

use dafs_fabric::{NamedAnswer, NamedAsk, QueuePair, SgList};
use dafs_message::{ConnId, NamedReads};
use dafs_unifier::{HeldPage, PageLook, PinnedPages};

use super::Worker;
use super::admission::{NEEDS_OF_PAGE, needs_of_hit};
use super::transfers::ReplyPins;
use crate::budget::Needs;
use crate::context::{Grant, Held};
use crate::metrics::count;
use crate::named::{Capability, Name, is_same};
use crate::opens::Open;
use crate::operations::file::{note_read, readable};
use crate::paths::{DataPin, FileData};
use crate::planted::{Defect, planted};
use crate::session::Session;

/// Answers that are let go together, at most: none of them is to hold the pages of many for long.
const TOGETHER: usize = 8;

/// Memory that is used again.
#[derive(Default)]
pub(super) struct NamedPlane {
    reads: NamedReads,
    answers: Vec<NamedAnswer>,
}

/// Answers of one connection that are to be posted, and what they hold.
#[derive(Default)]
struct Answers {
    list: Vec<NamedAnswer>,
    pages: PinnedPages,
    grant: Option<Grant>,
    /// Pages more for which that is.
    paid: usize,
    /// For so many it is taken at a time, if there is room.
    together: usize,
}

/// Who asks: the same as long as reads of one connection follow each other. Nothing else is done meanwhile, so what is
/// true of him stays so.
struct Asker {
    queue_pair: QueuePair,
    conn: ConnId,
    session: Option<Rc<Session>>,
    /// The session may have what it asks for.
    may_read: bool,
    last: Option<Opened>,
    /// Reads that were answered, those of one page, and bytes; and reads that were refused.
    answered: u64,
    of_pages: u64,
    bytes: usize,
    refused: u64,
}

/// What the last name is for.
struct Opened {
    name: Name,
    capability: Capability,
    open: Rc<Open>,
}

impl Worker {
    /// Answers what clients have asked for by name, as far as they may have it and the cache has all of it; the
    /// rest is refused, and asked for by a request. True if there was any.
    #[inline]
    pub(super) fn answer_named(&mut self) -> bool {
        let any = self.node.take_named(&mut self.named.reads);
        if any {
            self.answer_all_named();
        }
        any
    }

    #[inline(never)]
    fn answer_all_named(&mut self) {
        let NamedPlane { reads, answers } = std::mem::take(&mut self.named);
        // A few reads would take a small share for more than come.
        let together = TOGETHER.min(reads.asks().len());
        let mut answers = Answers { list: answers, together, ..Answers::default() };
        let mut asker: Option<Asker> = None;
        for ask in reads.asks() {
            if asker.as_ref().is_none_or(|asker| asker.queue_pair != ask.queue_pair) {
                self.end_asker(asker.take(), &mut answers);
                asker = self.asker(&reads, ask);
            }
            let Some(asker) = &mut asker else { continue };
            match self.find_named(asker, ask, &mut answers) {
                Some(bytes) => {
                    (asker.answered, asker.bytes) = (asker.answered + 1, asker.bytes + bytes)
                }
                None => {
                    asker.refused += 1;
                    self.end_answers(asker.conn, &mut answers);
                    self.node.refuse_named(asker.conn, ask.id);
                }
            }
        }
        self.end_asker(asker, &mut answers);
        self.named = NamedPlane { reads, answers: answers.list };
    }

    /// Something came from who asks by this connection, if that stands.
    fn asker(&mut self, reads: &NamedReads, ask: &NamedAsk) -> Option<Asker> {
        let conn = self.node.asker(reads, ask)?;
        let is_other = self.connections.note_heard(conn);
        let session = self.connections.bound_to(conn).cloned();
        let mut may_read = false;
        if let Some(session) = &session {
            self.heard(session, conn, is_other);
            let life = &session.life;
            may_read = self.stopping.is_none() && !life.has_ended() && !life.is_held_back();
        }
        Some(Asker {
            queue_pair: ask.queue_pair,
            conn,
            session,
            may_read,
            last: None,
            answered: 0,
            of_pages: 0,
            bytes: 0,
            refused: 0,
        })
    }

    /// Posts what is left of his answers, and counts.
    fn end_asker(&mut self, asker: Option<Asker>, answers: &mut Answers) {
        let Some(asker) = asker else { return };
        self.end_answers(asker.conn, answers);
        let counters = &self.context.counters;
        count(&counters.named_reads, asker.answered);
        count(&counters.named_refused, asker.refused);
        count(&counters.cache_hits, asker.of_pages);
        if let Some(session) = &asker.session {
            note_read(&self.context, session, asker.bytes);
            count(&session.counters.own_reads.named_reads, asker.answered);
            count(&session.counters.own_reads.named_refused, asker.refused);
        }
        self.data_plane.note(asker.answered + asker.refused);
    }

    /// Posts the answers: when the last one has left, all have.
    fn end_answers(&mut self, conn: ConnId, answers: &mut Answers) {
        let (pages, grant) = (std::mem::take(&mut answers.pages), answers.grant.take());
        answers.paid = 0;
        if !answers.list.is_empty() {
            let pins = ReplyPins::Pages { _pages: pages, grant };
            self.post_answers(conn, &mut answers.list, pins);
        }
    }

    fn post_answers(&mut self, conn: ConnId, list: &mut Vec<NamedAnswer>, pins: ReplyPins) {
        let token = self.transfers.leave(self.context.transfer(), conn, pins);
        self.node.answer_named(conn, list, Some(token));
    }

    /// Finds what is named, and has it among the answers: how many bytes that is.
    #[inline(always)]
    fn find_named(
        &mut self,
        asker: &mut Asker,
        ask: &NamedAsk,
        answers: &mut Answers,
    ) -> Option<usize> {
        let session = asker.session.as_ref().filter(|_| asker.may_read)?;
        let Opened { capability, open, .. } = self.opened(session, &mut asker.last, ask.name())?;
        let (offset, len) = (ask.offset, ask.len);
        if !capability.covers(offset, len) || len > session.attr.data_bytes_max {
            return None;
        }
        let FileData::Cached(file) = &open.file else { return None };
        let bytes = match file.try_read_page(offset, len as usize) {
            PageLook::Held(page) => {
                asker.of_pages += 1;
                let bytes = page.bytes();
                let data = self.keep_page((session, asker.conn), page, answers)?;
                answers.list.push(NamedAnswer { id: ask.id, data });
                bytes
            }
            PageLook::Lacking => return None,
            PageLook::Other => self.answer_pages((session, asker.conn), open, ask, answers)?,
        };
        if let Some(recorder) = &self.shared.recorder {
            recorder.read(file, offset, len as usize);
        }
        open.read_ahead(offset, len as usize, true);
        Some(bytes)
    }

    /// Holds a page with those of the answers before, if they can be let go together, and takes what it needs of shares.
    #[inline(always)]
    fn keep_page(
        &mut self,
        (session, conn): (&Rc<Session>, ConnId),
        page: HeldPage<'_>,
        answers: &mut Answers,
    ) -> Option<SgList> {
        if answers.paid == 0 || !answers.pages.takes(&page) {
            self.end_answers(conn, answers);
            let pages = NEEDS_OF_PAGE.pages * answers.together;
            let several = Needs { pages, ..NEEDS_OF_PAGE };
            let (grant, paid) = match self.try_admit(session, several) {
                Some(grant) => (grant, answers.together),
                None => (self.try_admit(session, NEEDS_OF_PAGE)?, 1),
            };
            (answers.grant, answers.paid) = (Some(grant), paid);
        }
        answers.paid -= 1;
        Some(SgList::from_iter([answers.pages.keep(page)]))
    }

    /// Answers with what is in several pages, as many as a transfer takes, behind the answers before.
    #[inline(never)]
    fn answer_pages(
        &mut self,
        (session, conn): (&Rc<Session>, ConnId),
        open: &Open,
        ask: &NamedAsk,
        answers: &mut Answers,
    ) -> Option<usize> {
        let (offset, len) = (ask.offset, ask.len);
        let lease = open.file.cached()?.try_read(offset, len as usize)?;
        let (data, bytes) = (lease.spans(), lease.len());
        if data.len() > self.context.segments_max {
            return None;
        }
        let needs = needs_of_hit(offset, len, self.context.segments_max);
        let grant = self.try_admit(session, needs)?;
        self.end_answers(conn, answers);
        let mut held = self.context.held();
        held.extend([Held::Data(DataPin::Lease(lease)), Held::Grant(grant)]);
        answers.list.push(NamedAnswer { id: ask.id, data });
        self.post_answers(conn, &mut answers.list, ReplyPins::All(held));
        Some(bytes)
    }

    /// What a name is for, if its client may read that by this reference: most come in a row.
    #[inline(always)]
    fn opened<'a>(
        &self,
        session: &Rc<Session>,
        last: &'a mut Option<Opened>,
        name: &[u8],
    ) -> Option<&'a Opened> {
        let name = name.try_into().ok()?;
        if last.as_ref().is_none_or(|last| !is_same(&last.name, name)) {
            *last = Some(self.look_for_name(session, name)?);
        }
        last.as_ref()
    }

    #[inline(never)]
    fn look_for_name(&self, session: &Rc<Session>, name: &Name) -> Option<Opened> {
        let capability = self.context.named_key.borrow().open(name)?;
        let is_own = capability.session == session.number() || planted(Defect::SessionNotLookedAt);
        let open = readable(session, capability.state).ok().filter(|_| is_own)?;
        Some(Opened { name: *name, capability, open })
    }

    /// What was told before is asked for again.
    pub(super) fn replace_named_key(&self) {
        let (mut key, now) = (self.context.named_key.borrow_mut(), self.clock.now());
        if key.is_old(now) {
            key.replace(self.shared.random(), now);
        }
    }
}
