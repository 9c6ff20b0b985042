//! Reads that the cache answers where they were received: they are never requests of anybody.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_message::AtOnce;
use dafs_protocol::{PlainRead, decode_plain_read, encode_plain_read_reply};
use dafs_unifier::PageLook;

use super::Worker;
use super::connections::Connections;
use crate::context::Context;
use crate::metrics::{CACHED_READS_PER_SAMPLE, Kind, count};
use crate::opens::Open;
use crate::operations::file::{note_read, readable};
use crate::paths::FileData;
use crate::planted::{Defect, planted};
use crate::session::Session;

impl Worker {
    /// Answers what has come as short messages, as far as that can be done at once; the rest begins. True if there
    /// was any.
    #[inline(never)]
    pub(super) fn answer_shorts(&mut self) -> bool {
        let (may, now) = (self.stopping.is_none(), self.clock.now());
        let mut any = false;
        loop {
            let (connections, context) = (&mut self.connections, &*self.context);
            let short = self.node.next_short_but(|at_once, header| {
                let is_answered = may && answer(at_once, header, (connections, context), now);
                any |= is_answered;
                is_answered
            });
            let Some(short) = short else { return any };
            self.handle_short(short);
            any = true;
        }
    }
}

/// Answers a read of bytes in one page that is there. False: nothing was done.
#[inline(always)]
fn answer(
    at_once: AtOnce<'_>,
    header: &[u8],
    (connections, context): (&mut Connections, &Context),
    now: Duration,
) -> bool {
    let Some(read) = decode_plain_read(header) else { return false };
    let conn = at_once.conn();
    let is_other = connections.note_heard(conn);
    let Some(session) = connections.bound_to(conn) else { return false };
    if is_other {
        session.links.heard(conn);
    }
    if session.callbacks.borrow().has_unsent() || read.len > session.attr.data_bytes_max {
        return false;
    }
    let (slot, sequence) = (read.head.slot, read.head.sequence);
    let mut slots = session.slots.borrow_mut();
    let Some(next) = slots.next(slot, sequence) else { return false };
    let Ok(open) = readable(session, read.state) else { return false };
    let FileData::Cached(file) = &open.file else { return false };
    let PageLook::Held(page) = file.try_read_page(read.offset, read.len as usize) else {
        return false;
    };
    // A page is no longer than a `u32` tells.
    let outcome = (page.bytes() as u32, page.end_of_file());
    let reply = encode_plain_read_reply(slot, sequence, outcome);
    let counters = &*context.counters;
    let number = counters.requests.load(Ordering::Relaxed);
    let start =
        number.is_multiple_of(CACHED_READS_PER_SAMPLE).then(|| context.shared.process.now());
    if planted(Defect::HeldTooShort) || !at_once.reply(&reply, page.piece()) {
        return false;
    }
    session.life.seen(now);
    next.passed(read.hash());
    drop(slots);
    count(&counters.requests, 1);
    count(&session.counters.requests, 1);
    count(&counters.cache_hits, 1);
    note_hit(context, session, &open, &read, page.bytes());
    if let Some(start) = start {
        context.shared.note_time(Kind::CachedReads, start);
    }
    true
}

/// The server's cache answers a read.
#[inline(always)]
pub(super) fn note_hit(
    context: &Context,
    session: &Session,
    open: &Rc<Open>,
    read: &PlainRead,
    bytes: usize,
) {
    let (offset, len) = (read.offset, read.len as usize);
    if let (Some(recorder), Some(file)) = (&context.shared.recorder, open.file.cached()) {
        recorder.read(file, offset, len);
    }
    note_read(context, session, bytes);
    open.read_ahead(offset, len, true);
}
