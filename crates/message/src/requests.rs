//! Our requests on a connection: from `submit` to the reply.

mod empty;
mod plan;

use dafs_fabric::{RemoteSpan, SgList, Status, WorkCompletion, sg_bytes};

use crate::REPLY_HEADER_BYTES_MAX;
use crate::config::SubmitError;
use crate::connection::{Connection, Message, State, Work, push_tag, reply_tag};
use crate::event::{Event, Short};
use crate::fault::Fault;
use crate::header::{
    FLAG_OF_HEADER, FLAG_STARVED, HEADER_BYTES, Header, Kind, Mode, encode_remote, tag_slot,
    wire_tag,
};
use crate::requester::Requester;
use crate::segments;
use crate::shared::{Role, Shared};
use crate::work::Target;
use plan::Plan;

/// How a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submit {
    /// As suits its data.
    Plain,
    /// With the credit and the place that ordinary requests leave alone.
    Control,
    /// Nothing is pushed.
    OnGrant,
    /// The reply's data may be lent.
    Lend,
}

impl Connection {
    /// The longest header of a request.
    pub fn request_header_max(&self) -> usize {
        self.send_room() - HEADER_BYTES
    }

    /// Bytes of a message to the peer, without data areas.
    pub fn send_room(&self) -> usize {
        self.agreed.peer_header_bytes.min(self.agreed.send_header_bytes)
    }

    /// See [`Node::submit`](crate::Node::submit).
    ///
    /// # Errors
    /// [`SubmitError`].
    #[inline]
    pub fn submit(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        header: &[u8],
        mut data: SgList,
        mut reply_into: SgList,
        how: Submit,
    ) -> Result<(), SubmitError> {
        if self.state != State::Open {
            return Err(SubmitError::NotConnected);
        }
        segments::join(&mut data);
        segments::join(&mut reply_into);
        let (data_len, room) = (sg_bytes(&data), sg_bytes(&reply_into));
        let too_large = header.len() > self.request_header_max()
            || data_len.max(room) > sh.attr.bulk_bytes_max.min(u32::MAX as usize)
            || data.len().max(reply_into.len()) > sh.attr.sge_max;
        if too_large {
            return Err(SubmitError::TooLarge);
        }
        if self.requester.has(tag) {
            return Err(SubmitError::TagInUse);
        }
        if let Err(error) = self.requester.admit(how == Submit::Control) {
            self.counters.credit_stalls += u64::from(error == SubmitError::NoCredit);
            return Err(error);
        }
        // Nothing is spent before all that can fail.
        let may = (how != Submit::OnGrant, how == Submit::Lend);
        let mut plan = Plan::new(self.agreed.tagged);
        let lists = (&mut data, &mut reply_into);
        if self.plan(sh, &mut plan, header.len(), may, lists).is_none() {
            // It may hold a piece.
            drop(plan);
            let nothing_comes_back = sh.bounces[Role::Requester as usize].is_idle();
            return Err(match nothing_comes_back {
                true => SubmitError::NoMemory,
                false => SubmitError::QueueFull,
            });
        }
        let memory =
            if self.agreed.tagged { Some(sh.reply_memory.take(&sh.domain)?) } else { None };
        debug_assert_eq!(memory.is_some(), plan.reply_mode == Mode::Tagged);
        self.count(plan.mode);
        if plan.mode == Mode::Tagged {
            self.requester.push.spend(data_len as u32);
        }
        self.counters.push_stalls += u64::from(plan.flags & FLAG_STARVED != 0);
        self.requester.credits.spend(1);
        let index = self.requester.take_slot(tag);
        let slot = &mut self.requester.slots[usize::from(index)];
        (slot.mode, slot.reply_mode) = (plan.mode, plan.reply_mode);
        (slot.data_len, slot.room) = (data_len as u32, room as u32);
        slot.memory = memory;
        slot.kept = plan.kept;
        let wire = wire_tag(index, slot.generation);
        let how = (plan.mode, plan.reply_mode, plan.flags);
        let remotes = (&plan.reads[..], &plan.writes[..]);
        self.send_request(sh, wire, header, how, remotes, (&mut data, &mut reply_into));
        Ok(())
    }

