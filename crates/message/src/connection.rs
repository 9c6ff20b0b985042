//! A connection: what both sides agreed, posting with an outbox.

use std::collections::VecDeque;

use dafs_fabric::{NamedAnswer, PostError, QueuePair, RemoteSpan, SgList, Span, Tag, WrId};

use crate::config::ConnOptions;
use crate::event::ConnId;
use crate::fault::Fault;
use crate::header::{HEADER_BYTES, Header, Kind, SMALL_MESSAGE_BYTES, Setup};
use crate::references::Releases;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::shared::Shared;
use crate::stats::Counters;
use crate::work::{Target, work_id};

/// Posts in a row that need not complete.
const SILENT_POSTS_MAX: u32 = 16;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for the peer's answer.
    Connecting,
    /// Stands.
    Open,
    /// Its end was told; memory comes back with `Quiescent`.
    Closing,
}

/// What holds for both directions.
#[derive(Debug, Clone, Copy)]
pub struct Agreed {
    /// Replies and pushed data are matched by tag.
    pub tagged: bool,
    /// Request data may be read.
    pub rdma_read: bool,
    /// Reply data may be written.
    pub rdma_write: bool,
    /// Reply data is written before the message that follows, and a refused write ends no connection.
    pub writes_at_once: bool,
    /// A reply may refer to its data.
    pub refers: bool,
    /// And lend it.
    pub lends: bool,
    /// Bytes of the peer's receives, without data areas.
    pub peer_header_bytes: usize,
    /// Bytes of the peer's receives in all.
    pub peer_message_bytes: usize,
    /// Bytes of a reply that is put together on the stack.
    pub small_reply_bytes: usize,
    /// And of a request that has room in the peer's receives without their data areas.
    pub small_request_bytes: usize,
    /// Bytes of the `header` of a send.
    pub send_header_bytes: usize,
    /// Bytes of data in a piece.
    pub piece_bytes: usize,
    /// Header bytes of a piece, filled up so that data lands in the data area.
    pub piece_header_bytes: usize,
}

impl Agreed {
    /// From both set-up blocks.
    pub fn new(ours: &Setup, theirs: &Setup, sh: &Shared) -> Agreed {
        let header_bytes = usize::from(theirs.header_bytes);
        let area_bytes = theirs.area_bytes as usize;
        let send_max = sh.attr.send_bytes_max;
        let area = area_bytes.min(send_max.saturating_sub(header_bytes));
        let padded = area > 0 && header_bytes <= sh.attr.header_bytes_max;
        let plain = header_bytes.min(send_max).saturating_sub(HEADER_BYTES);
        let (tagged, attr) = (ours.tagged && theirs.tagged, &sh.attr);
        let peer_message_bytes = (header_bytes + area_bytes).min(send_max);
        Agreed {
            tagged,
            rdma_read: ours.rdma_read && theirs.rdma_read,
            rdma_write: ours.rdma_write && theirs.rdma_write,
            writes_at_once: !tagged && attr.recoverable_access_fault && !attr.local_registration,
            refers: ours.refers && theirs.refers && !tagged,
            lends: ours.lends && theirs.lends && !tagged,
            peer_header_bytes: header_bytes.min(send_max),
            peer_message_bytes,
            small_reply_bytes: SMALL_MESSAGE_BYTES
                .min(attr.header_bytes_max)
                .min(peer_message_bytes),
            small_request_bytes: SMALL_MESSAGE_BYTES
                .min(attr.header_bytes_max)
                .min(header_bytes.min(send_max)),
            send_header_bytes: sh.attr.header_bytes_max,
            piece_bytes: if padded { area } else { plain },
            piece_header_bytes: if padded { header_bytes } else { HEADER_BYTES },
        }
    }
}

/// What to post.
#[derive(Debug)]
pub enum Work {
    /// A message.
    Send,
    /// A tagged message.
    TaggedSend(Tag),
    /// Room for one; its header goes to this piece of the reply memory.
    TaggedRecv(Tag, Option<u32>),
    /// An RDMA read.
    Read(RemoteSpan),
    /// An RDMA write.
    Write(RemoteSpan),
    /// The answer to this named read.
    NamedAnswer(u32),
    /// It is not given.
    NamedRefusal(u32),
}

