//! Requests of bound connections: a cached read at once, one of a page that lacks when it has come, all
//! else as a task.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use dafs_fabric::SgList;
use dafs_message::RequestId;
use dafs_protocol::{
    DecodeError, OpResult, PLAIN_READ_REPLY_BYTES, PlainRead, RequestHead, SessionId, Status,
    Verdict, decode_plain_read, decode_request, encode_plain_read_reply, encode_results,
};
use dafs_store::{Blocking, allow_blocking};
use dafs_unifier::{PageLook, PinnedPage};

use super::Worker;
use super::admission::{NEEDS_OF_PAGE, needs_of, needs_of_hit, needs_of_read};
use super::at_once::note_hit;
use super::transfers::ReplyPins;
use crate::budget::Needs;
use crate::chain;
use crate::context::{Grant, Held};
use crate::delayed::Delayed;
use crate::metrics::{CACHED_READS_PER_SAMPLE, Kind, count};
use crate::opens::Open;
use crate::operations::file::{note_read, read_result, readable};
use crate::paths::{DataPin, FileData, Lent};
use crate::plain_read::Miss;
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::shared::tick;

/// Whether a read was answered where it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was not, and nothing was done.
    None,
    Now,
    /// Its page is read in, and then it is.
    Later,
}

impl From<bool> for Answer {
    fn from(is_answered: bool) -> Answer {
        if is_answered { Answer::Now } else { Answer::None }
    }
}

impl Worker {
    #[inline(always)]
    pub(super) fn chain(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        header: Vec<u8>,
        (data_len, pushed): (u32, bool),
    ) {
        if !self.hears(session, id) {
            return self.node.recycle(header);
        }
        let read = decode_plain_read(&header);
        let (head, hash, needs) = match &read {
            Some(read) => (read.head, read.hash(), None),
            None => match self.look_into(session, &header, data_len) {
                Ok((head, hash, needs)) => (head, hash, Some(needs)),
                Err(error) => return self.violation(id.conn(), &error.to_string()),
            },
        };
        let (verdict, number) = self.judge(session, head, hash, data_len);
        if matches!(verdict, Verdict::New)
            && data_len == 0
            && let Some(read) = &read
            && self.answer_now(session, id, read, number) != Answer::None
        {
            return self.node.recycle(header);
        }
        let needs = needs.or(read.as_ref().map(|read| self.needs_of(read))).unwrap_or_default();
        let (prior, plain) = (Vec::new(), read.filter(|_| data_len == 0));
        let request = Delayed { head, id, header, data_len, prior, plain, needs };
        match verdict {
            Verdict::New => self.begin_new(session, request, pushed),
            verdict => self.begin_again(session, request, (verdict, number), pushed),
        }
    }

    /// As [`chain`](Self::chain), of a read without data whose header is where it was received.
    #[inline]
    pub(super) fn plain_read(&mut self, session: &Rc<Session>, id: RequestId, read: PlainRead) {
        if !self.hears(session, id) {
            return;
        }
        let (verdict, number) = self.judge(session, read.head, read.hash(), 0);
        let is_new = matches!(verdict, Verdict::New);
        if !is_new || self.answer_now(session, id, &read, number) == Answer::None {
            self.begin_plain(session, id, read, (verdict, number));
        }
    }

    /// One that is not answered at once.
    #[inline(never)]
    fn begin_plain(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        read: PlainRead,
        (verdict, number): (Verdict, u64),
    ) {
        // Another message may be where it was received.
        let Ok(bytes) = read.encode() else { return };
        let (mut header, needs) = (self.context.header(), self.needs_of(&read));
        header.extend_from_slice(&bytes); // not payload: a request
        let (head, prior, plain) = (read.head, Vec::new(), Some(read));
        let request = Delayed { head, id, header, data_len: 0, prior, plain, needs };
        match verdict {
            Verdict::New => self.begin_new(session, request, false),
            verdict => self.begin_again(session, request, (verdict, number), false),
        }
    }

    fn needs_of(&self, read: &PlainRead) -> Needs {
        needs_of_read(read.offset, read.len, self.context.segments_max)
    }

    /// Something came on a connection of a session. False: the next server is asked again.
    #[inline(always)]
    fn hears(&mut self, session: &Rc<Session>, id: RequestId) -> bool {
        let is_other = self.connections.note_heard(id.conn());
        self.heard(session, id.conn(), is_other);
        self.stopping.is_none()
    }