    fn count(&mut self, mode: Mode) {
        let counters = &mut self.counters;
        let counter = match mode {
            Mode::None | Mode::Write | Mode::Refer => &mut counters.data_none,
            Mode::Inline => &mut counters.data_inline,
            Mode::Tagged => &mut counters.data_pushed,
            Mode::Grant => &mut counters.data_granted,
            Mode::Read => &mut counters.data_read,
            Mode::Pieces => &mut counters.data_pieces,
        };
        *counter += 1;
    }

    #[inline]
    fn send_request(
        &mut self,
        sh: &mut Shared,
        wire: u32,
        caller_header: &[u8],
        (mode, reply_mode, flags): (Mode, Mode, u8),
        (reads, writes): (&[RemoteSpan], &[RemoteSpan]),
        (data, reply_into): (&mut SgList, &mut SgList),
    ) {
        self.counters.requests_sent += 1;
        let mut header = Header::new(Kind::Request, wire);
        (header.mode, header.reply_mode, header.flags) = (mode, reply_mode, flags);
        (header.reads, header.writes) = (reads.len() as u8, writes.len() as u8);
        header.header_len = caller_header.len() as u16;
        if mode == Mode::None && !self.releases.is_empty() {
            let used = HEADER_BYTES + header.descriptor_bytes() + caller_header.len();
            header.releases = self.releases.fitting(self.send_room() - used);
        }
        self.piggyback_credits(&mut header);
        let slot = &mut self.requester.slots[tag_slot(wire)];
        (header.data_len, header.room) = (slot.data_len, slot.room);
        let (is_inline, is_pushed) = (mode == Mode::Inline, mode == Mode::Tagged);
        if is_inline || is_pushed {
            slot.work += 1;
        } else if mode != Mode::None {
            slot.data = std::mem::take(data);
        }
        if let Some(memory) = slot.memory {
            slot.work += 1;
            let id = self.work_id(Target::ReplyReceive, wire);
            let work = Work::TaggedRecv(reply_tag(wire), Some(memory));
            self.post(sh, work, id, &[], reply_into, true);
        } else {
            slot.reply_into = std::mem::take(reply_into);
        }
        let mut message = std::mem::take(&mut sh.scratch);
        message.clear();
        header.encode(&mut message);
        for remote in reads.iter().chain(writes) {
            encode_remote(remote, &mut message);
        }
        if header.releases > 0 {
            self.releases.put(header.releases, &mut message);
        }
        message.extend_from_slice(caller_header);
        let target = if is_inline { Target::Request } else { Target::Control };
        let mut none = SgList::new();
        let beside = if is_inline { &mut *data } else { &mut none };
        self.post(sh, Work::Send, self.work_id(target, wire), &message, beside, is_inline);
        sh.scratch = message;
        if is_pushed {
            let id = self.work_id(Target::Request, wire);
            self.post(sh, Work::TaggedSend(push_tag(wire)), id, &[], data, true);
        }
    }

    /// See [`Node::abandon`](crate::Node::abandon).
    pub fn abandon(&mut self, tag: u32) {
        let slot = self.requester.slots.iter_mut().find(|slot| slot.busy && slot.tag == tag);
        if let Some(slot) = slot {
            slot.abandoned = true;
        }
    }

