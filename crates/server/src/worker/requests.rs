//! Requests of bound connections: a cached read at once, all else as a task.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use dafs_fabric::SgList;
use dafs_message::RequestId;
use dafs_protocol::{RequestHead, SessionId, Status, Verdict, decode_request, encode_results};
use dafs_store::{Blocking, allow_blocking};

use super::Worker;
use super::admission::{needs_of, needs_of_hit};
use crate::chain;
use crate::context::{Grant, Held};
use crate::delayed::{Cached, Delayed, PlainRead};
use crate::metrics::{CACHED_READS_PER_SAMPLE, Kind, count};
use crate::plain_read::Hit;
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::shared::tick;

impl Worker {
    pub(super) fn chain(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        header: Vec<u8>,
        (data_len, pushed): (u32, bool),
    ) {
        self.heard(session, id.conn());
        if self.stopping.is_some() {
            // The next server is asked again.
            return self.node.recycle(header);
        }
        let request = match decode_request(&header) {
            Ok(request) => request,
            Err(error) => return self.violation(id.conn(), &error.to_string()),
        };
        let number = self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        count(&session.counters.requests, 1);
        let head = request.head;
        let is_compared =
            !planted(Defect::ResentWithOtherData) && !planted(Defect::LengthsNotCompared);
        let compared = if is_compared { data_len } else { 0 };
        let verdict =
            session.slots.borrow_mut().begin(head.slot, head.sequence, request.hash, compared);
        let prior: Cached = match verdict {
            Verdict::New => Vec::new(),
            Verdict::Replay(results) => {
                tick(&self.shared.counters.replays);
                count(&session.counters.replays, 1);
                if planted(Defect::ReplayStartedTwice) {
                    let kept = results.iter().map(Option::as_ref);
                    session.slots.borrow_mut().finish(head.slot, kept);
                }
                if planted(Defect::ReplyCacheSkipped) { Vec::new() } else { results }
            }
            Verdict::Running if planted(Defect::AnswerGoesAstray) => return,
            Verdict::Running => {
                self.resent(session, (head.slot, id), pushed);
                drop(request);
                return self.node.recycle(header);
            }
            Verdict::Refuse(status) => return self.refuse(id, head, status),
        };
        let is_sample = number.is_multiple_of(CACHED_READS_PER_SAMPLE);
        let start = is_sample.then(|| self.shared.process.now());
        let is_plain = prior.is_empty() && data_len == 0;
        let plain = if is_plain { PlainRead::of(&request.operations) } else { None };
        if let Some((plain, extents)) = plain
            && let Some(mut hit) = plain.try_read(&self.context, session)
            && let Some(grant) =
                self.try_admit(session, needs_of_hit(extents, self.context.segments_max))
        {
            hit.held.push(Held::Grant(grant));
            self.read_hit(session, id, head, hit);
            drop(request);
            if let Some(start) = start {
                self.shared.note_time(Kind::CachedReads, start);
            }
            return self.node.recycle(header);
        }
        let needs = needs_of(&request.operations, data_len, self.context.segments_max);
        let plain = plain.map(|(plain, _)| plain);
        drop(request);
        session.set_target(head.slot, id);
        let request = Delayed { head, id, header, data_len, prior, plain, needs };
        match pushed {
            true => self.begin_or_decline(session, request),
            false => self.begin_or_delay(session, request),
        }
    }

    /// Starts a request that has what it needs.
    pub(super) fn begin(&mut self, session: &Rc<Session>, request: Delayed, grant: Grant) {
        let alone = !self.more_events && self.chains() == 0;
        self.note_company(session.id, alone);
        allow_blocking(self.blocking(alone));
        let plain = request.plain;
        match plain.and_then(|plain| plain.miss(&self.context, session, request.head)) {
            Some(miss) => {
                self.node.recycle(request.header);
                self.tasks.spawn_miss(miss.with(grant));
            }
            None => {
                let (context, session) = (self.context.clone(), session.clone());
                self.tasks.spawn(chain::run(context, session, request, grant));
            }
        }
        allow_blocking(Blocking::None);
    }

    /// Tasks beside write-back.
    pub(super) fn chains(&self) -> usize {
        self.tasks.len() - self.context.writing_back.get()
    }

    /// Remembers whether requests, and sessions, come side by side.
    fn note_company(&mut self, session: SessionId, alone: bool) {
        self.company.note(session, alone, self.clock.now());
    }

    /// How far the store may block this thread.
    pub(super) fn blocking(&self, alone: bool) -> Blocking {
        self.company.blocking(alone, self.clock.now())
    }

    /// Answers a read that the cache holds, in the pass that received it.
    fn read_hit(&mut self, session: &Rc<Session>, id: RequestId, head: RequestHead, hit: Hit) {
        session.slots.borrow_mut().finish(head.slot, []);
        let mut bytes = self.context.header();
        encode_results(head.slot, head.sequence, Ok(&[hit.result()]), &mut bytes);
        self.reply(id, bytes, hit.spans, hit.held);
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