    /// Counts a request, and what its slot says of it.
    #[inline(always)]
    fn judge(
        &self,
        session: &Session,
        head: RequestHead,
        hash: u64,
        data_len: u32,
    ) -> (Verdict, u64) {
        let counted = &self.context.counters.requests;
        count(counted, 1);
        count(&session.counters.requests, 1);
        let is_compared =
            !planted(Defect::ResentWithOtherData) && !planted(Defect::LengthsNotCompared);
        let compared = if is_compared { data_len } else { 0 };
        let verdict = session.slots.borrow_mut().begin(head.slot, head.sequence, hash, compared);
        (verdict, counted.load(Ordering::Relaxed))
    }

    /// Answers a read of what is there, at once, or begins to read in its page, if it can.
    #[inline(always)]
    fn answer_now(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        read: &PlainRead,
        number: u64,
    ) -> Answer {
        let is_sample = number.is_multiple_of(CACHED_READS_PER_SAMPLE);
        let start = is_sample.then(|| self.shared.process.now());
        let answer = self.try_answer(session, id, read);
        if answer == Answer::Now
            && let Some(start) = start
        {
            self.shared.note_time(Kind::CachedReads, start);
        }
        answer
    }

    /// What came before, or may not come.
    #[inline(never)]
    fn begin_again(
        &mut self,
        session: &Rc<Session>,
        mut request: Delayed,
        (verdict, number): (Verdict, u64),
        pushed: bool,
    ) {
        let (head, id) = (request.head, request.id);
        match verdict {
            Verdict::New => {}
            Verdict::Replay(results) => {
                tick(&self.shared.counters.replays);
                count(&session.counters.replays, 1);
                if planted(Defect::ReplayStartedTwice) {
                    let kept = results.iter().map(Option::as_ref);
                    session.slots.borrow_mut().finish(head.slot, kept);
                }
                if !planted(Defect::ReplyCacheSkipped) {
                    request.prior = results;
                }
            }
            Verdict::Running if planted(Defect::AnswerGoesAstray) => return,
            Verdict::Running => {
                self.resent(session, (head.slot, id), pushed);
                return self.node.recycle(request.header);
            }
            Verdict::Refuse(status) => return self.refuse(id, head, status),
        }
        request.plain = request.plain.filter(|_| request.prior.is_empty());
        if let Some(read) = request.plain
            && self.answer_now(session, id, &read, number) != Answer::None
        {
            return self.node.recycle(request.header);
        }
        self.begin_new(session, request, pushed);
    }

    /// Starts a request, now or when it may.
    #[inline(never)]
    fn begin_new(&mut self, session: &Rc<Session>, request: Delayed, pushed: bool) {
        session.set_target(request.head.slot, request.id);
        match pushed {
            true => self.begin_or_decline(session, request),
            false => self.begin_or_delay(session, request),
        }
    }

    /// Of a request that is no plain read: its head and hash, and what it needs. What it tells beside is noted, also
    /// where it comes again: that says nothing new.
    #[inline(never)]
    fn look_into(
        &self,
        session: &Session,
        header: &[u8],
        data_len: u32,
    ) -> Result<(RequestHead, u64, Needs), DecodeError> {
        let request = decode_request(header)?;
        if let Some(told) = &request.told {
            let new = session.counters.own_reads.tell(told, self.shared.process.now());
            self.shared.counters.all_told.add(&new);
        }
        let needs = needs_of(&request.operations, data_len, self.context.segments_max);
        Ok((request.head, request.hash, needs))
    }

    /// Starts a request that has what it needs.
    pub(super) fn begin(&mut self, session: &Rc<Session>, request: Delayed, grant: Grant) {
        self.begins(session.id);
        let mut grant = Some(grant);
        let plain = request.plain.as_ref();
        if let Some(miss) =
            plain.and_then(|read| Miss::of(read, &self.context, session, &mut grant))
        {
            self.tasks.spawn_miss(miss);
            self.node.recycle(request.header);
        } else if let Some(grant) = grant {
            let (context, session) = (self.context.clone(), session.clone());
            self.tasks.spawn(chain::run(context, session, request, grant));
        }
        allow_blocking(Blocking::None);
    }

    /// Requests under way: tasks beside write-back, and reads that wait for a page.
    pub(super) fn chains(&self) -> usize {
        self.tasks.len() + self.page_reads.len() - self.context.writing_back.get()
    }

    /// A request of a session begins, that may block this thread as long as said.
    #[inline(always)]
    pub(super) fn begins(&mut self, session: SessionId) {
        let alone = !self.node.has_event() && self.chains() == 0;
        self.company.note(session, alone, self.clock.now());
        allow_blocking(self.blocking(alone));
    }

    /// How far the store may block this thread.
    pub(super) fn blocking(&self, alone: bool) -> Blocking {
        self.company.blocking(alone, self.clock.now())
    }

