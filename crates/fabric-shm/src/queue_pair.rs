//! A connected queue pair: its rings, its peer's memory, and what was posted to it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use dafs_fabric::epoll::eventfd_set;
use dafs_fabric::{
    CompletionQueue, Opcode, Piece, QueuePair, RemoteSpan, Rkey, SgList, ShortMessage, Span,
    Status, Views, Words, WorkCompletion, WrId,
};

use crate::bell::{Bell, OwnBell, Ring};
use crate::peer::Peer;
use crate::peer_memory::{Missing, PeerMemory};
use crate::ring::{HEADER_BYTES_MAX, Memory, Next, Receiver, Sender, Violation};
use crate::shared::Account;
use crate::sys;
use crate::wire::{Limits, MESSAGE_BYTES_MAX, Message, Side};

/// Bytes that one queue pair copies in one pass, so that others have their turn.
pub const COPIED_MAX: usize = 1 << 20;
/// One-sided work of so many bytes is done when it is posted; more that a server reads goes past its caches.
pub const AT_ONCE_MAX: usize = 64 * 1024;
/// Messages taken from a socket at a time.
const MESSAGES_MAX: usize = 256;
/// [`Message::Bell`].
const BELL: u8 = 6;
/// Memory of headers kept for use again.
const HEADERS_KEPT: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub enum Kind {
    Send(Vec<u8>),
    Write(RemoteSpan),
    Read(RemoteSpan),
}

/// A work request that could not be done when it was posted.
#[derive(Debug)]
pub struct Work {
    pub wr_id: WrId,
    pub signaled: bool,
    pub kind: Kind,
    pub data: SgList,
    /// Bytes that were copied.
    pub moved: usize,
    /// Bytes in all.
    pub total: usize,
}

/// What a socket brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing more for now.
    All,
    /// The peer has hung up: it has left our memory.
    End,
    /// As `End`, but that it still reads what it was lent.
    Left,
    /// This process has no room for a descriptor that it sent.
    NoRoom,
}

/// What a look at a queue pair finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing has come, and nothing is to be done.
    Quiet,
    /// All there is is left to [`take_short`](Connection::take_short).
    Short,
    /// All else.
    Work,
}

/// A connected queue pair.
pub struct Connection {
    pub queue_pair: QueuePair,
    pub peer: Arc<Peer>,
    pub sender: Sender,
    pub receiver: Receiver,
    pub bell: Bell,
    /// By which the peer rings, and by which this end does where the peer sleeps in epoll: without one, by the socket.
    pub own_bell: Option<OwnBell>,
    pub peers_bell: Option<OwnedFd>,
    pub memory: PeerMemory,
    /// What was posted and not done, in that order.
    pub work: VecDeque<Work>,
    headers: Vec<Vec<u8>>,
    /// What it reads is not looked at soon: a server's.
    keeps_much: bool,
    /// Bytes that were copied at once, with their messages, in a poll.
    copied: (u64, usize),
    /// Completions queued since this poll began.
    completed: (u64, usize),
    /// So many completions were queued when a message of it was told of last.
    pub told: u64,
    /// Messages were put into the ring, and room was made in the other, since the peer was rung.
    pub put: bool,
    pub freed: bool,
    /// On the engine's list of those to be rung.
    pub listed: bool,
    /// On the engine's list of those to be looked at in each pass.
    pub active: bool,
    /// The pass in which something happened.
    pub last: u64,
    /// The peer has left our memory, but for what it was lent.
    pub has_left: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.peer.leave_if_read();
    }
}

impl Connection {
    /// Of a side; the limits are those of what the peer may share, and whose it is.
    pub fn new(
        queue_pair: QueuePair,
        side: Side,
        peer: Arc<Peer>,
        memory: &Arc<Memory>,
        (limits, account): (Limits, Option<Account>),
    ) -> Connection {
        Connection {
            queue_pair,
            peer,
            sender: Sender::new(memory, side),
            receiver: Receiver::new(memory, side),
            bell: Bell::new(memory, side),
            own_bell: None,
            peers_bell: None,
            memory: PeerMemory::new(limits, account),
            work: VecDeque::new(),
            headers: Vec::new(),
            keeps_much: matches!(side, Side::Server),
            copied: (0, 0),
            completed: (0, 0),
            told: 0,
            put: false,
            freed: false,
            listed: false,
            active: false,
            last: 0,
            has_left: false,
        }
    }

