//! A request that is one READ of one piece, and nothing else, as most are: where it is neither answered at once
//! from the cache nor waits for one page, a task that knows of nothing else.
//!
//! What is not as it should be (no such open, a credential that is not there, a file without the
//! server's cache) is left to the [`chain`](crate::chain), whose answer is the same in all else.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll};
use std::time::Duration;

use dafs_fabric::SgList;
use dafs_message::RequestId;
use dafs_protocol::{PlainRead, RequestHead, Status, encode_plain_read_reply, encode_results};
use dafs_unifier::{PinnedBytes, PinnedRead, Reading};

use crate::context::{Action, Context, Grant, Held};
use crate::metrics::Kind;
use crate::opens::Open;
use crate::operations::file::{note_read, read_result, readable};
use crate::paths::DataPin;
use crate::planted::{Defect, planted};
use crate::session::Session;

impl Miss {
    /// To run as a task, with what the request took, until its reply has left; `None`: it is for a
    /// chain to say what is wrong with it.
    #[inline(always)]
    pub(crate) fn of(
        read: &PlainRead,
        context: &Rc<Context>,
        session: &Rc<Session>,
        grant: &mut Option<Grant>,
    ) -> Option<Miss> {
        let head = read.head;
        // That no file is so long has been checked when it was decoded.
        if read.len > session.attr.data_bytes_max {
            return None;
        }
        session.identity(head.cred).ok()?;
        let open = readable(session, read.state).ok()?;
        let (offset, len) = (read.offset, read.len as usize);
        let reading = open.file.cached()?.read(offset, len);
        let (context, session) = (context.clone(), session.clone());
        let start = context.shared.process.now();
        let grant = grant.take();
        Some(Miss { context, session, head, open, offset, len, reading, start, grant })
    }
}

/// A read for which the store must be asked: a future that replies.
pub(crate) struct Miss {
    context: Rc<Context>,
    session: Rc<Session>,
    head: RequestHead,
    open: Rc<Open>,
    offset: u64,
    len: usize,
    reading: Reading,
    /// When it began.
    start: Duration,
    grant: Option<Grant>,
}

impl Miss {
    #[inline(always)]
    fn reply(&mut self, outcome: Result<PinnedBytes, Status>) {
        let told = match &outcome {
            Ok(PinnedBytes::Page(page)) => Some((page.bytes(), false)),
            Ok(PinnedBytes::Read(lease)) => Some((lease.len(), lease.was_coming())),
            Err(_) => None,
        };
        let Miss { context, session, head, open, offset, len, .. } = self;
        if let Some((bytes, was_coming)) = told {
            if let (Some(recorder), Some(file)) = (&context.shared.recorder, open.file.cached()) {
                recorder.read(file, *offset, *len);
            }
            note_read(context, session, bytes);
            open.read_ahead(*offset, *len, was_coming);
        }
        session.slots.borrow_mut().finish(head.slot, []);
        let target = session.take_target(head.slot);
        context.shared.note_time(Kind::Reads, self.start);
        let (Some(id), Some(grant)) = (target, self.grant.take()) else { return };
        let page = match outcome {
            Ok(PinnedBytes::Page(page)) if !planted(Defect::HeldTooShort) => Ok(page),
            Ok(PinnedBytes::Page(page)) => Err(Ok(page.into_read(false))),
            Ok(PinnedBytes::Read(lease)) if planted(Defect::HeldTooShort) => Err(Ok(lease)),
            Ok(PinnedBytes::Read(lease)) => lease.into_page().map_err(Ok),
            Err(status) => Err(Err(status)),
        };
        let action = match page {
            Ok(page) => {
                // A page is no longer than a `u32` tells.
                let outcome = (page.bytes() as u32, page.end_of_file());
                let header = encode_plain_read_reply(head.slot, head.sequence, outcome);
                Action::ReplyPage { id, header, page, grant }
            }
            Err(outcome) => self.reply_of(id, outcome, grant),
        };
        self.context.actions.borrow_mut().push_back(action);
    }

    /// What is in several pages, or failed.
    fn reply_of(&self, id: RequestId, outcome: Result<PinnedRead, Status>, grant: Grant) -> Action {
        let (mut data, mut held) = (SgList::new(), self.context.held());
        let result = outcome.and_then(|lease| {
            data = lease.spans();
            let result = read_result(lease.len(), lease.end_of_file());
            held.push(Held::Data(DataPin::Lease(lease)));
            result
        });
        let mut header = self.context.header();
        encode_results(self.head.slot, self.head.sequence, Ok(&[result]), &mut header);
        held.push(Held::Grant(grant));
        Action::Reply { id, header, data, held }
    }
}

impl Future for Miss {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<()> {
        let miss = self.get_mut();
        miss.reading.poll_pinned(context).map(|outcome| miss.reply(outcome))
    }
}
