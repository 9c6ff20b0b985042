//! What came over a connection, messages and ends of work, goes to the requests it belongs to.

use dafs_fabric::{ShortMessage, WorkCompletion};

use crate::connection::{Connection, Message};
use crate::event::Short;
use crate::fault::Fault;
use crate::header::{FLAG_OF_REPLY, HEADER_BYTES, Header, Kind};
use crate::service::AtOnce;
use crate::shared::Shared;
use crate::work::Target;

impl Connection {
    /// A message arrived in receive `index`.
    ///
    /// # Errors
    /// The peer's fault.
    pub(super) fn handle_message(
        &mut self,
        sh: &mut Shared,
        index: u32,
        len: usize,
    ) -> Result<(), Fault> {
        let header = Header::decode(&sh.pool.first_bytes(index)[..len.min(HEADER_BYTES)])?;
        self.update_credits(&header)?;
        self.handle_decoded(sh, &Message { header, index, len })
    }

    #[inline(always)]
    fn handle_decoded(&mut self, sh: &mut Shared, message: &Message) -> Result<(), Fault> {
        match message.header.kind {
            Kind::Request => self.handle_request(sh, message),
            _ => self.handle_other(sh, message),
        }
    }

    /// A short message arrived without a receive. What most are is told at once, with where its header
    /// is, or was answered by `answer`; all else as an event.
    ///
    /// # Errors
    /// The peer's fault.
    #[inline(always)]
    pub(super) fn handle_short(
        &mut self,
        sh: &mut Shared,
        message: &ShortMessage,
        answer: &mut impl FnMut(AtOnce<'_>, &[u8]) -> bool,
    ) -> Result<Option<(Short, usize)>, Fault> {
        let ShortMessage { len, bytes, .. } = message;
        if let Some((header, remote)) = Header::decode_one_room(bytes, *len)
            && self.may_begin_short(sh, &header)
        {
            self.update_credits(&header)?;
            let answer = |at_once: AtOnce<'_>, at| {
                bytes.get(at..*len).is_some_and(|header| answer(at_once, header))
            };
            return self.begin_short(sh, (&header, remote), answer);
        }
        let whole = bytes.get(..*len).unwrap_or(bytes);
        if let Some(header) = Header::decode_written_reply(whole) {
            self.update_credits(&header)?;
            if let Some(short) = self.take_short_reply(&header, *len) {
                return Ok(Some((short, HEADER_BYTES)));
            }
            return self.handle_other_short(sh, message, header).map(|()| None);
        }
        let header = Header::decode(whole)?;
        self.update_credits(&header)?;
        self.handle_other_short(sh, message, header).map(|()| None)
    }

    #[inline(never)]
    fn handle_other_short(
        &mut self,
        sh: &mut Shared,
        ShortMessage { len, bytes, .. }: &ShortMessage,
        header: Header,
    ) -> Result<(), Fault> {
        let index = sh.pool.keep_short(bytes.get(..*len).unwrap_or(bytes));
        self.handle_decoded(sh, &Message { header, index, len: *len })
    }

    /// One that is no request.
    #[inline(never)]
    fn handle_other(&mut self, sh: &mut Shared, message: &Message) -> Result<(), Fault> {
        let Message { header, len, .. } = message;
        let is_alone = *len == HEADER_BYTES;
        if header.releases > 0 && header.kind == Kind::Credit {
            return self.take_releases_alone(sh, message);
        }
        match header.kind {
            Kind::Reply => self.handle_reply(sh, message),
            Kind::Grant if is_alone => self.handle_grant(sh, header),
            Kind::Credit if is_alone => Ok(()),
            Kind::Piece if header.flags & FLAG_OF_REPLY != 0 => {
                self.handle_reply_piece(sh, message)
            }
            Kind::Piece => self.handle_request_piece(sh, message),
            _ => Err(Fault::peer("control message with more than a header")),
        }
    }

    /// Work of ours ended well.
    ///
    /// # Errors
    /// The peer's fault.
    pub(super) fn handle_work(
        &mut self,
        sh: &mut Shared,
        target: Target,
        index: u32,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        match target {
            Target::Request => self.request_work_done(sh, index),
            Target::ReplyReceive => return self.handle_tagged_reply(sh, index, completion),
            Target::Fetch => return self.fetch_work_done(sh, index, completion),
            Target::Reply => self.reply_work_done(sh, index, completion.byte_len),
            Target::Discard => return self.discarded(sh, index, completion.byte_len),
            Target::Refer => self.referred_work_done(sh, index),
            Target::Named => sh.named_read(self.id, index, Some(completion.byte_len)),
            Target::Control | Target::Receive => {}
        }
        Ok(())
    }
}
