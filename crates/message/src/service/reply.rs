//! How a reply leaves.

use dafs_fabric::{Piece, RemoteSpan, SgList, WrId, sg_bytes};

use crate::connection::{Connection, State, Work, reply_tag};
use crate::header::{
    FLAG_OF_HEADER, FLAG_OF_REPLY, HEADER_BYTES, Header, Kind, Mode, SMALL_MESSAGE_BYTES, tag_slot,
};
use crate::planted::{Defect, planted};
use crate::references;
use crate::responder::Fetch;
use crate::segments;
use crate::shared::{Held, Shared};
use crate::work::Target;

impl Connection {
    /// Replies to a request without data where that goes by tag, from whatever memory there is, and fits:
    /// most replies do. False, and nothing was done: it is to be looked at more closely.
    #[inline(always)]
    pub(crate) fn reply_plainly(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (data, token): (&mut SgList, u64),
    ) -> bool {
        let message_len = HEADER_BYTES + caller_header.len();
        let is_plain = self.agreed.tagged
            && self.state == State::Open
            && !sh.must_know(data)
            && message_len <= SMALL_MESSAGE_BYTES.min(self.agreed.send_header_bytes);
        if !is_plain {
            return false;
        }
        segments::join(data);
        let len = sg_bytes(data);
        let most = sh.attr.sge_max;
        let Some(slot) = self.responder.serving(tag) else { return false };
        let is_asked = slot.mode == Mode::None && slot.fetch == Fetch::Not;
        if !is_asked || len > slot.room as usize || data.len() > most {
            return false;
        }
        slot.busy = false;
        slot.retired = slot.retired.filter(|retired| *retired == tag);
        sh.in_service -= 1;
        self.responder.replied_one();
        self.counters.replies_tagged += 1;
        let pending = self.responder.leave(token);
        self.responder.pending_replies[pending as usize].work = 1;
        let mut header = Header::new(Kind::Reply, tag);
        header.mode = if len > 0 { Mode::Tagged } else { Mode::None };
        (header.data_len, header.header_len) = (len as u32, caller_header.len() as u16);
        self.piggyback_credits(&mut header);
        let mut small = [0; SMALL_MESSAGE_BYTES];
        let message = header.with_header(caller_header, &mut small);
        let message = message.expect("its length was looked at before");
        let (how, id) = (Work::TaggedSend(reply_tag(tag)), self.work_id(Target::Reply, pending));
        self.post_inline(sh, how, id, message, data, true);
        true
    }

    /// Replies to a request without data by one write to its memory, and a message when that is done, where
    /// that is so: most replies are where no tags are. False, and nothing was done: it is to be looked at
    /// more closely.
    #[inline(never)]
    pub(super) fn reply_by_one_write(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (data, token): (&mut SgList, u64),
    ) -> bool {
        let agreed = &self.agreed;
        let message_len = HEADER_BYTES + caller_header.len();
        let is_plain = !agreed.tagged
            && sh.attr.recoverable_access_fault
            && self.state == State::Open
            && !sh.must_know(data)
            && message_len <= agreed.small_reply_bytes
            && !planted(Defect::ReplyBeforeData);
        if !is_plain {
            return false;
        }
        segments::join(data);
        let len = sg_bytes(data);
        let (inline, together) = (self.options.inline_bytes as usize, message_len + len);
        let is_inline = len == 0 || len <= inline && together <= agreed.peer_message_bytes;
        let most = sh.attr.sge_max;
        let Some(slot) = self.responder.serving(tag) else { return false };
        let (Mode::None, Mode::Write, Fetch::Not) = (slot.mode, slot.reply_mode, slot.fetch) else {
            return false;
        };
        let [remote] = slot.writes[..] else { return false };
        if is_inline || len > remote.len as usize || data.len() > most {
            return false;
        }
        slot.busy = false;
        slot.retired = slot.retired.filter(|retired| *retired == tag);
        sh.in_service -= 1;
        self.responder.replied_one();
        self.counters.replies_written += 1;
        let mut header = Header::new(Kind::Reply, tag);
        (header.mode, header.data_len) = (Mode::Write, len as u32);
        let pending = self.responder.leave(token);
        let entry = &mut self.responder.pending_replies[pending as usize];
        (entry.work, entry.message) = (1, Some((header, sh.copy_of_header(caller_header))));
        let write = Work::Write(RemoteSpan { len: len as u32, ..remote });
        let id = self.work_id(Target::Reply, pending);
        self.post_inline(sh, write, id, &[], data, true);
        true
    }

