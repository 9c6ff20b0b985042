//! Requests that are answered where they were received: they are never in service.

use dafs_fabric::{Piece, RemoteSpan};

use crate::connection::{Connection, State};
use crate::event::ConnId;
use crate::header::{HEADER_BYTES, Header, Kind, Mode, SMALL_MESSAGE_BYTES, tag_slot};
use crate::planted::{Defect, planted};
use crate::shared::Shared;

/// A request that was received just now, whose answer may leave at once: data to where it asked for it, and the reply
/// behind.
pub struct AtOnce<'a> {
    connection: &'a mut Connection,
    sh: &'a mut Shared,
    tag: u32,
    remote: RemoteSpan,
}

impl AtOnce<'_> {
    /// On which it came.
    #[inline]
    pub fn conn(&self) -> ConnId {
        self.connection.id
    }

    /// Answers, if the network does that now: the memory of the data is the caller's again. False: nothing was
    /// done.
    #[inline(always)]
    pub fn reply<const N: usize>(self, header: &[u8; N], data: Piece<'_>) -> bool {
        let AtOnce { connection, sh, tag, remote } = self;
        connection.may_reply_at_once(sh, N, (1, data.len()))
            && connection.write_reply(sh, tag, header, (&[data], data.len()), remote)
    }
}

impl Connection {
    /// Has a request that may be in service answered, if it can be at once. False: it cannot, and nothing was
    /// done.
    #[inline(always)]
    pub(crate) fn answer_at_once(
        &mut self,
        sh: &mut Shared,
        (header, remote): (&Header, RemoteSpan),
        answer: impl FnOnce(AtOnce<'_>) -> bool,
    ) -> bool {
        // One that had better be told where the data is says so by a flag.
        let may = self.agreed.writes_at_once
            && header.flags == 0
            && self.responder.is_free(tag_slot(header.tag));
        may && answer(AtOnce { connection: self, sh, tag: header.tag, remote })
    }

    /// What does not depend on the request.
    #[inline(always)]
    pub(super) fn may_reply_at_once(
        &self,
        sh: &Shared,
        header_len: usize,
        (pieces, len): (usize, usize),
    ) -> bool {
        let (agreed, message_len) = (&self.agreed, HEADER_BYTES + header_len);
        let inline = self.options.inline_bytes as usize;
        agreed.writes_at_once
            && self.state == State::Open
            && self.outbox_is_empty()
            && pieces <= sh.attr.sge_max
            && message_len <= agreed.small_reply_bytes
            && len > 0
            && (len > inline || message_len + len > agreed.peer_message_bytes)
            && !planted(Defect::ReplyBeforeData)
    }

    /// Writes a reply's data, so many bytes, to the peer's memory and sends the message behind it, if the device does
    /// both at once: the credit is the peer's again. False, and nothing was done: it goes in another way.
    #[inline(always)]
    pub(super) fn write_reply(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (data, len): (&[Piece<'_>], usize),
        remote: RemoteSpan,
    ) -> bool {
        if len > remote.len as usize {
            return false;
        }
        let responder = &mut self.responder;
        let mut header = Header::new(Kind::Reply, tag);
        (header.mode, header.data_len) = (Mode::Write, len as u32);
        header.header_len = caller_header.len() as u16;
        // As they are when it has left.
        header.credit_limit = responder.credits.limit_after(1);
        header.push_limit = responder.push.limit_after(0);
        let mut small = [0; SMALL_MESSAGE_BYTES];
        let Some(message) = header.with_header(caller_header, &mut small) else { return false };
        let remote = RemoteSpan { len: len as u32, ..remote };
        if !sh.engine.write_and_send(self.queue_pair, data, remote, message) {
            return false;
        }
        sh.posted = true;
        self.counters.replies_written += 1;
        responder.has_told(&header);
        true
    }
}
