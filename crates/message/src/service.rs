//! The peer's requests on a connection: from arrival over `fetch` to the reply.

mod at_once;
mod fetch;
mod reply;

use dafs_fabric::{Piece, RemoteSpan, SgList, Span, sg_bytes};
use smallvec::SmallVec;

pub use at_once::AtOnce;

use crate::REPLY_HEADER_BYTES_MAX;
use crate::connection::{Connection, Message, State, Work, push_tag};
use crate::event::{Event, RequestId, Short};
use crate::fault::Fault;
use crate::header::{
    FLAG_STARVED, HEADER_BYTES, Header, Kind, Mode, REMOTE_SPAN_BYTES, decode_remote,
    decode_remotes, tag_slot,
};
use crate::planted::{Defect, planted};
use crate::responder::{Fetch, LateReply, PendingReply, Responder, Slot};
use crate::segments;
use crate::shared::{NoMemory, Role, Shared, Waiting};
use crate::work::Target;

/// Pieces that a grant asks for: they take receives that nobody promised.
const PIECES_PER_GRANT: u32 = 4;

/// Replies that may be under way to a peer, for each of its slots and beside those. A peer that takes
/// them has fewer: it needs a reply to use a slot again.
const REPLIES_PER_SLOT: usize = 2;
const REPLIES_BESIDE: usize = 64;

const UNCOVERED: Fault = Fault::peer("descriptors that do not cover the data");

impl Connection {
    /// A request arrived.
    ///
    /// # Errors
    /// The peer's fault.
    #[inline(always)]
    pub fn handle_request(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        if !self.is_plain_request(sh, m) {
            return match self.has_one_room(sh, &m.header, m.len) {
                true => self.handle_one_room(sh, m),
                false => self.handle_any_request(sh, m),
            };
        }
        self.begin_request(&m.header)?;
        self.deliver_request(sh, m, HEADER_BYTES);
        Ok(())
    }

    /// A request without data that names one piece of memory for the reply's.
    #[inline(never)]
    fn handle_one_room(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let remote = decode_remote(&sh.pool.first_descriptor(m.index));
        if remote.len != m.header.room {
            return Err(UNCOVERED);
        }
        self.begin_request(&m.header)?.writes_to(remote);
        self.deliver_request(sh, m, HEADER_BYTES + REMOTE_SPAN_BYTES);
        Ok(())
    }

    /// Whether a request [with one room](Header::decode_one_room) can be in service where it was received.
    #[inline(always)]
    pub(crate) fn may_begin_short(&self, sh: &Shared, header: &Header) -> bool {
        !self.agreed.tagged
            && self.agreed.rdma_write
            && header.room > 0
            && header.room as usize <= sh.attr.bulk_bytes_max
            && sh.has_room()
    }