    /// Replies to a request without data by one write to its memory and a message behind it, where the device
    /// does both at once: the memory of the data is the caller's again, and no end is told. False, and nothing
    /// was done: it goes in another way.
    #[inline(always)]
    pub(crate) fn reply_at_once(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        data: &[Piece<'_>],
    ) -> bool {
        let len = match data {
            [one] => one.len(),
            _ => data.iter().map(Piece::len).sum(),
        };
        if !self.may_reply_at_once(sh, caller_header.len(), (data.len(), len)) {
            return false;
        }
        let Some(slot) = self.responder.serving(tag) else { return false };
        let is_asked = (slot.mode, slot.reply_mode) == (Mode::None, Mode::Write);
        let [remote] = slot.writes[..] else { return false };
        // It had better be told where the data is.
        if references::is_asked(slot.flags, len) {
            return false;
        }
        if !is_asked || slot.fetch != Fetch::Not {
            return false;
        }
        if !self.write_reply(sh, tag, caller_header, (data, len), remote) {
            return false;
        }
        sh.in_service -= 1;
        self.responder.in_service -= 1;
        if let Some(slot) = self.responder.serving(tag) {
            slot.busy = false;
            slot.retired = slot.retired.filter(|retired| *retired == tag);
        }
        true
    }

    /// Sends the message behind data that was written.
    #[inline(never)]
    fn send_after_write(&mut self, sh: &mut Shared, pending: u32) {
        let entry = &mut self.responder.pending_replies[pending as usize];
        let Some((mut header, caller_header)) = entry.message.take() else { return };
        if HEADER_BYTES + caller_header.len() <= self.agreed.small_reply_bytes {
            header.header_len = caller_header.len() as u16;
            self.piggyback_credits(&mut header);
            let mut small = [0; SMALL_MESSAGE_BYTES];
            let message = header.with_header(&caller_header, &mut small);
            let message = message.expect("its length was looked at before");
            let id = self.work_id(Target::Control, 0);
            self.post_inline(sh, Work::Send, id, message, &mut SgList::new(), false);
        } else {
            self.send_reply_message(sh, header, &caller_header, &mut SgList::new(), None);
        }
        sh.recycle(caller_header);
    }

    /// Sends a reply in the way that the request asked for.
    pub(super) fn send_reply(
        &mut self,
        sh: &mut Shared,
        mut header: Header,
        caller_header: &[u8],
        (data, held): (&mut SgList, &mut Option<Held>),
        token: Option<u64>,
    ) {
        let (wire, len) = (header.tag, header.data_len as usize);
        let slot = &self.responder.slots[tag_slot(wire)];
        let reply_mode = slot.reply_mode;
        let agreed = self.agreed;
        let together = HEADER_BYTES + caller_header.len() + len;
        let pending = token.map_or(0, |token| self.responder.leave(token));
        if token.is_some() && held.is_some() {
            self.responder.pending_replies[pending as usize].held = held.take();
        }
        let told = if token.is_some() { Target::Reply } else { Target::Control };
        let id = self.work_id(told, pending);
        let (mut is_beside, mut work) = (true, 0);
        if agreed.tagged {
            self.counters.replies_tagged += 1;
            header.mode = if len > 0 { Mode::Tagged } else { Mode::None };
        } else if len == 0
            || (len <= self.options.inline_bytes as usize && together <= agreed.peer_message_bytes)
        {
            self.counters.replies_inline += 1;
            header.mode = if len > 0 { Mode::Inline } else { Mode::None };
        } else if reply_mode == Mode::Write {
            self.counters.replies_written += 1;
            header.mode = Mode::Write;
            is_beside = false;
            work += self.write_data(sh, wire, data, len, id);
            if sh.attr.recoverable_access_fault && !planted(Defect::ReplyBeforeData) {
                // The connection outlives a refused write: the peer must not hear of data that
                // was not written.
                let message = Some((header, sh.copy_of_header(caller_header)));
                let entry = &mut self.responder.pending_replies[pending as usize];
                (entry.work, entry.message) = (work, message);
                return;
            }
        } else {
            self.counters.replies_pieces += 1;
            header.mode = Mode::Pieces;
            is_beside = false;
            let mut piece = Header::new(Kind::Piece, wire);
            piece.flags = FLAG_OF_REPLY;
            work += self.send_pieces(sh, piece, data, (0, len), id);
        }
        if token.is_some() {
            self.responder.pending_replies[pending as usize].work = work + 1;
        }
        let mut none = SgList::new();
        let beside = if is_beside { data } else { &mut none };
        self.send_reply_message(sh, header, caller_header, beside, token.map(|_| id));
    }

    /// Sends the reply itself, with data beside it or without. With a number its end is told.
    fn send_reply_message(
        &mut self,
        sh: &mut Shared,
        mut header: Header,
        caller_header: &[u8],
        beside: &mut SgList,
        id: Option<WrId>,
    ) {
        let (wire, agreed) = (header.tag, self.agreed);
        let mut room = agreed.send_header_bytes;
        if !agreed.tagged {
            let inline = if beside.is_empty() { 0 } else { header.data_len as usize };
            room = room.min(agreed.peer_message_bytes - inline);
        }
        let room = room.saturating_sub(HEADER_BYTES);
        let caller_header = match caller_header.len() > room {
            true => self.send_header_pieces(sh, wire, caller_header, room),
            false => caller_header,
        };
        header.header_len = caller_header.len() as u16;
        self.piggyback_credits(&mut header);
        let signaled = id.is_some();
        let how = if agreed.tagged { Work::TaggedSend(reply_tag(wire)) } else { Work::Send };
        let id = id.unwrap_or_else(|| self.work_id(Target::Control, 0));
        let mut message = std::mem::take(&mut sh.scratch);
        message.clear();
        header.encode(&mut message);
        message.extend_from_slice(caller_header);
        self.post(sh, how, id, &message, beside, signaled);
        sh.scratch = message;
    }

    fn write_data(
        &mut self,
        sh: &mut Shared,
        wire: u32,
        data: &SgList,
        len: usize,
        id: WrId,
    ) -> u32 {
        let writes = std::mem::take(&mut self.responder.slots[tag_slot(wire)].writes);
        let (mut at, mut count) = (0, 0);
        for remote in &writes {
            let now = (remote.len as usize).min(len - at);
            if now == 0 {
                break;
            }
            let remote = RemoteSpan { len: now as u32, ..*remote };
            self.post(sh, Work::Write(remote), id, &[], &mut segments::cut(data, at, now), true);
            at += now;
            count += 1;
        }
        self.responder.slots[tag_slot(wire)].writes = writes;
        count
    }

    /// Sends what does not fit into the reply's message ahead of it; returns the rest.
    #[cold]
    fn send_header_pieces<'a>(
        &mut self,
        sh: &mut Shared,
        wire: u32,
        caller_header: &'a [u8],
        room: usize,
    ) -> &'a [u8] {
        let mut piece = Header::new(Kind::Piece, wire);
        piece.flags = FLAG_OF_REPLY | FLAG_OF_HEADER;
        let piece_max = self.agreed.peer_header_bytes.min(self.agreed.send_header_bytes);
        let piece_max = piece_max.saturating_sub(HEADER_BYTES).max(1);
        let mut rest = caller_header;
        while rest.len() > room {
            let (now, later) = rest.split_at(piece_max.min(rest.len() - room));
            piece.room = (caller_header.len() - rest.len()) as u32;
            piece.data_len = now.len() as u32;
            self.piggyback_credits(&mut piece);
            let mut message = std::mem::take(&mut sh.scratch);
            message.clear();
            piece.encode(&mut message);
            message.extend_from_slice(now);
            let id = self.work_id(Target::Control, 0);
            self.post(sh, Work::Send, id, &message, &mut SgList::new(), false);
            sh.scratch = message;
            rest = later;
        }
        rest
    }

    /// A part of a reply left.
    pub fn reply_work_done(&mut self, sh: &mut Shared, index: u32, bytes: u32) {
        let Some(entry) = self.responder.pending_replies.get_mut(index as usize) else { return };
        entry.work -= 1;
        entry.left += u64::from(bytes);
        if entry.work > 0 {
            return;
        }
        let (token, is_written) = (entry.token, entry.message.is_some());
        entry.held = None;
        sh.sent.push_back(token);
        self.responder.pending_free.push(index);
        if is_written {
            self.send_after_write(sh, index);
        }
    }
}