/// Work that met a full queue.
struct Deferred {
    work: Work,
    id: WrId,
    header: Vec<u8>,
    data: SgList,
    signaled: bool,
}

/// A connection to one peer, who asks and is asked.
pub struct Connection {
    /// Its name for the owner of the node.
    pub id: ConnId,
    /// Its name for the engine.
    pub queue_pair: QueuePair,
    /// Where it is in its life.
    pub state: State,
    /// Its owner never heard of it, or heard that it was refused: no more events.
    pub unannounced: bool,
    /// As given.
    pub options: ConnOptions,
    /// What we told the peer.
    pub ours: Setup,
    /// Receives promised for it.
    pub receives: usize,
    /// Known once it is open.
    pub agreed: Agreed,
    /// Our requests.
    pub requester: Requester,
    /// The peer's requests.
    pub responder: Responder,
    /// What happened.
    pub counters: Counters,
    /// References that are to be let go.
    pub releases: Releases,
    /// Receives that broke off with it; its transport may still write to them.
    pub orphaned_receives: Vec<u32>,
    outbox: VecDeque<Deferred>,
    /// Posts since the last one that completes.
    silent_posts: u32,
}

impl Connection {
    /// A connection that is not open yet.
    pub fn new(
        id: ConnId,
        queue_pair: QueuePair,
        ours: Setup,
        options: ConnOptions,
        receives: usize,
        sh: &Shared,
    ) -> Connection {
        Connection {
            id,
            queue_pair,
            state: State::Connecting,
            unannounced: false,
            options,
            ours,
            receives,
            agreed: Agreed::new(&ours, &ours, sh),
            requester: Requester::default(),
            responder: Responder::new(u32::from(ours.window), ours.push_bytes),
            counters: Counters::default(),
            releases: Releases::default(),
            orphaned_receives: Vec::new(),
            outbox: VecDeque::new(),
            silent_posts: 0,
        }
    }

    /// The peer's set-up is known.
    pub fn open(&mut self, theirs: &Setup, sh: &Shared) {
        self.agreed = Agreed::new(&self.ours, theirs, sh);
        self.requester = Requester::new(theirs, self.options.requests_max);
        self.state = State::Open;
    }

    /// The number of a work request of this connection.
    #[inline]
    pub fn work_id(&self, target: Target, index: u32) -> WrId {
        WrId(work_id(target, self.id.slot(), index))
    }

    /// Puts the credits that the peer has now into a header.
    #[inline]
    pub fn piggyback_credits(&mut self, header: &mut Header) {
        header.credit_limit = self.responder.credits.advertise();
        header.push_limit = self.responder.push.advertise();
        self.responder.starved = false;
    }

    /// Posts, in order behind what waits already, and takes the list. What cannot be posted for another reason than
    /// a full queue ends the connection.
    pub fn post(
        &mut self,
        sh: &mut Shared,
        work: Work,
        id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) {
        self.post_inline(sh, work, id, header, data, signaled);
    }

    /// The same for the few places from which most is posted.
    #[inline(always)]
    pub fn post_inline(
        &mut self,
        sh: &mut Shared,
        work: Work,
        id: WrId,
        header: &[u8],
        data: &mut SgList,
        mut signaled: bool,
    ) {
        sh.posted = true;
        // A full queue must hold work whose completion wakes us.
        self.silent_posts = if signaled { 0 } else { self.silent_posts + 1 };
        if self.silent_posts == SILENT_POSTS_MAX {
            (self.silent_posts, signaled) = (0, true);
        }
        // Room for tagged data takes no place in the send queue, and what the peer sends may wait
        // for it: it must not wait for the peer.
        let at_once = matches!(work, Work::TaggedRecv(..));
        if at_once || self.outbox.is_empty() {
            match issue(sh, self.queue_pair, &work, id, header, data, signaled) {
                Ok(()) => return self.handed_over(header),
                Err(PostError::QueueFull) => {}
                Err(error) => return self.post_failed(sh, error),
            }
            if self.outbox.is_empty() {
                sh.blocked.push(self.id.slot());
            }
        }
        self.defer(sh, work, id, header, data, signaled);
    }