    /// Wakes the peer.
    pub fn ring(&self, how: Ring) {
        match (how, &self.peers_bell) {
            (Ring::Word, _) => self.bell.ring_by_word(),
            (Ring::Descriptor, Some(bell)) => eventfd_set(bell.as_raw_fd()),
            // One that is full wakes it as well; one that is closed is noticed elsewhere.
            (Ring::Descriptor, None) => drop(sys::send(self.peer.fd(), &[BELL])),
        }
    }

    /// What the peer has lent, to be read in place. `None`: it cannot be reached.
    pub fn view(&mut self, remotes: &[RemoteSpan]) -> Option<Views> {
        let mut spans = SgList::new();
        for remote in remotes {
            if let Err(Missing::Segment) = self.memory.find(*remote, false) {
                // What else it brings is seen again where that is looked for.
                self.hear(MESSAGES_MAX, false).ok()?;
            }
            let (segment, offset) = self.memory.find(*remote, false).ok()?;
            // What both may write nobody has promised to leave alone.
            if segment.is_writable() {
                return None;
            }
            spans.push(segment.part(offset, remote.len as usize));
        }
        Some(sys::views(spans, self.peer.hold()))
    }

    /// All of a region of the peer that is to be read only. `None`: it cannot be reached.
    pub fn map(&mut self, rkey: Rkey) -> Option<Span> {
        self.region(rkey, false).filter(|region| !region.is_writable())
    }

    /// The words of a region of the peer that both may change. `None`: as of [`map`](Self::map).
    pub fn words(&mut self, rkey: Rkey) -> Option<Words> {
        Words::in_common(&self.region(rkey, true)?)
    }

    fn region(&mut self, rkey: Rkey, write: bool) -> Option<Span> {
        if let Err(Missing::Segment) = self.memory.region(rkey, write) {
            self.hear(MESSAGES_MAX, false).ok()?;
        }
        self.memory.region(rkey, write).ok()
    }

    /// What there is to do for it.
    #[inline(always)]
    pub fn look(&self, leaves_short: bool) -> Look {
        // Nothing was sent since room was made, which is to be told of.
        if self.freed || !self.work.is_empty() {
            return Look::Work;
        }
        match self.receiver.next() {
            Next::Nothing => Look::Quiet,
            Next::Short(_) if leaves_short => Look::Short,
            _ => Look::Work,
        }
    }

    /// The next message is a short one.
    pub fn has_short(&self) -> bool {
        matches!(self.receiver.next(), Next::Short(_))
    }

    /// Takes the next message if it is a short one, and none that came before it is to be told of: so many
    /// completions were polled. False: there is none.
    #[inline(always)]
    pub fn take_short(&mut self, into: &mut ShortMessage, polled: u64) -> bool {
        let Next::Short(message) = self.receiver.next() else { return false };
        if self.told > polled {
            return false;
        }
        self.receiver.copy_short(message, into);
        into.queue_pair = self.queue_pair;
        self.freed = true;
        self.receiver.pop(message);
        true
    }

    /// Work requests that count against the depth of the queue, in this poll.
    #[inline]
    pub fn under_way(&self, poll: u64) -> usize {
        let (of, count) = self.completed;
        self.work.len() + if of == poll { count } else { 0 }
    }

    /// Queues the completion of a work request.
    #[inline]
    pub fn complete(
        &mut self,
        (wr_id, opcode): (WrId, Opcode),
        (status, bytes): (Status, usize),
        (queue, poll): (&mut CompletionQueue, u64),
    ) {
        let (of, count) = self.completed;
        self.completed = (poll, if of == poll { count + 1 } else { 1 });
        let byte_len = u32::try_from(bytes).unwrap_or(u32::MAX);
        let queue_pair = self.queue_pair;
        queue.push(WorkCompletion { wr_id, queue_pair, opcode, status, byte_len, header_len: 0 });
    }

    /// Puts a message into the ring, if it may go there now.
    #[inline]
    pub fn send_now(
        &mut self,
        header: &[u8],
        data: &[Span],
        len: usize,
    ) -> Result<bool, Violation> {
        if self.peer.lags() || !self.sender.has_room(len)? {
            return Ok(false);
        }
        match data {
            [] => self.sender.push_header(header),
            _ => self.sender.push(header, data),
        }
        self.put = true;
        Ok(true)
    }

