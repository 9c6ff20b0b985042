//! The peer's requests on a connection: from arrival over `fetch` to the reply.

mod fetch;
mod reply;

use dafs_fabric::{RemoteSpan, SgList, sg_bytes};

use crate::REPLY_HEADER_BYTES_MAX;
use crate::connection::{Connection, Fault, Message, State, Work, push_tag};
use crate::credits::CreditGiver;
use crate::event::{Event, RequestId};
use crate::header::{FLAG_STARVED, HEADER_BYTES, Header, Kind, Mode, decode_remotes, tag_slot};
use crate::planted::{Defect, planted};
use crate::segments;
use crate::shared::{Held, Role, Shared, Waiting};
use crate::work::Target;

/// Pieces that a grant asks for: they take receives that nobody promised.
const PIECES_PER_GRANT: u32 = 4;

/// Replies that may be under way to a peer, for each of its slots and beside those. A peer that takes
/// them has fewer: it needs a reply to use a slot again.
const REPLIES_PER_SLOT: usize = 2;
const REPLIES_BESIDE: usize = 64;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Fetch {
    #[default]
    Not,
    Posted,
    Done,
}

/// A reply that was given while the fetch was under way.
struct LateReply {
    header: Vec<u8>,
    data: SgList,
    token: Option<u64>,
}

/// A request in service (or waiting for it).
#[derive(Default)]
struct Slot {
    busy: bool,
    tag: u32,
    /// The tag before, whose data may still be told of.
    retired: Option<u32>,
    mode: Mode,
    reply_mode: Mode,
    data_len: u32,
    room: u32,
    reads: Vec<RemoteSpan>,
    writes: Vec<RemoteSpan>,
    inline: Vec<u8>,
    fetch: Fetch,
    /// Work requests of the fetch.
    work: u32,
    /// Where pieces go.
    into: SgList,
    /// Of what is posted.
    held: Held,
    /// Bytes of pieces, and of reads that are done.
    arrived: u32,
    granted: u32,
    late: Option<Box<LateReply>>,
}

/// A reply that has not left.
struct PendingReply {
    token: u64,
    /// Work requests; 0: the entry is free.
    work: u32,
    /// Bytes of those that are done.
    left: u64,
    /// Of the data.
    held: Held,
    /// The message that follows when the data was written.
    message: Option<Box<(Header, Vec<u8>)>>,
}

/// All requests of the peer on a connection.
pub struct Responder {
    /// Requests that the peer may send.
    pub credits: CreditGiver,
    /// Bytes that it may push.
    pub push: CreditGiver,
    /// The peer waits for byte credits.
    pub starved: bool,
    window: usize,
    slots: Vec<Slot>,
    pending_replies: Vec<PendingReply>,
    pending_free: Vec<u32>,
    /// Pushed data on its way to nowhere: tag and length.
    discards: Vec<(u32, u32)>,
    /// Delivered and not replied.
    in_service: usize,
    /// Replied, and the engine does not have the reply yet.
    replying: usize,
}

impl Responder {
    /// Nothing in service; `window` requests and `push_bytes` are granted.
    pub fn new(window: u32, push_bytes: u32) -> Responder {
        Responder {
            credits: CreditGiver::new(window),
            push: CreditGiver::new(push_bytes),
            starved: false,
            window: window as usize,
            slots: Vec::new(),
            pending_replies: Vec::new(),
            pending_free: Vec::new(),
            discards: Vec::new(),
            in_service: 0,
            replying: 0,
        }
    }

    /// The slot of a request that is in service.
    fn serving(&mut self, tag: u32) -> Option<&mut Slot> {
        self.slots.get_mut(tag_slot(tag)).filter(|slot| slot.busy && slot.tag == tag)
    }

    fn free_slot(&mut self, tag: u32) -> Result<&mut Slot, Fault> {
        let index = tag_slot(tag);
        if index >= self.window {
            return Err(Fault::peer("request in a slot that it does not have"));
        }
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        if slot.busy {
            return Err(Fault::peer("request in a slot that is in use"));
        }
        Ok(slot)
    }

