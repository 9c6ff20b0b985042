//! Reads of a page that the cache lacks: nothing runs until it has come.

use std::rc::Rc;

use dafs_fabric::SgList;
use dafs_message::RequestId;
use dafs_protocol::{PlainRead, Status, encode_plain_read_reply};
use dafs_store::{Blocking, allow_blocking};
use dafs_unifier::{PageEnd, PinnedPage};

use super::Worker;
use super::admission::{needs_of_page_read, needs_of_read};
use super::requests::Answer;
use crate::delayed::{Cached, Delayed};
use crate::metrics::Kind;
use crate::opens::Open;
use crate::operations::file::note_read;
use crate::page_reads::PageRead;
use crate::planted::{Defect, planted};
use crate::session::Session;

impl Worker {
    /// Begins to read in the page of a read, if that is all that it lacks, and what it needs is there.
    #[inline(never)]
    pub(super) fn try_read_in(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        read: &PlainRead,
        open: Rc<Open>,
    ) -> Answer {
        let is_known = read.head.cred.0 == 0 || session.identity(read.head.cred).is_ok();
        let Some(file) = open.file.cached().filter(|_| is_known) else { return Answer::None };
        if session.life.has_ended() || planted(Defect::HeldTooShort) {
            return Answer::None;
        }
        let Some(grant) = self.try_admit(session, needs_of_page_read()) else {
            return Answer::None;
        };
        let start = self.shared.process.now();
        self.begins(session.id);
        let (waiter, number) = self.page_reads.next();
        let is_begun = file.read_page_then((read.offset, read.len as usize), waiter, number);
        allow_blocking(Blocking::None);
        if !is_begun {
            return Answer::None;
        }
        session.set_target(read.head.slot, id);
        self.page_reads.wait(PageRead { read: *read, open, start, grant });
        Answer::Later
    }

    /// A read that waited for its page has ended.
    #[inline(always)]
    pub(super) fn page_read_ended(&mut self, number: usize, end: PageEnd) {
        let Some(read) = self.page_reads.take(number) else { return };
        match end {
            PageEnd::Here(page) => self.page_came(read, page),
            PageEnd::Failed(status) => self.page_failed(read, status),
            PageEnd::Again => self.read_again(read),
        }
    }

    #[inline(always)]
    fn page_came(&mut self, PageRead { read, open, start, grant }: PageRead, page: PinnedPage) {
        let (head, offset, len) = (read.head, read.offset, read.len as usize);
        let session = grant.session();
        if let (Some(recorder), Some(file)) = (&self.shared.recorder, open.file.cached()) {
            recorder.read(file, offset, len);
        }
        note_read(&self.context, session, page.bytes());
        open.read_ahead(offset, len, false);
        session.slots.borrow_mut().finish(head.slot, []);
        let target = session.take_target(head.slot);
        self.shared.note_time(Kind::Reads, start);
        let Some(id) = target else { return };
        // A page is no longer than a `u32` tells.
        let outcome = (page.bytes() as u32, page.end_of_file());
        let header = encode_plain_read_reply(head.slot, head.sequence, outcome);
        if !self.node.reply_at_once(id, &header, || page.piece()) {
            self.reply_page(id, &header, page, grant);
        }
    }

    #[inline(never)]
    fn page_failed(&mut self, PageRead { read, start, grant, .. }: PageRead, status: Status) {
        let session = grant.session();
        session.slots.borrow_mut().finish(read.head.slot, []);
        let target = session.take_target(read.head.slot);
        self.shared.note_time(Kind::Reads, start);
        let Some(id) = target else { return };
        self.answer_read(id, read.head, Err(status), SgList::new(), (None, grant));
    }

    /// What it asked for has changed meanwhile: it begins anew, as any request.
    #[inline(never)]
    fn read_again(&mut self, PageRead { read, grant, .. }: PageRead) {
        let session = grant.session().clone();
        let head = read.head;
        // That of who asked last.
        let (Some(id), Ok(bytes)) = (session.take_target(head.slot), read.encode()) else { return };
        session.set_target(head.slot, id);
        drop(grant);
        let mut header = self.context.header();
        header.extend_from_slice(&bytes); // not payload: a request
        let needs = needs_of_read(read.offset, read.len, self.context.segments_max);
        let (prior, plain) = (Cached::new(), Some(read));
        let request = Delayed { head, id, header, data_len: 0, prior, plain, needs };
        self.begin_or_delay(&session, request);
    }
}