    /// Puts a message without data into the ring, if it may go there now and nothing is in front. What is wrong with
    /// the peer, where something is, is found by who posts it.
    #[inline]
    pub fn send_header_now(&mut self, header: &[u8]) -> bool {
        let may = header.len() <= HEADER_BYTES_MAX
            && self.work.is_empty()
            && !self.peer.lags()
            && self.sender.has_room(header.len()) == Ok(true);
        if may {
            self.sender.push_header(header);
            self.put = true;
        }
        may
    }

    /// Copies `data` to the peer's memory and puts a message behind it into the ring, if both may go now and
    /// nothing is in front: no more than a pass copies, between two polls. What is wrong with the peer, where
    /// something is, is found by who posts them one by one.
    #[inline]
    pub fn write_and_send_now(
        &mut self,
        data: &[Piece<'_>],
        remote: RemoteSpan,
        header: &[u8],
        poll: u64,
    ) -> bool {
        let bytes = match data {
            [one] => one.len(),
            _ => data.iter().map(Piece::len).sum(),
        };
        let is_small = bytes <= AT_ONCE_MAX;
        let may = (is_small || self.may_copy(bytes, poll)) && header.len() <= HEADER_BYTES_MAX;
        if !may || bytes != remote.len as usize {
            return false;
        }
        if !self.work.is_empty()
            || self.peer.lags()
            || self.sender.has_room(header.len()) != Ok(true)
        {
            return false;
        }
        let Ok((segment, mut at)) = self.memory.find(remote, true) else { return false };
        match data {
            [one] => segment.copy_piece(at, *one),
            _ => data.iter().for_each(|piece| {
                segment.copy_piece(at, *piece);
                at += piece.len();
            }),
        }
        if !is_small {
            let (of, before) = self.copied;
            self.copied = (poll, if of == poll { before + bytes } else { bytes });
        }
        self.sender.push_header(header);
        self.put = true;
        true
    }

    /// So many bytes more may go at once in this poll.
    #[cold]
    fn may_copy(&self, bytes: usize, poll: u64) -> bool {
        let (of, before) = self.copied;
        bytes <= COPIED_MAX - if of == poll { before } else { 0 }
    }

    /// Keeps a send for later.
    pub fn keep_header(&mut self, header: &[u8]) -> Vec<u8> {
        let mut kept = self.headers.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(header);
        kept
    }

    /// Copies up to `bytes` of one-sided work, from where it stands; how many. `None`: the peer does not
    /// allow it.
    pub fn copy(
        &mut self,
        data: &[Span],
        (remote, write): (RemoteSpan, bool),
        moved: usize,
        bytes: usize,
    ) -> Result<Option<usize>, Violation> {
        let missing = match self.memory.find(remote, write) {
            Ok(found) => {
                copy_part(found, data, (write, self.keeps_much), (remote, moved), bytes);
                return Ok(Some(bytes));
            }
            Err(missing) => missing,
        };
        if missing == Missing::Segment {
            // That it has hung up, where it has, is heard again.
            match self.hear(MESSAGES_MAX, false)? {
                Heard::Left => return Err("none: it has left"),
                // What it told of with that is lost.
                Heard::NoRoom => return Err("none: no descriptor is left for its memory"),
                Heard::All | Heard::End => {}
            }
        }
        let Ok(found) = self.memory.find(remote, write) else { return Ok(None) };
        copy_part(found, data, (write, self.keeps_much), (remote, moved), bytes);
        Ok(Some(bytes))
    }

    /// Takes up to so many messages from the socket. A bell is mostly the only one: who is told of more by
    /// epoll ends `at_bell`, and saves the look at a socket that is empty.
    pub fn hear(&mut self, messages: usize, at_bell: bool) -> Result<Heard, Violation> {
        for _ in 0..messages {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let socket = self.peer.socket();
            let received = match self.peer.shares() {
                true => socket.receive(&mut bytes),
                // What a stranger has sent is not believed to close.
                false => socket.receive_carefully(&mut bytes),
            };
            let received = match received {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err("its user has sent descriptors that do not close");
                }
                Err(error) if sys::is_temporary(&error) => return Ok(Heard::All),
                Err(_) => return Ok(Heard::End),
            };
            if received.lost {
                return Ok(Heard::NoRoom);
            }
            if received.len == 0 {
                return Ok(Heard::End);
            }
            if received.is_cut {
                return Err(
                    "a message that is too long, or descriptors that are too many, or no memory",
                );
            }
            let message = Message::decode(bytes.get(..received.len).unwrap_or(&[]));
            let message = message.ok_or("a message of no kind")?;
            if message == Message::Leave && received.descriptors.is_empty() && self.peer.may_read()
            {
                self.has_left = true;
                return Ok(Heard::Left);
            }
            let is_bell = message == Message::Bell;
            self.memory.take(&message, received.descriptors)?;
            if is_bell && at_bell {
                break;
            }
        }
        Ok(Heard::All)
    }