    /// The peer takes data of a request now.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_grant(&mut self, sh: &mut Shared, header: &Header) -> Result<(), Fault> {
        let id = self.work_id(Target::Request, header.tag);
        let slot = self.requester.waiting(header.tag)?;
        let left = slot.data_len - slot.granted;
        if header.room != slot.granted || header.data_len == 0 || header.data_len > left {
            return Err(Fault::peer("grant outside of the request's data"));
        }
        slot.granted += header.data_len;
        match slot.mode {
            Mode::Grant if header.data_len == slot.data_len => {
                let mut data = std::mem::take(&mut slot.data);
                slot.work += 1;
                self.post(sh, Work::TaggedSend(push_tag(header.tag)), id, &[], &mut data, true);
            }
            Mode::Pieces => {
                let data = std::mem::take(&mut slot.data);
                let piece = Header::new(Kind::Piece, header.tag);
                let range = (header.room as usize, header.data_len as usize);
                let count = self.send_pieces(sh, piece, &data, range, id);
                let slot = self.requester.waiting(header.tag)?;
                slot.data = data;
                slot.work += count;
            }
            _ => return Err(Fault::peer("grant for data that was not to be granted")),
        }
        Ok(())
    }

    /// A piece of a reply.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_reply_piece(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let offset = m.piece_offset(sh.config.header_bytes)?;
        let slot = self.requester.waiting(m.header.tag)?;
        let (at, len) = (m.header.room as usize, m.header.data_len as usize);
        if m.header.flags & FLAG_OF_HEADER != 0 {
            if at != slot.header.len() || at + len > REPLY_HEADER_BYTES_MAX {
                return Err(Fault::peer("piece outside of the reply's header"));
            }
            return {
                append_message(sh, m.index, offset, len, &mut slot.header);
                Ok(())
            };
        }
        if slot.reply_mode == Mode::Tagged {
            return Err(Fault::peer("piece of a reply that goes by tag"));
        }
        if m.header.room != slot.arrived || m.header.data_len > slot.room - slot.arrived {
            return Err(Fault::peer("piece outside of the reply's data"));
        }
        slot.arrived += m.header.data_len;
        sh.pool.place_payload(m.index, offset, len, slot.targets(), at);
        self.counters.copied_bytes += len as u64;
        Ok(())
    }

    /// A reply that came as a message.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_reply(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let header = &m.header;
        if header.mode == Mode::Refer {
            return self.handle_referring_reply(sh, m);
        }
        let slot = self.requester.waiting(header.tag)?;
        let (len, header_len) = (header.data_len as usize, usize::from(header.header_len));
        let fits = match header.mode {
            Mode::None => header.data_len == 0,
            Mode::Inline => header.data_len <= slot.room,
            Mode::Write => slot.reply_mode == Mode::Write && header.data_len <= slot.room,
            Mode::Pieces => header.data_len == slot.arrived,
            _ => false,
        };
        let inline = if header.mode == Mode::Inline { len } else { 0 };
        if !fits || slot.reply_mode == Mode::Tagged || header.descriptor_bytes() > 0 {
            return Err(Fault::peer("reply in a way that was not asked for"));
        }
        if m.len != HEADER_BYTES + header_len + inline
            || slot.header.len() + header_len > REPLY_HEADER_BYTES_MAX
        {
            return Err(Fault::peer("reply of another length than it says"));
        }
        if slot.header.is_empty() {
            slot.header = sh.take_header();
        }
        append_message(sh, m.index, HEADER_BYTES, header_len, &mut slot.header);
        if inline > 0 {
            let at = HEADER_BYTES + header_len;
            sh.pool.place_payload(m.index, at, inline, slot.targets(), 0);
            self.counters.copied_bytes += inline as u64;
        }
        slot.reply = Some(header.data_len);
        self.finish(sh, header.tag);
        Ok(())
    }

    /// A reply to a request without data that came as a short message, behind data that was written and with nothing
    /// beside it, if all is as asked for and its memory is back.
    #[inline(always)]
    pub fn take_short_reply(&mut self, header: &Header, len: usize) -> Option<Short> {
        let slot = self.requester.waiting(header.tag).ok()?;
        // Of what has a target alone there is nothing else to be let go, but what came of its reply's header.
        let as_asked = slot.target.is_some()
            && header.data_len <= slot.room
            && len == HEADER_BYTES + usize::from(header.header_len)
            && slot.header.is_empty()
            && !slot.abandoned;
        if !as_asked {
            return None;
        }
        let (conn, tag, data_len) = (self.id, slot.tag, header.data_len);
        debug_assert_eq!(slot.work, 0, "none was posted");
        slot.release_target();
        self.requester.free_slot(tag_slot(header.tag) as u16);
        Some(Short::Reply { conn, tag, data_len })
    }

    /// A reply that came by tag.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_tagged_reply(
        &mut self,
        sh: &mut Shared,
        wire: u32,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        debug_assert_eq!(completion.status, Status::Success, "sorted by the node");
        let slot = self.requester.waiting(wire)?;
        slot.work -= 1;
        let Some(memory) = slot.memory else {
            return Err(Fault::local("a tagged reply without memory"));
        };
        let len = completion.header_len as usize;
        let header = Header::decode(&sh.reply_memory.first_bytes(memory)[..len.min(HEADER_BYTES)])?;
        let as_told = header.kind == Kind::Reply
            && header.tag == wire
            && matches!(header.mode, Mode::None | Mode::Tagged)
            && header.descriptor_bytes() == 0
            && len == HEADER_BYTES + usize::from(header.header_len)
            && len + slot.header.len() <= HEADER_BYTES + REPLY_HEADER_BYTES_MAX
            && header.data_len == completion.byte_len;
        if !as_told {
            return Err(Fault::peer("tagged reply of another length than it says"));
        }
        let mut caller_header = sh.take_header();
        sh.reply_memory.read_message(memory, len - HEADER_BYTES, &mut caller_header);
        if slot.header.is_empty() {
            slot.header = caller_header;
        } else {
            slot.header.extend_from_slice(&caller_header);
            sh.recycle(caller_header);
        }
        slot.reply = Some(header.data_len);
        self.update_credits(&header)?;
        self.finish(sh, wire);
        Ok(())
    }

    /// A send of a request's data left its buffers.
    pub fn request_work_done(&mut self, sh: &mut Shared, wire: u32) {
        if let Some(slot) = self.requester.slots.get_mut(tag_slot(wire)) {
            slot.work -= 1;
            self.finish(sh, wire);
        }
    }

    /// Tells of the reply, if it is here and all memory is back.
    pub fn finish(&mut self, sh: &mut Shared, wire: u32) {
        let slot = &mut self.requester.slots[tag_slot(wire)];
        let (0, Some(data_len)) = (slot.work, slot.reply) else { return };
        let referred = slot.kept.as_ref().and_then(|kept| kept.referred);
        let target = slot.kept.as_ref().and_then(|kept| kept.target.as_ref());
        let lent = slot.kept.as_ref().is_some_and(|kept| kept.loan.is_some());
        if lent {
            // Returned when it is dropped.
        } else if let Some(number) = referred {
            self.releases.add(number, (self.id.slot(), &mut sh.releasing));
        } else if let Some(bounce) = target.filter(|_| !slot.abandoned) {
            bounce.copy_out(data_len as usize);
            self.counters.copied_bytes += u64::from(data_len);
        }
        if let Some(kept) = slot.kept.as_mut().filter(|kept| kept.may_lend) {
            let (id, tag) = (self.id, slot.tag);
            // One that nobody took.
            sh.loans.retain(|loan| (loan.0, loan.1) != (id, tag));
            let loan = kept.loan.take().filter(|_| !slot.abandoned);
            sh.loans.extend(loan.map(|loan| (id, tag, loan)));
        }
        let header = slot.release(sh);
        if slot.abandoned {
            sh.recycle(header);
            sh.events.push_back(Event::Abandoned { conn: self.id, tag: slot.tag });
        } else {
            let (conn, tag) = (self.id, slot.tag);
            sh.events.push_back(Event::Reply { conn, tag, header, data_len });
        }
        slot.abandoned = false;
        self.requester.free_slot(tag_slot(wire) as u16);
    }

    /// The connection ends. What its requests had registered is registered anew for others.
    pub fn stop_requests(&mut self, sh: &mut Shared) {
        for slot in &self.requester.slots {
            if let Some(target) = &slot.target {
                sh.registrations.forget(std::slice::from_ref(&target.region));
            }
            if let Some(kept) = &slot.kept {
                sh.registrations.forget(&kept.regions);
            }
        }
    }

    /// The connection is quiescent: nothing of its requests is held any more.
    pub fn end_requests(&mut self, sh: &mut Shared) {
        for slot in self.requester.slots.iter_mut().filter(|slot| slot.busy) {
            let header = slot.release(sh);
            sh.recycle(header);
            if slot.abandoned && !self.unannounced {
                sh.events.push_back(Event::Abandoned { conn: self.id, tag: slot.tag });
            }
        }
        self.requester = Requester::default();
    }
}

/// Appends bytes of a message (a header, no payload).
pub fn append_message(sh: &mut Shared, index: u32, offset: usize, len: usize, to: &mut Vec<u8>) {
    if to.is_empty() {
        return sh.pool.read_message(index, offset, len, to);
    }
    let mut part = sh.take_header();
    sh.pool.read_message(index, offset, len, &mut part);
    to.extend_from_slice(&part);
    sh.recycle(part);
}