    /// Posts a message without data of which no end is told.
    #[inline(always)]
    pub fn send_small(&mut self, sh: &mut Shared, id: WrId, message: &[u8]) {
        if self.outbox.is_empty() && sh.engine.send_at_once(self.queue_pair, message) {
            sh.posted = true;
            return self.handed_over(message);
        }
        self.post_inline(sh, Work::Send, id, message, &mut SgList::new(), false);
    }

    /// Answers named reads, the last one under this number; takes the list.
    pub fn answer_named(
        &mut self,
        sh: &mut Shared,
        id: WrId,
        answers: &mut Vec<NamedAnswer>,
        mut signaled: bool,
    ) {
        sh.posted = true;
        self.silent_posts = if signaled { 0 } else { self.silent_posts + answers.len() as u32 };
        if self.silent_posts >= SILENT_POSTS_MAX {
            (self.silent_posts, signaled) = (0, true);
        }
        let before = self.work_id(Target::Control, 0);
        if self.outbox.is_empty() {
            let numbers = (before, id);
            match sh.engine.answer_all_named(self.queue_pair, numbers, answers, signaled) {
                Ok(()) => return,
                Err(PostError::QueueFull) => sh.blocked.push(self.id.slot()),
                Err(error) => {
                    answers.clear();
                    return self.post_failed(sh, error);
                }
            }
        }
        let mut left = answers.len();
        for NamedAnswer { id: number, mut data } in answers.drain(..) {
            left -= 1;
            let (id, signaled) = if left == 0 { (id, signaled) } else { (before, false) };
            self.defer(sh, Work::NamedAnswer(number), id, &[], &mut data, signaled);
        }
    }

    /// Refuses a named read, behind the answers to those before it.
    pub fn refuse_named(&mut self, sh: &mut Shared, id: WrId, number: u32) {
        if self.outbox.is_empty() {
            sh.posted = true;
            // Where there is no connection any more nobody waits for it.
            let _ = sh.engine.answer_named(self.queue_pair, id, number, None);
        } else {
            self.defer(sh, Work::NamedRefusal(number), id, &[], &mut SgList::new(), false);
        }
    }

    /// Work waits for room in the engine's queue.
    #[cold]
    fn defer(
        &mut self,
        sh: &mut Shared,
        work: Work,
        id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) {
        let data = std::mem::take(data);
        self.counters.queue_full += 1;
        let mut copy = sh.take_header();
        copy.extend_from_slice(header);
        self.outbox.push_back(Deferred { work, id, header: copy, data, signaled });
    }

    /// The engine has a message that begins with `header`.
    #[inline]
    fn handed_over(&mut self, header: &[u8]) {
        if header.first() == Some(&(Kind::Reply as u8)) {
            self.responder.reply_left();
        }
    }

    #[cold]
    fn post_failed(&self, sh: &mut Shared, error: PostError) {
        let reason = match error {
            // The engine tells of the end.
            PostError::NotConnected => return,
            PostError::TooLarge => "work request too large for the device",
            PostError::NotRegistered => "memory is not registered with the device",
            PostError::Unsupported => "operation not supported by the device",
            PostError::TagInUse => "tag in use",
            _ => "work request refused by the device",
        };
        sh.faults.push((self.id.slot(), Fault::local(reason)));
    }

    /// Posts what waits, as far as there is room. True when nothing is left.
    pub fn flush(&mut self, sh: &mut Shared) -> bool {
        while let Some(mut next) = self.outbox.pop_front() {
            let (work, header, data) = (&next.work, &next.header, &mut next.data);
            match issue(sh, self.queue_pair, work, next.id, header, data, next.signaled) {
                Ok(()) => {
                    sh.posted = true;
                    self.handed_over(&next.header);
                    sh.recycle(next.header);
                }
                Err(PostError::QueueFull) => {
                    self.outbox.push_front(next);
                    return false;
                }
                Err(error) => self.post_failed(sh, error),
            }
        }
        true
    }