    /// Answers a read of what is there, in the pass that received it.
    #[inline]
    fn try_answer(&mut self, session: &Rc<Session>, id: RequestId, read: &PlainRead) -> Answer {
        if read.len > session.attr.data_bytes_max {
            return Answer::None;
        }
        let (head, offset, len) = (read.head, read.offset, read.len as usize);
        let Ok(open) = readable(session, read.state) else { return Answer::None };
        let FileData::Cached(file) = &open.file else {
            return self.try_answer_paged(session, id, read, &open).into();
        };
        let page = match file.try_read_page(offset, len) {
            PageLook::Held(page) if !planted(Defect::HeldTooShort) => page,
            PageLook::Lacking => return self.try_read_in(session, id, read, open.clone()),
            _ => return self.try_answer_pages(session, id, read, &open).into(),
        };
        // A page is no longer than a `u32` tells.
        let outcome = (page.bytes() as u32, page.end_of_file());
        let header = encode_plain_read_reply(head.slot, head.sequence, outcome);
        let Some(grant) = self.try_admit(session, NEEDS_OF_PAGE) else { return Answer::None };
        count(&self.context.counters.cache_hits, 1);
        self.note_hit(session, &open, read, page.bytes());
        self.reply_page(id, &header, page.keep(), grant);
        Answer::Now
    }

    /// Replies with bytes in one page.
    #[inline(always)]
    pub(super) fn reply_page(
        &mut self,
        id: RequestId,
        header: &[u8; PLAIN_READ_REPLY_BYTES],
        page: PinnedPage,
        grant: Grant,
    ) {
        let mut spans = SgList::from_iter([page.span()]);
        let pins = ReplyPins::Page { _page: page, grant: Some(grant) };
        let token = self.transfers.leave(self.context.transfer(), id.conn(), pins);
        if self.node.reply_small(id, header, &mut spans, token) {
            self.handed_over(id.conn(), token);
        }
    }

    /// As [`try_answer`](Self::try_answer), of what is in several pages.
    fn try_answer_pages(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        read: &PlainRead,
        open: &Rc<Open>,
    ) -> bool {
        let FileData::Cached(file) = &open.file else { return false };
        let Some(lease) = file.try_read(read.offset, read.len as usize) else { return false };
        let needs = needs_of_hit(read.offset, read.len, self.context.segments_max);
        let Some(grant) = self.try_admit(session, needs) else { return false };
        self.note_hit(session, open, read, lease.len());
        let result = read_result(lease.len(), lease.end_of_file());
        let (spans, pin) = (lease.spans(), Some(DataPin::Lease(lease)));
        self.answer_read(id, read.head, result, spans, (pin, grant));
        true
    }

    /// The server's cache answers a read.
    #[inline]
    fn note_hit(&self, session: &Session, open: &Rc<Open>, read: &PlainRead, bytes: usize) {
        note_hit(&self.context, session, open, read, bytes);
        session.slots.borrow_mut().finish(read.head.slot, []);
    }

    /// As [`try_answer`](Self::try_answer), of a file without the server's cache.
    fn try_answer_paged(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        read: &PlainRead,
        open: &Open,
    ) -> bool {
        let Some(lent) = open.file.try_read(read.offset, read.len as usize) else { return false };
        let needs = needs_of_hit(read.offset, read.len, self.context.segments_max);
        let Some(grant) = self.try_admit(session, needs) else { return false };
        note_read(&self.context, session, lent.len);
        session.slots.borrow_mut().finish(read.head.slot, []);
        let Lent { spans, len, end_of_file, held } = lent;
        self.answer_read(id, read.head, read_result(len, end_of_file), spans, (held, grant));
        true
    }

    pub(super) fn answer_read(
        &mut self,
        id: RequestId,
        head: RequestHead,
        result: OpResult,
        spans: SgList,
        (pin, grant): (Option<DataPin>, Grant),
    ) {
        let mut held = self.context.held();
        held.extend(pin.map(Held::Data));
        held.push(Held::Grant(grant));
        let mut bytes = self.context.header();
        encode_results(head.slot, head.sequence, Ok(&[result]), &mut bytes);
        self.reply(id, bytes, spans, held);
    }

    fn refuse(&mut self, id: RequestId, head: RequestHead, status: Status) {
        tick(&self.shared.counters.refused);
        self.answer_status(id, head, status);
    }

    /// Answers that nothing of a request was done.
    pub(super) fn answer_status(&mut self, id: RequestId, head: RequestHead, status: Status) {
        let mut bytes = self.context.header();
        encode_results(head.slot, head.sequence, Err(status), &mut bytes);
        self.reply(id, bytes, SgList::new(), Vec::new());
    }
}
