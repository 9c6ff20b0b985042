//! Replies that refer to their data: from the reply over the reads to the release.

use dafs_fabric::{RemoteSpan, SgList, sg_bytes};
use smallvec::SmallVec;

use crate::connection::{Connection, Message, State, Work};
use crate::fault::Fault;
use crate::header::{
    FLAG_MAY_LEND, FLAG_MAY_REFER, HEADER_BYTES, Header, Kind, Mode, RELEASE_BYTES, RELEASES_MAX,
    REMOTE_SPAN_BYTES, REMOTE_SPANS_MAX, decode_remotes, encode_remote, tag_slot,
};
use crate::loan::Loan;
use crate::planted::{Defect, planted};
use crate::references::{is_asked, kept_bytes};
use crate::registration::RemoteSpans;
use crate::requests::append_message;
use crate::responder::Fetch;
use crate::segments;
use crate::service::check_remotes;
use crate::shared::Shared;
use crate::work::Target;

/// Polls after which a release goes alone.
const POLLS_MAX: u8 = 2;

impl Connection {
    /// The request asked for it.
    #[inline]
    pub(crate) fn may_refer(&self, tag: u32) -> bool {
        let slot = self.responder.slots.get(tag_slot(tag));
        slot.is_some_and(|slot| slot.flags & FLAG_MAY_REFER != 0)
    }

    /// Replies to a request by saying where the data is, if it asked for that and there is nothing against
    /// it. False, and nothing was done: the data is to go.
    pub(crate) fn reply_by_reference(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (data, leave): (&mut SgList, &mut impl FnMut() -> u64),
    ) -> bool {
        if self.responder.references.is_none() || self.state != State::Open {
            return false;
        }
        let room = self.send_room();
        let Some(slot) = self.responder.serving(tag) else { return false };
        let (most, flags) = (slot.room as usize, slot.flags);
        if slot.mode != Mode::None || slot.fetch == Fetch::Posted {
            return false;
        }
        segments::join(data);
        let len = sg_bytes(data);
        let message_len = HEADER_BYTES + data.len() * REMOTE_SPAN_BYTES + caller_header.len();
        if !is_asked(flags, len)
            || len > most
            || data.len() > REMOTE_SPANS_MAX
            || message_len > room
        {
            return false;
        }
        let Some(remotes) = self.what_it_reads(sh, data) else { return false };
        let what = (kept_bytes(len, &remotes), flags & FLAG_MAY_LEND != 0);
        let references = self.responder.references.as_mut();
        let Some((number, token)) = references.and_then(|all| all.begin(what, leave)) else {
            return false;
        };
        self.refer_to(sh, tag, caller_header, (&remotes, len, number));
        if planted(Defect::ReferenceEndsEarly) {
            sh.sent.push_back(token);
        }
        // Its owner keeps it until it hears of the end.
        data.clear();
        true
    }

    /// By what the peer reads this data by itself, if it may read all of it.
    fn what_it_reads(&mut self, sh: &Shared, data: &SgList) -> Option<RemoteSpans> {
        let (mut last, references) = (None, self.responder.references.as_mut()?);
        let readable = |span| {
            let (remote, readers) = sh.domain.readable_near(span, &mut references.last_readable)?;
            // Mostly all of it is for the same.
            if last != Some(readers) && !sh.engine.lets_read(self.queue_pair, readers) {
                return None;
            }
            last = Some(readers);
            Some(remote)
        };
        data.iter().map(readable).collect()
    }

    fn refer_to(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        caller_header: &[u8],
        (remotes, len, number): (&[RemoteSpan], usize, u32),
    ) {
        let Some(slot) = self.responder.serving(tag) else { return };
        (slot.busy, slot.fetch) = (false, Fetch::Not);
        slot.retired = slot.retired.filter(|retired| *retired == tag);
        sh.in_service -= 1;
        self.responder.replied_one();
        self.counters.replies_referred += 1;
        let mut header = Header::new(Kind::Reply, tag);
        (header.mode, header.reads) = (Mode::Refer, remotes.len() as u8);
        (header.data_len, header.room) = (len as u32, number);
        header.header_len = caller_header.len() as u16;
        self.piggyback_credits(&mut header);
        let mut message = std::mem::take(&mut sh.scratch);
        message.clear();
        header.encode(&mut message);
        remotes.iter().for_each(|remote| encode_remote(remote, &mut message));
        message.extend_from_slice(caller_header);
        let id = self.work_id(Target::Control, 0);
        self.post(sh, Work::Send, id, &message, &mut SgList::new(), false);
        sh.scratch = message;
    }