    /// The engine has a reply.
    pub fn reply_left(&mut self) {
        self.replying = self.replying.saturating_sub(1);
    }

    fn leave(&mut self, token: u64, held: Held) -> u32 {
        let entry = PendingReply { token, work: 0, left: 0, held, message: None };
        if let Some(index) = self.pending_free.pop() {
            self.pending_replies[index as usize] = entry;
            return index;
        }
        if self.pending_replies.is_empty() {
            // Replies are reported late now and then; the usual number fits.
            self.pending_replies.reserve(self.window);
            self.pending_free.reserve(self.window);
        }
        self.pending_replies.push(entry);
        (self.pending_replies.len() - 1) as u32
    }
}

impl Connection {
    /// A request arrived.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_request(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let header = &m.header;
        self.check_request(sh, m)?;
        self.responder.credits.take(1)?;
        // Credits go back before the replies leave, but a slot is in use until its reply is there.
        if self.responder.in_service + self.responder.replying >= self.responder.window {
            return Err(Fault::peer("more requests than slots: it does not take its replies"));
        }
        if header.mode == Mode::Tagged {
            self.responder.push.take(header.data_len)?;
        }
        self.responder.starved |= header.flags & FLAG_STARVED != 0;
        if self.responder.pending_replies.len() - self.responder.pending_free.len()
            >= REPLIES_PER_SLOT * self.responder.window + REPLIES_BESIDE
        {
            return Err(Fault::peer("it does not take its replies"));
        }
        let slot = self.responder.free_slot(header.tag)?;
        (slot.busy, slot.tag) = (true, header.tag);
        (slot.mode, slot.reply_mode) = (header.mode, header.reply_mode);
        (slot.data_len, slot.room) = (header.data_len, header.room);
        read_descriptors(sh, m, slot)?;
        let agreed = &self.agreed;
        check_remotes(&slot.reads, header.mode == Mode::Read && agreed.rdma_read, header.data_len)?;
        check_remotes(
            &slot.writes,
            header.reply_mode == Mode::Write && agreed.rdma_write,
            header.room,
        )?;
        let at = HEADER_BYTES + header.descriptor_bytes();
        let header_len = usize::from(header.header_len);
        if header.mode == Mode::Inline {
            slot.inline = sh.take_header();
            let len = header.data_len as usize;
            sh.pool.read_payload(m.index, at + header_len, len, &mut slot.inline);
            self.counters.copied_bytes += u64::from(header.data_len);
        }
        let mut caller_header = sh.take_header();
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
        Ok(())
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
            Mode::Write => false,
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
    pub fn reply(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        header: &[u8],
        (data, token): (SgList, Option<u64>),
    ) {
        let mut data = segments::join(data);
        let len = sg_bytes(&data);
        let open = self.state == State::Open;
        let Some(slot) = self.responder.serving(tag).filter(|_| open) else {
            return unsent(sh, token);
        };
        if slot.fetch == Fetch::Posted {
            slot.late = Some(Box::new(LateReply { header: header.to_vec(), data, token }));
            return;
        }
        let fits = len <= slot.room as usize
            && data.len() <= sh.attr.sge_max
            && header.len() <= REPLY_HEADER_BYTES_MAX;
        if !fits {
            sh.faults.push((self.id.index, Fault::local("reply larger than the request's room")));
            return unsent(sh, token);
        }
        let Some(held) = sh.make_known((Role::Responder, Some(self.id.index)), &mut data, true)
        else {
            // Pushed data that nobody fetched stops the path until the reply leaves.
            let stops = slot.mode == Mode::Tagged && slot.fetch == Fetch::Not;
            if stops || sh.bounces[Role::Responder as usize].is_idle() {
                sh.faults.push((self.id.index, Fault::local("no memory for a reply")));
                return unsent(sh, token);
            }
            slot.late = Some(Box::new(LateReply { header: header.to_vec(), data, token }));
            return sh.starved.push((self.id.index, tag));
        };
        self.end_service(sh, tag);
        let mut message = Header::new(Kind::Reply, tag);
        message.data_len = len as u32;
        self.send_reply(sh, message, header, (data, held), token);
    }