    /// Does what was kept, in order, up to a pass's worth of copies. True: there is more that can be done.
    pub fn go_on(&mut self, (queue, poll): (&mut CompletionQueue, u64)) -> Result<bool, Violation> {
        if self.work.is_empty() {
            return Ok(false);
        }
        let mut left = COPIED_MAX;
        while let Some(mut work) = self.work.pop_front() {
            let is_done = match &work.kind {
                Kind::Send(header) => self.send_now(header, &work.data, work.total)?,
                Kind::Write(remote) | Kind::Read(remote) => {
                    let write = matches!(work.kind, Kind::Write(_));
                    let bytes = (work.total - work.moved).min(left);
                    match self.copy(&work.data, (*remote, write), work.moved, bytes)? {
                        Some(bytes) => {
                            left -= bytes;
                            work.moved += bytes;
                            work.moved == work.total
                        }
                        None => {
                            let what = (work.wr_id, opcode_of(&work.kind));
                            self.complete(what, (Status::RemoteAccess, 0), (queue, poll));
                            continue;
                        }
                    }
                }
            };
            if !is_done {
                let is_send = matches!(work.kind, Kind::Send(_));
                self.work.push_front(work);
                return Ok(!is_send);
            }
            self.is_done(work, (queue, poll));
        }
        Ok(false)
    }

    fn is_done(&mut self, work: Work, (queue, poll): (&mut CompletionQueue, u64)) {
        let opcode = opcode_of(&work.kind);
        if work.signaled {
            let what = (work.wr_id, opcode);
            self.complete(what, (Status::Success, work.total), (queue, poll));
        }
        if let Kind::Send(header) = work.kind
            && self.headers.len() < HEADERS_KEPT
        {
            self.headers.push(header);
        }
    }

    /// All that was posted comes back.
    pub fn flush(&mut self, queue: &mut CompletionQueue) {
        for work in std::mem::take(&mut self.work) {
            let what = (work.wr_id, opcode_of(&work.kind));
            self.complete(what, (Status::Flushed, 0), (queue, 0));
        }
    }

    /// Bytes of a work request that have moved.
    pub fn moved(&self, wr_id: WrId) -> u64 {
        self.work.iter().find(|work| work.wr_id == wr_id).map_or(0, |work| work.moved as u64)
    }
}

fn opcode_of(kind: &Kind) -> Opcode {
    match kind {
        Kind::Send(_) => Opcode::Send,
        Kind::Write(_) => Opcode::RdmaWrite,
        Kind::Read(_) => Opcode::RdmaRead,
    }
}

/// Copies `bytes` between a peer's memory and a list, both from `moved` on.
#[inline]
fn copy_part(
    (segment, offset): (&Span, usize),
    data: &[Span],
    (write, keeps_much): (bool, bool),
    (remote, moved): (RemoteSpan, usize),
    bytes: usize,
) {
    let streams = !write && keeps_much && remote.len as usize > AT_ONCE_MAX;
    let (mut skip, mut at, mut left) = (moved, offset + moved, bytes);
    for span in data {
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let len = (span.len() - skip).min(left);
        match segment.piece().filter(|_| streams) {
            Some(piece) => span.stream_piece(skip, piece.part(at, len)),
            None if write => segment.copy_part(at, span, skip, len),
            None => span.copy_part(skip, segment, at, len),
        }
        (skip, at, left) = (0, at + len, left - len);
        if left == 0 {
            return;
        }
    }
}