    /// Nothing waits to be posted.
    #[inline]
    pub fn outbox_is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Forgets what waits to be posted.
    pub fn clear_outbox(&mut self) {
        self.outbox.clear();
    }

    /// Sends a message of headers only.
    pub fn send_control(&mut self, sh: &mut Shared, mut header: Header) {
        self.piggyback_credits(&mut header);
        let mut message = std::mem::take(&mut sh.scratch);
        message.clear();
        header.encode(&mut message);
        let id = self.work_id(Target::Control, 0);
        self.post(sh, Work::Send, id, &message, &mut SgList::new(), false);
        sh.scratch = message;
    }

    /// Sends data (or bytes of a header) in pieces. Returns their number.
    pub fn send_pieces(
        &mut self,
        sh: &mut Shared,
        mut header: Header,
        data: &[Span],
        (from, len): (usize, usize),
        id: WrId,
    ) -> u32 {
        let (piece_bytes, mut at, mut count) = (self.agreed.piece_bytes.max(1), from, 0);
        while at < from + len {
            let now = piece_bytes.min(from + len - at);
            (header.room, header.data_len) = (at as u32, now as u32);
            self.piggyback_credits(&mut header);
            let mut message = std::mem::take(&mut sh.scratch);
            message.clear();
            header.encode(&mut message);
            message.resize(self.agreed.piece_header_bytes, 0);
            let mut part = crate::segments::cut(data, at, now);
            self.post(sh, Work::Send, id, &message, &mut part, true);
            sh.scratch = message;
            at += now;
            count += 1;
        }
        count
    }

    /// Takes the credits that came with a message.
    ///
    /// # Errors
    /// The peer's fault.
    #[inline(always)]
    pub fn update_credits(&mut self, header: &Header) -> Result<(), Fault> {
        self.requester.credits.update(header.credit_limit)?;
        self.requester.push.update(header.push_limit)
    }
}

/// A message that arrived: its header, in which receive it is, its bytes.
pub struct Message {
    /// Checked only as far as each field for itself.
    pub header: Header,
    /// The receive.
    pub index: u32,
    /// Bytes in all.
    pub len: usize,
}

impl Message {
    /// Where the data of a piece begins.
    ///
    /// # Errors
    /// The peer's fault: not behind the header, nor at the data area.
    pub fn piece_offset(&self, area_offset: usize) -> Result<usize, Fault> {
        let offset = self.len.checked_sub(self.header.data_len as usize);
        offset
            .filter(|at| (*at == HEADER_BYTES || *at == area_offset) && self.header.data_len > 0)
            .ok_or_else(|| Fault::peer("piece of another length than it says"))
    }
}

#[inline(always)]
fn issue(
    sh: &mut Shared,
    queue_pair: QueuePair,
    work: &Work,
    id: WrId,
    header: &[u8],
    data: &mut SgList,
    signaled: bool,
) -> Result<(), PostError> {
    let engine = &mut *sh.engine;
    match work {
        Work::Send => engine.post_send(queue_pair, id, header, data, signaled),
        Work::TaggedSend(tag) => {
            engine.post_tagged_send(queue_pair, id, *tag, header, data, signaled)
        }
        Work::TaggedRecv(tag, memory) => {
            let header = memory.map(|index| sh.reply_memory.span(index));
            engine.post_tagged_recv(queue_pair, id, *tag, header, data)
        }
        Work::Read(remote) => engine.post_rdma_read(queue_pair, id, data, *remote, false),
        Work::Write(remote) => engine.post_rdma_write(queue_pair, id, data, *remote, signaled),
        Work::NamedAnswer(number) => {
            engine.answer_named(queue_pair, id, *number, Some((data, signaled)))
        }
        Work::NamedRefusal(number) => engine.answer_named(queue_pair, id, *number, None),
    }
}

/// The fabric's tag of a reply.
pub fn reply_tag(tag: u32) -> Tag {
    Tag(1 << 62 | u64::from(tag))
}

/// The fabric's tag of a request's data.
pub fn push_tag(tag: u32) -> Tag {
    Tag(1 << 63 | u64::from(tag))
}