    /// Frees the slot of a request that is replied now.
    fn end_service(&mut self, sh: &mut Shared, tag: u32) {
        let Some(slot) = self.responder.serving(tag) else { return };
        let unwanted = slot.fetch == Fetch::Not && slot.data_len > 0;
        let (mode, data_len) = (slot.mode, slot.data_len);
        sh.recycle(std::mem::take(&mut slot.inline));
        slot.retired = slot.expects(tag).then_some(tag);
        (slot.busy, slot.fetch) = (false, Fetch::Not);
        (slot.arrived, slot.granted, slot.work) = (0, 0, 0);
        if !(planted(Defect::CreditLost) && unwanted) {
            self.responder.credits.give_back(1);
        }
        self.responder.in_service -= 1;
        self.responder.replying += 1;
        sh.in_service -= 1;
        if unwanted && mode == Mode::Tagged {
            self.discard(sh, tag, data_len);
        }
    }

    /// Pushed data that nobody fetched is received and thrown away: the path must not stop.
    fn discard(&mut self, sh: &mut Shared, tag: u32, len: u32) {
        let Some(sink) = sh.sink(len as usize) else {
            let fault = Fault::local("no memory to throw data away");
            return sh.faults.push((self.id.index, fault));
        };
        // The data of a slot's request comes before that of the next one in it.
        if self.responder.discards.len() >= 2 * self.responder.window {
            let fault = Fault::peer("announced data that does not come");
            return sh.faults.push((self.id.index, fault));
        }
        self.counters.discarded_bytes += u64::from(len);
        self.responder.discards.push((tag, len));
        let id = self.work_id(Target::Discard, tag);
        self.post(sh, Work::TaggedRecv(push_tag(tag), None), id, &[], sink, true);
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
            unsent(sh, late);
        }
        for entry in ended.pending_replies.iter().filter(|entry| entry.work > 0) {
            sh.events.push_back(Event::ReplySent { token: entry.token });
        }
    }
}

impl Slot {
    /// Whether pushed data of this tag may arrive.
    fn expects(&self, tag: u32) -> bool {
        let now = self.busy && self.tag == tag;
        let pushed =
            self.mode == Mode::Tagged || (self.mode == Mode::Grant && self.fetch != Fetch::Not);
        (now && pushed) || self.retired == Some(tag)
    }
}

/// A reply that will not be sent: its memory is the caller's again.
pub fn unsent(sh: &mut Shared, token: Option<u64>) {
    if let Some(token) = token {
        sh.events.push_back(Event::ReplySent { token });
    }
}

fn read_descriptors(sh: &mut Shared, m: &Message, slot: &mut Slot) -> Result<(), Fault> {
    slot.reads.clear();
    slot.writes.clear();
    let bytes = m.header.descriptor_bytes();
    if bytes == 0 {
        return Ok(());
    }
    let mut raw = std::mem::take(&mut sh.scratch);
    sh.pool.read_message(m.index, HEADER_BYTES, bytes, &mut raw);
    let (reads, writes) =
        raw.split_at(usize::from(m.header.reads) * crate::header::REMOTE_SPAN_BYTES);
    decode_remotes(reads, &mut slot.reads);
    decode_remotes(writes, &mut slot.writes);
    sh.scratch = raw;
    Ok(())
}

/// Descriptors stand where they belong and cover what is announced.
fn check_remotes(remotes: &[RemoteSpan], expected: bool, len: u32) -> Result<(), Fault> {
    let total: u64 = remotes.iter().map(|remote| u64::from(remote.len)).sum();
    let right = if expected {
        total == u64::from(len) && remotes.iter().all(|remote| remote.len > 0)
    } else {
        remotes.is_empty()
    };
    if right { Ok(()) } else { Err(Fault::peer("descriptors that do not cover the data")) }
}