    /// A reply that says where its data is.
    ///
    /// # Errors
    /// The peer's fault.
    pub(crate) fn handle_referring_reply(
        &mut self,
        sh: &mut Shared,
        m: &Message,
    ) -> Result<(), Fault> {
        let (header, wire) = (&m.header, m.header.tag);
        let slot = self.requester.waiting(wire)?;
        let kept = slot.kept.as_mut().filter(|kept| kept.may_refer);
        let Some(kept) = kept else {
            return Err(Fault::peer("reply in a way that was not asked for"));
        };
        // Where something stands in for it, the room itself.
        let target = kept.target.as_ref().map_or(&slot.reply_into, |bounce| bounce.memory());
        let target = target.clone();
        let header_len = usize::from(header.header_len);
        let at = HEADER_BYTES + header.descriptor_bytes();
        let is_whole = m.len == at + header_len && header.writes == 0 && header.releases == 0;
        if !is_whole || header.data_len > slot.room || slot.arrived > 0 {
            return Err(Fault::peer("reply of another length than it says"));
        }
        let mut remotes = Vec::new();
        let mut raw = std::mem::take(&mut sh.scratch);
        // not payload: descriptors of a message
        sh.pool.read_message(m.index, HEADER_BYTES, header.descriptor_bytes(), &mut raw);
        decode_remotes(&raw, &mut remotes);
        sh.scratch = raw;
        check_remotes(&remotes, header.data_len > 0, header.data_len)?;
        kept.referred = Some(header.room);
        if kept.may_lend
            && let Some(views) = sh.engine.view(self.queue_pair, &remotes)
        {
            kept.loan = Some(Box::new(Loan::new(views, (self.id, header.room), &sh.returned)));
        }
        let is_lent = kept.loan.is_some();
        slot.header = sh.take_header();
        append_message(sh, m.index, at, header_len, &mut slot.header);
        slot.reply = Some(header.data_len);
        if !slot.abandoned && !is_lent {
            slot.work += remotes.len() as u32;
            self.read_referred(sh, wire, &target, &remotes);
        }
        self.finish(sh, wire);
        Ok(())
    }

    fn read_referred(
        &mut self,
        sh: &mut Shared,
        wire: u32,
        target: &SgList,
        remotes: &[RemoteSpan],
    ) {
        let (id, mut at) = (self.work_id(Target::Refer, wire), 0);
        for remote in remotes {
            let mut part = segments::cut(target, at, remote.len as usize);
            self.post(sh, Work::Read(*remote), id, &[], &mut part, true);
            at += remote.len as usize;
        }
    }

    /// A part of what a reply refers to was read.
    pub(crate) fn referred_work_done(&mut self, sh: &mut Shared, wire: u32) {
        if let Some(slot) = self.requester.slots.get_mut(tag_slot(wire)) {
            slot.work -= 1;
            self.finish(sh, wire);
        }
    }

    /// Says what is let go, if that did not ride on another message soon enough; whether there is some left.
    pub(crate) fn send_releases(&mut self, sh: &mut Shared, at_once: bool) -> bool {
        self.releases.polls = self.releases.polls.saturating_add(1);
        let is_open = self.state == State::Open;
        if is_open && !self.releases.is_empty() && !at_once && self.releases.polls < POLLS_MAX {
            return true;
        }
        while is_open && !self.releases.is_empty() {
            let mut header = Header::new(Kind::Credit, 0);
            header.releases = self.releases.fitting(self.send_room() - HEADER_BYTES);
            self.piggyback_credits(&mut header);
            let mut message = std::mem::take(&mut sh.scratch);
            message.clear();
            header.encode(&mut message);
            self.releases.put(header.releases, &mut message);
            let id = self.work_id(Target::Control, 0);
            self.post(sh, Work::Send, id, &message, &mut SgList::new(), false);
            sh.scratch = message;
        }
        self.releases.listed = false;
        false
    }

    /// A message that lets references go, and nothing else.
    ///
    /// # Errors
    /// The peer's fault.
    pub(crate) fn take_releases_alone(
        &mut self,
        sh: &mut Shared,
        m: &Message,
    ) -> Result<(), Fault> {
        if m.len != HEADER_BYTES + m.header.descriptor_bytes() {
            return Err(Fault::peer("control message with more than a header"));
        }
        self.take_releases(sh, m)
    }

    /// The peer lets references go. That its message has all their numbers was checked.
    ///
    /// # Errors
    /// The peer's fault: it has no such reference.
    #[cold]
    pub(crate) fn take_releases(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let count = usize::from(m.header.releases);
        let at = HEADER_BYTES + m.header.descriptor_bytes() - count * RELEASE_BYTES;
        let mut raw = std::mem::take(&mut sh.scratch);
        // not payload: numbers in a message
        sh.pool.read_message(m.index, at, count * RELEASE_BYTES, &mut raw);
        let numbers: SmallVec<[u32; RELEASES_MAX]> =
            raw.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect();
        sh.scratch = raw;
        for number in numbers {
            let references = self.responder.references.as_mut();
            let Some(token) = references.and_then(|all| all.end(number)) else {
                return Err(Fault::peer("reference let go that it does not have"));
            };
            self.counters.references_released += 1;
            if !planted(Defect::ReferenceEndsEarly) {
                sh.sent.push_back(token);
            }
        }
        Ok(())
    }
}