    /// The same where it was received without a receive, and [can be](Self::may_begin_short) in service at once,
    /// unless `answer` has answered it; where the caller's header begins.
    #[inline(always)]
    pub(crate) fn begin_short(
        &mut self,
        sh: &mut Shared,
        (header, remote): (&Header, RemoteSpan),
        answer: impl FnOnce(AtOnce<'_>, usize) -> bool,
    ) -> Result<Option<(Short, usize)>, Fault> {
        const AT: usize = HEADER_BYTES + REMOTE_SPAN_BYTES;
        let answer = |at_once: AtOnce<'_>| answer(at_once, AT);
        if remote.len != header.room {
            return Err(UNCOVERED);
        }
        self.admit_request(header)?;
        self.counters.requests_received += 1;
        if self.answer_at_once(sh, (header, remote), answer) {
            return Ok(None);
        }
        self.place_request(header)?.writes_to(remote);
        self.responder.in_service += 1;
        sh.in_service += 1;
        let id = RequestId { conn: self.id, tag: header.tag };
        Ok(Some((Short::Request { id, reply_max: header.room }, AT)))
    }

    /// A request that has data, or more to it than most.
    #[inline(never)]
    fn handle_any_request(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let header = &m.header;
        self.check_request(sh, m)?;
        self.begin_request(header)?;
        if header.releases > 0 {
            self.take_releases(sh, m)?;
        }
        if header.mode == Mode::Tagged {
            self.responder.push.take(header.data_len)?;
        }
        if header.mode != Mode::None || header.reply_mode != Mode::Tagged {
            self.take_descriptors(sh, m)?;
        } else if header.reads + header.writes > 0 {
            return Err(UNCOVERED);
        }
        let at = HEADER_BYTES + header.descriptor_bytes();
        if header.mode == Mode::Inline {
            let slot = &mut self.responder.slots[tag_slot(header.tag)];
            slot.inline = sh.take_header();
            let (at, len) = (at + usize::from(header.header_len), header.data_len as usize);
            sh.pool.read_payload(m.index, at, len, &mut slot.inline);
            self.counters.copied_bytes += u64::from(header.data_len);
        }
        self.deliver_request(sh, m, at);
        Ok(())
    }

    /// Takes a request into its slot, if the peer may send it.
    #[inline(always)]
    fn begin_request(&mut self, header: &Header) -> Result<&mut Slot, Fault> {
        self.admit_request(header)?;
        self.place_request(header)
    }

    /// Takes the credit of a request, if the peer may send one more.
    #[inline(always)]
    fn admit_request(&mut self, header: &Header) -> Result<(), Fault> {
        let responder = &mut self.responder;
        responder.credits.take(1)?;
        // Credits go back before the replies leave, but a slot is in use until its reply is there.
        if responder.in_service + responder.replying >= responder.window {
            return Err(Fault::peer("more requests than slots: it does not take its replies"));
        }
        responder.starved |= header.flags & FLAG_STARVED != 0;
        if responder.pending_replies.len() - responder.pending_free.len()
            >= REPLIES_PER_SLOT * responder.window + REPLIES_BESIDE
        {
            return Err(Fault::peer("it does not take its replies"));
        }
        Ok(())
    }

    /// Takes it into its slot.
    #[inline(always)]
    fn place_request(&mut self, header: &Header) -> Result<&mut Slot, Fault> {
        let slot = self.responder.free_slot(header.tag)?;
        (slot.busy, slot.tag) = (true, header.tag);
        (slot.mode, slot.reply_mode, slot.flags) = (header.mode, header.reply_mode, header.flags);
        (slot.data_len, slot.room) = (header.data_len, header.room);
        Ok(slot)
    }

    /// The caller's header begins `at` so many bytes of the message.
    #[inline(always)]
    fn deliver_request(&mut self, sh: &mut Shared, m: &Message, at: usize) {
        let header = &m.header;
        let mut caller_header = sh.take_header();
        let header_len = usize::from(header.header_len);
        sh.pool.read_message(m.index, at, header_len, &mut caller_header);
        self.counters.requests_received += 1;
        self.responder.in_service += 1;
        let id = RequestId { conn: self.id, tag: header.tag };
        let (data_len, reply_max) = (header.data_len, header.room);
        let pushed = header.mode == Mode::Tagged;
        let waiting = Waiting { id, header: caller_header, data_len, reply_max, pushed };
        if pushed {
            // Its data stops the path until it is fetched; requests in service may need the path.
            sh.deliver(waiting);
        } else {
            sh.deliver_in_turn(waiting);
        }
    }

    /// A request without data, whose reply goes by tag, in which nothing is wrong: most are.
    #[inline]
    fn is_plain_request(&self, sh: &Shared, m: &Message) -> bool {
        let header = &m.header;
        self.agreed.tagged
            && (header.mode, header.reply_mode) == (Mode::None, Mode::Tagged)
            && header.data_len == 0
            && header.descriptor_bytes() == 0
            && header.room as usize <= sh.attr.bulk_bytes_max
            && m.len == HEADER_BYTES + usize::from(header.header_len)
    }

    /// The memory of the peer that a request names, which must be what it is for.
    #[inline(never)]
    fn take_descriptors(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let (header, agreed) = (&m.header, &self.agreed);
        let slot = &mut self.responder.slots[tag_slot(header.tag)];
        let is_read = header.mode == Mode::Read && agreed.rdma_read;
        let is_written = header.reply_mode == Mode::Write && agreed.rdma_write;
        read_descriptors(sh, m, slot);
        check_remotes(&slot.reads, is_read, header.data_len)?;
        check_remotes(&slot.writes, is_written, header.room)
    }

    /// A request without data, whose reply is written to one piece of memory, in which nothing is wrong: most
    /// are where no tags are.
    #[inline]
    fn has_one_room(&self, sh: &Shared, header: &Header, len: usize) -> bool {
        !self.agreed.tagged
            && self.agreed.rdma_write
            && (header.mode, header.reply_mode) == (Mode::None, Mode::Write)
            && (header.data_len, header.reads, header.writes) == (0, 0, 1)
            && header.releases == 0
            && sh.pool.has_first_descriptor()
            && header.room > 0
            && header.room as usize <= sh.attr.bulk_bytes_max
            && len == HEADER_BYTES + REMOTE_SPAN_BYTES + usize::from(header.header_len)
    }

    fn check_request(&self, sh: &Shared, m: &Message) -> Result<(), Fault> {
        let (header, agreed) = (&m.header, &self.agreed);
        let inline = if header.mode == Mode::Inline { header.data_len as usize } else { 0 };
        let len = HEADER_BYTES + header.descriptor_bytes() + usize::from(header.header_len);
        if len.checked_add(inline) != Some(m.len) {
            return Err(Fault::peer("request of another length than it says"));
        }
        if header.data_len.max(header.room) as usize > sh.attr.bulk_bytes_max {
            return Err(Fault::peer("request with more data than a message takes"));
        }
        let data = match header.mode {
            Mode::None => header.data_len == 0,
            Mode::Inline | Mode::Pieces => header.data_len > 0,
            Mode::Tagged | Mode::Grant => header.data_len > 0 && agreed.tagged,
            Mode::Read => header.data_len > 0 && agreed.rdma_read,
            Mode::Write | Mode::Refer => false,
        };
        let reply = match header.reply_mode {
            Mode::Tagged => agreed.tagged,
            Mode::Inline => !agreed.tagged,
            Mode::Write => !agreed.tagged && agreed.rdma_write && header.room > 0,
            _ => false,
        };
        if data && reply { Ok(()) } else { Err(Fault::peer("mode of data that was not agreed")) }
    }

    /// See [`Node::fetched_bytes`](crate::Node::fetched_bytes).
    pub fn fetched_bytes(&self, sh: &Shared, tag: u32) -> u64 {
        let slot = self.responder.slots.get(tag_slot(tag));
        let Some(slot) = slot.filter(|slot| slot.busy && slot.tag == tag) else { return 0 };
        let moving = sh.engine.moved(self.queue_pair, self.work_id(Target::Fetch, tag));
        u64::from(slot.arrived) + moving
    }

    /// See [`Node::replied_bytes`](crate::Node::replied_bytes).
    pub fn replied_bytes(&self, sh: &Shared, token: u64) -> u64 {
        let is = |entry: &PendingReply| entry.work > 0 && entry.token == token;
        let Some(index) = self.responder.pending_replies.iter().position(is) else { return 0 };
        let id = self.work_id(Target::Reply, index as u32);
        self.responder.pending_replies[index].left + sh.engine.moved(self.queue_pair, id)
    }

    /// See [`Node::reply`](crate::Node::reply). With a token its end is told.
    #[inline]
    pub fn reply(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        header: &[u8],
        (data, token): (&mut SgList, Option<u64>),
    ) {
        let is_done = token.is_some_and(|token| {
            if self.agreed.tagged {
                return self.reply_plainly(sh, tag, header, (data, token));
            }
            if self.may_refer(tag)
                && self.reply_by_reference(sh, tag, header, (data, &mut || token))
            {
                return true;
            }
            segments::join(data);
            let pieces: Option<SmallVec<[Piece<'_>; 8]>> = data.iter().map(Span::piece).collect();
            if pieces.is_some_and(|pieces| self.reply_at_once(sh, tag, header, &pieces)) {
                data.clear();
                sh.sent.push_back(token);
                return true;
            }
            self.reply_by_one_write(sh, tag, header, (data, token))
        });
        if !is_done {
            self.reply_any(sh, tag, header, (data, token));
        }
    }

    fn reply_any(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        header: &[u8],
        (data, token): (&mut SgList, Option<u64>),
    ) {
        segments::join(data);
        let len = sg_bytes(data);
        let open = self.state == State::Open;
        let Some(slot) = self.responder.serving(tag).filter(|_| open) else {
            data.clear();
            return sh.unsent(token);
        };
        if slot.fetch == Fetch::Posted {
            slot.late = Some(LateReply::new(header, data, token));
            return;
        }
        let fits = len <= slot.room as usize
            && data.len() <= sh.attr.sge_max
            && header.len() <= REPLY_HEADER_BYTES_MAX;
        if !fits {
            data.clear();
            sh.faults.push((self.id.slot(), Fault::local("reply larger than the request's room")));
            return sh.unsent(token);
        }
        let mut held = None;
        if sh.must_know(data) {
            match sh.make_known((Role::Responder, Some(self.id.slot())), data, true) {
                Ok(found) => held = found,
                Err(NoMemory) => {
                    // Pushed data that nobody fetched stops the path until the reply leaves.
                    let stops = slot.mode == Mode::Tagged && slot.fetch == Fetch::Not;
                    if stops || sh.bounces[Role::Responder as usize].is_idle() {
                        data.clear();
                        sh.faults.push((self.id.slot(), Fault::local("no memory for a reply")));
                        return sh.unsent(token);
                    }
                    slot.late = Some(LateReply::new(header, data, token));
                    return sh.starved.push((self.id.slot(), tag));
                }
            }
        }
        self.end_service(sh, tag);
        let mut message = Header::new(Kind::Reply, tag);
        message.data_len = len as u32;
        self.send_reply(sh, message, header, (data, &mut held), token);
    }

    /// Frees the slot of a request that is replied now.
    #[inline]
    fn end_service(&mut self, sh: &mut Shared, tag: u32) {
        let Some(slot) = self.responder.serving(tag) else { return };
        let unwanted = slot.fetch == Fetch::Not && slot.data_len > 0;
        let (mode, data_len) = (slot.mode, slot.data_len);
        if slot.inline.capacity() > 0 {
            sh.recycle(std::mem::take(&mut slot.inline));
        }
        slot.retired = slot.expects(tag).then_some(tag);
        (slot.busy, slot.fetch) = (false, Fetch::Not);
        (slot.arrived, slot.granted, slot.work) = (0, 0, 0);
        match planted(Defect::CreditLost) && unwanted {
            true => self.responder.replied(),
            false => self.responder.replied_one(),
        }
        sh.in_service -= 1;
        if unwanted && mode == Mode::Tagged {
            self.discard(sh, tag, data_len);
        }
    }

    /// Pushed data that nobody fetched is received and thrown away: the path must not stop.
    fn discard(&mut self, sh: &mut Shared, tag: u32, len: u32) {
        let Some(mut sink) = sh.sink(len as usize) else {
            let fault = Fault::local("no memory to throw data away");
            return sh.faults.push((self.id.slot(), fault));
        };
        // The data of a slot's request comes before that of the next one in it.
        if self.responder.discards.len() >= 2 * self.responder.window {
            let fault = Fault::peer("announced data that does not come");
            return sh.faults.push((self.id.slot(), fault));
        }
        self.counters.discarded_bytes += u64::from(len);
        self.responder.discards.push((tag, len));
        let id = self.work_id(Target::Discard, tag);
        self.post(sh, Work::TaggedRecv(push_tag(tag), None), id, &[], &mut sink, true);
    }

    /// Data was thrown away.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn discarded(&mut self, sh: &mut Shared, tag: u32, byte_len: u32) -> Result<(), Fault> {
        let found = self.responder.discards.iter().position(|(of, _)| *of == tag);
        let Some(found) = found else { return Ok(()) };
        let (_, len) = self.responder.discards.swap_remove(found);
        if len != byte_len {
            return Err(Fault::peer("pushed data of another length than announced"));
        }
        self.landed(sh, len);
        Ok(())
    }

    /// Data waits at a tag for which nothing is posted.
    ///
    /// # Errors
    /// The peer's fault: nobody announced it.
    pub fn check_unmatched(&mut self, tag: dafs_fabric::Tag) -> Result<(), Fault> {
        let wire = tag.0 as u32;
        let responder = &mut self.responder;
        let discarded = responder.discards.iter().any(|(of, _)| *of == wire);
        let known = tag == push_tag(wire)
            && (discarded
                || responder.slots.get(tag_slot(wire)).is_some_and(|slot| slot.expects(wire)));
        if known { Ok(()) } else { Err(Fault::peer("data with a tag that was not announced")) }
    }

    /// The connection ends: what waits for a reply gets none.
    pub fn stop_service(&mut self, sh: &mut Shared) {
        let conn = self.id;
        let before = sh.waiting.len();
        sh.waiting.retain(|waiting| waiting.id.conn != conn);
        let undelivered = before - sh.waiting.len();
        sh.in_service -= self.responder.in_service - undelivered;
        self.responder.in_service = 0;
    }

    /// The connection is quiescent: nothing of its requests is held any more.
    pub fn end_service_all(&mut self, sh: &mut Shared) {
        let window = self.responder.window as u32;
        let ended = std::mem::replace(&mut self.responder, Responder::new(window, 0));
        for slot in ended.slots.into_iter().filter(|slot| slot.busy) {
            let (tag, fetching) = (slot.tag, slot.fetch == Fetch::Posted);
            let late = slot.late.as_ref().and_then(|late| late.token);
            drop(slot);
            if fetching {
                let id = RequestId { conn: self.id, tag };
                sh.events.push_back(Event::Fetched { id, placed: None });
            }
            sh.unsent(late);
        }
        for entry in ended.pending_replies.iter().filter(|entry| entry.work > 0) {
            sh.sent.push_back(entry.token);
        }
        self.end_references(sh, ended.references);
    }
}

#[inline]
fn read_descriptors(sh: &mut Shared, m: &Message, slot: &mut Slot) {
    slot.reads.clear();
    slot.writes.clear();
    let bytes = (usize::from(m.header.reads) + usize::from(m.header.writes)) * REMOTE_SPAN_BYTES;
    if bytes > 0 {
        read_some_descriptors(sh, m, slot, bytes);
    }
}

fn read_some_descriptors(sh: &mut Shared, m: &Message, slot: &mut Slot, bytes: usize) {
    let mut raw = std::mem::take(&mut sh.scratch);
    sh.pool.read_message(m.index, HEADER_BYTES, bytes, &mut raw);
    let (reads, writes) =
        raw.split_at(usize::from(m.header.reads) * crate::header::REMOTE_SPAN_BYTES);
    decode_remotes(reads, &mut slot.reads);
    decode_remotes(writes, &mut slot.writes);
    sh.scratch = raw;
}

/// Descriptors stand where they belong and cover what is announced.
#[inline]
pub fn check_remotes(remotes: &[RemoteSpan], expected: bool, len: u32) -> Result<(), Fault> {
    let total: u64 = remotes.iter().map(|remote| u64::from(remote.len)).sum();
    let right = if expected {
        total == u64::from(len) && remotes.iter().all(|remote| remote.len > 0)
    } else {
        remotes.is_empty()
    };
    if right { Ok(()) } else { Err(UNCOVERED) }
}
