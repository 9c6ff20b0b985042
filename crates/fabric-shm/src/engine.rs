//! The engine: posting, polling, sleeping, and the life of queue pairs.

mod posting;
mod progress;
mod sleeping;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use dafs_fabric::epoll::{self, EpollEvents, Watch};
use dafs_fabric::local::Trust;
use dafs_fabric::{
    Address, CompletionQueue, ConnectError, DeviceAttr, Engine, Incoming, Opcode, OpenError,
    PeerInfo, Piece, PostError, PostedReceive, QueuePair, QueuePairEvent, Readers, ReceiveQueue,
    RemoteSpan, Rkey, SgList, ShortMessage, Span, Status, Tag, Views, Waiter, Words,
    WorkCompletion, WrId, descriptors, local,
};

use self::posting::check_list;
use crate::bell::OwnBell;
use crate::connection::{Accepted, Handshake, check_private_data, reject};
use crate::peer::Peer;
use crate::peer_socket::PeerSocket;
use crate::queue_pair::{AT_ONCE_MAX, Connection, Kind, Work};
use crate::ring::{HEADER_BYTES_MAX, SEND_BYTES_MAX, Violation};
use crate::shared::{
    Account, BULK_BYTES_MAX, RECEIVE_QUEUE_DEPTH, SEND_QUEUE_DEPTH, SGE_MAX, Shared,
};
use crate::slots::{Link, Slots, slot_of};
use crate::sys;
use crate::waiter::ShmWaiter;
use crate::wire::{Message, Side};

/// The engine of `shm`.
pub struct ShmEngine {
    shared: Arc<Shared>,
    slots: Slots,
    receives: ReceiveQueue,
    queue: CompletionQueue,
    waiter: Arc<ShmWaiter>,
    events: EpollEvents,
    /// Slots that are looked at in each pass, each once. Of the others epoll tells.
    active: Vec<u32>,
    /// Slots whose peers may have to be rung, each once.
    to_ring: Vec<u32>,
    /// Short messages stay for [`take_short`](Engine::take_short), which is so far in the list of those that
    /// are active, and has taken so many there since the last poll.
    leaves_short: bool,
    /// Of so many, from that one on, there may be some, as the last poll has seen.
    with_short: usize,
    turn: usize,
    taken: u32,
    took: bool,
    /// Slots whose peers broke the rules while something was posted.
    broken: Vec<(u32, Violation)>,
    polls: u64,
    passes: u64,
    /// How much was done since epoll was asked.
    done: u32,
    /// Something has come since the last sleep, and after so many sleeps before it.
    is_lively: bool,
    lively_sleeps: u32,
    /// It slept, and was not looked at since whether something came by then.
    slept: bool,
    /// Somebody told something by a socket since.
    rang: bool,
    /// The slot that has said that this end sleeps by a word, and is looked at all the same.
    by_word: Option<u32>,
    /// A queue pair has work that can go on.
    has_more: bool,
    rounds: u64,
    system_calls: u64,
}

impl ShmEngine {
    /// Without queue pairs.
    pub fn new(shared: Arc<Shared>) -> Result<ShmEngine, OpenError> {
        Ok(ShmEngine {
            shared,
            slots: Slots::default(),
            receives: ReceiveQueue::default(),
            queue: CompletionQueue::default(),
            waiter: ShmWaiter::new()?,
            events: EpollEvents::new(),
            active: Vec::new(),
            to_ring: Vec::new(),
            leaves_short: false,
            with_short: 0,
            turn: 0,
            taken: 0,
            took: false,
            broken: Vec::new(),
            polls: 1,
            passes: 0,
            done: u32::MAX,
            is_lively: false,
            lively_sleeps: 0,
            slept: false,
            rang: false,
            by_word: None,
            has_more: false,
            rounds: 0,
            system_calls: 0,
        })
    }

    /// A queue pair is connected.
    fn is_up(&mut self, slot: u32, connection: Connection) {
        self.shared.table.add(&connection.peer);
        self.watch_process(slot, &connection.peer);
        let has_ended = connection.peer.process().has_ended();
        self.slots.put(slot, Link::Up(Box::new(connection)));
        self.activate(slot);
        if has_ended {
            self.told_of_process(slot);
        }
    }

    /// Has epoll tell when the process of a peer has ended: a child may keep its socket open for ever.
    fn watch_process(&mut self, slot: u32, peer: &Peer) {
        if let Some(process) = peer.process().descriptor() {
            let (fd, token) = (process.as_raw_fd(), u64::from(slot) | OF_PROCESS);
            if let Err(error) = self.waiter.epoll.watch_own(fd, token, Watch::Add(epoll::EPOLLIN)) {
                // Its socket tells of all other ends.
                tracing::debug!(%error, "the process of a peer cannot be watched");
            }
        }
    }

    /// Looks at a queue pair in each pass from now on.
    fn activate(&mut self, slot: u32) {
        let passes = self.passes;
        if let Some(connection) = self.slots.up(slot) {
            connection.last = passes;
            if !connection.active {
                connection.active = true;
                connection.bell.wake();
                self.active.push(slot);
            }
        }
    }

    fn free_slot(&mut self, slot: u32) -> Link {
        for list in [&mut self.active, &mut self.to_ring] {
            list.retain(|listed| *listed != slot);
        }
        self.broken.retain(|(listed, _)| *listed != slot);
        let link = self.slots.release(slot);
        // Its socket may be closed later, by another thread.
        let socket = match &link {
            Link::Free => None,
            Link::Connecting(handshake) => handshake.socket(),
            Link::Up(connection) => Some(connection.peer.socket()),
            Link::Closing(peer) | Link::Read(peer) => Some(peer.socket()),
        };
        if let Some(socket) = socket {
            self.forget(socket);
        }
        self.waiter.epoll.set_handshakes(!self.slots.handshakes.is_empty());
        link
    }

    /// Epoll tells no more of it, if it did.
    fn forget(&self, socket: &PeerSocket) {
        let _ = self.waiter.epoll.watch_own(socket.as_fd().as_raw_fd(), 0, Watch::Remove);
    }

    /// Ends a queue pair. The peer has left our memory, or will say so by hanging up.
    fn end(&mut self, slot: u32, reason: String, has_left: bool) {
        let queue_pair = self.slots.queue_pair(slot);
        let told = |engine: &mut ShmEngine| {
            engine.queue.push_event(QueuePairEvent::Disconnected { queue_pair, reason });
        };
        let (peer, has_left_but) = match self.slots.link(slot) {
            Some(Link::Up(connection)) => {
                connection.flush(&mut self.queue);
                (connection.peer.clone(), connection.has_left)
            }
            _ => {
                self.free_slot(slot);
                told(self);
                return self.queue.push_event(QueuePairEvent::Quiescent { queue_pair });
            }
        };
        told(self);
        // Also where it is closed next: a child may have our socket too, and the peer may wait for our end.
        self.system_calls += 1;
        peer.leave();
        if has_left || !peer.reaches_us() {
            drop(self.free_slot(slot));
            return self.queue.push_event(QueuePairEvent::Quiescent { queue_pair });
        }
        for list in [&mut self.active, &mut self.to_ring] {
            list.retain(|listed| *listed != slot);
        }
        self.broken.retain(|(listed, _)| *listed != slot);
        drop(self.slots.put(slot, Link::Closing(peer)));
        if has_left_but {
            self.is_left(slot);
        }
    }

    /// Rings peers that sleep and are to see what was done.
    #[inline]
    fn ring_all(&mut self) {
        if !self.to_ring.is_empty() {
            self.ring_listed();
        }
    }

    /// As [`ring_all`](Self::ring_all), also for room alone.
    fn ring_for_all(&mut self) {
        for index in 0..self.active.len() {
            self.list_if_freed(self.active[index]);
        }
        self.ring_all();
    }
}

/// Answers an offer. Where no descriptor can go along, as so many that nobody has taken yet are on their way that the
/// system lets this user send no more, there is no bell.
fn accept_with(peer: &Peer, answer: &[u8], bell: &mut Option<OwnBell>) -> std::io::Result<()> {
    if let Some(given) = bell {
        match sys::send_with(peer.fd(), answer, &[given.as_fd()]) {
            Err(error) if !sys::is_hung_up(&error) => *bell = None,
            sent => return sent,
        }
    }
    sys::send(peer.fd(), answer)
}

/// In the token of a slot: it is about the peer's process, not its socket.
const OF_PROCESS: u64 = 1 << 32;
/// It is about the bell that was given to the peer.
const OF_BELL: u64 = 1 << 33;

impl Engine for ShmEngine {
    fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        let handshake = Handshake::start(address, private_data, &self.shared.table)?;
        let queue_pair = self.slots.take()?;
        let slot = slot_of(queue_pair);
        self.slots.put(slot, Link::Connecting(Box::new(handshake)));
        self.slots.handshakes.push(slot);
        self.waiter.epoll.set_handshakes(true);
        self.step(slot);
        Ok(queue_pair)
    }

    fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        check_private_data(private_data)?;
        let Some(accepted) = incoming.into_inner::<Accepted>() else {
            return Err(ConnectError::PeerProtocol("a request of another provider"));
        };
        let Accepted { socket, memory, limits, shares: bytes, uid } = *accepted;
        if !self.shared.has_room(uid, bytes) {
            self.system_calls += 1;
            reject(socket.as_fd(), "no room in this user's share of shared memory");
            return Err(ConnectError::Resource("a user's share of shared memory"));
        }
        let own_limits = self.shared.limits();
        // Those could read it anyway; whoever has no number here is told apart from nobody.
        let shares = !self.shared.all_are_strangers && Trust::Usual.covers(uid);
        let peer = Peer::new(socket, shares, limits);
        let queue_pair = self.slots.take()?;
        let slot = slot_of(queue_pair);
        let watch = Watch::Add(epoll::EPOLLIN | epoll::EPOLLRDHUP);
        let answer = Message::Accept(own_limits, private_data).encode();
        // Without descriptors for one, the peer rings by its socket.
        let mut bell = OwnBell::new(&self.waiter.epoll, u64::from(slot) | OF_BELL).ok();
        let told = self
            .waiter
            .epoll
            .watch_own(peer.fd(), u64::from(slot), watch)
            .and_then(|()| accept_with(&peer, &answer, &mut bell));
        self.system_calls += 1;
        // Of one that has left already, epoll tells, as of those that leave later.
        if let Err(error) = told
            && !sys::is_hung_up(&error)
        {
            reject(peer.socket().as_fd(), &format!("the server: {}", descriptors::tell(&error)));
            self.forget(peer.socket());
            self.free_slot(slot);
            return Err(error.into());
        }
        let account = Account { shared: self.shared.clone(), uid };
        let given = (own_limits, Some(account));
        let mut connection = Connection::new(queue_pair, Side::Server, peer, &memory, given);
        connection.own_bell = bell;
        self.is_up(slot, connection);
        Ok(queue_pair)
    }

    fn reject(&mut self, incoming: Incoming, reason: &str) {
        if let Some(accepted) = incoming.into_inner::<Accepted>() {
            self.system_calls += 1;
            reject(accepted.socket.as_fd(), reason);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePair) {
        let slot = slot_of(queue_pair);
        match self.slots.current(queue_pair) {
            None | Some(Link::Free | Link::Closing(_) | Link::Read(_)) => return,
            Some(Link::Connecting(_)) => {}
            // What can leave at once may.
            Some(Link::Up(_)) => {
                self.go_on(slot);
                self.ring_for_all();
            }
        }
        if matches!(self.slots.current(queue_pair), Some(Link::Connecting(_) | Link::Up(_))) {
            self.end(slot, "disconnected locally".into(), false);
        }
    }

    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        match self.slots.current(queue_pair) {
            Some(Link::Up(connection)) => local::peer_info(connection.peer.socket().as_fd()).ok(),
            _ => None,
        }
    }

    fn lets_read(&self, queue_pair: QueuePair, readers: Readers) -> bool {
        match self.slots.current(queue_pair) {
            Some(Link::Up(connection)) => connection.peer.reads(readers),
            _ => false,
        }
    }

    fn peers_are_here(&mut self) -> Option<bool> {
        self.all_are_here()
    }

    fn admit(&mut self, queue_pair: QueuePair) {
        if let Some(Link::Up(connection)) = self.slots.current(queue_pair) {
            self.shared.admit(&connection.peer);
        }
    }

    fn view(&mut self, queue_pair: QueuePair, remotes: &[RemoteSpan]) -> Option<Views> {
        self.slots.connection(queue_pair).ok()?.view(remotes)
    }

    fn map(&mut self, queue_pair: QueuePair, rkey: Rkey) -> Option<Span> {
        self.slots.connection(queue_pair).ok()?.map(rkey)
    }

    fn words(&mut self, queue_pair: QueuePair, rkey: Rkey) -> Option<Words> {
        self.slots.connection(queue_pair).ok()?.words(rkey)
    }

    fn is_still_read(&mut self, queue_pair: QueuePair, awaited: bool) -> bool {
        let is_read = matches!(self.slots.current(queue_pair), Some(Link::Read(_)));
        if is_read && !awaited {
            drop(self.free_slot(slot_of(queue_pair)));
        }
        is_read && awaited
    }

    fn moved(&self, queue_pair: QueuePair, wr_id: WrId) -> u64 {
        match self.slots.current(queue_pair) {
            Some(Link::Up(connection)) => connection.moved(wr_id),
            _ => 0,
        }
    }

    fn post_recv(&mut self, wr_id: WrId, buffers: SgList) -> Result<(), PostError> {
        if buffers.len() > SGE_MAX {
            return Err(PostError::TooLarge);
        }
        if self.receives.len() >= RECEIVE_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        self.receives.push_back(PostedReceive { wr_id, buffers });
        Ok(())
    }

    fn post_recv_again(&mut self, wr_id: WrId) -> bool {
        self.receives.len() < RECEIVE_QUEUE_DEPTH && self.receives.again(wr_id)
    }

    fn leave_short(&mut self) -> bool {
        self.leaves_short = true;
        true
    }

    fn take_short(&mut self, into: &mut ShortMessage) -> bool {
        self.take_next_short(into)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        if header.len() > HEADER_BYTES_MAX {
            return Err(PostError::TooLarge);
        }
        let total = header.len() + check_list(data, SEND_BYTES_MAX - header.len())?;
        let (polls, passes) = (self.polls, self.passes);
        let connection = self.slots.connection(queue_pair)?;
        if connection.under_way(polls) >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let slot = slot_of(queue_pair);
        if connection.work.is_empty() {
            match connection.send_now(header, data, total) {
                Ok(true) => {
                    if signaled {
                        let queue = (&mut self.queue, polls);
                        connection.complete((wr_id, Opcode::Send), (Status::Success, total), queue);
                    }
                    data.clear();
                    connection.last = passes;
                    if !std::mem::replace(&mut connection.listed, true) {
                        self.to_ring.push(slot);
                    }
                    if !connection.active {
                        self.activate(slot);
                    }
                    return Ok(());
                }
                Ok(false) => {}
                Err(why) => self.broken.push((slot, why)),
            }
        }
        let kind = Kind::Send(connection.keep_header(header));
        let data = std::mem::take(data);
        self.post_work(queue_pair, Work { wr_id, signaled, kind, data, moved: 0, total })
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        let total = check_list(data, BULK_BYTES_MAX.min(remote.len as usize))?;
        let len = u32::try_from(total).map_err(|_| PostError::TooLarge)?;
        let remote = RemoteSpan { len, ..remote };
        self.post_one_sided(queue_pair, (wr_id, signaled), data, (remote, true))
    }

    #[inline]
    fn write_and_send(
        &mut self,
        queue_pair: QueuePair,
        data: &[Piece<'_>],
        remote: RemoteSpan,
        header: &[u8],
    ) -> bool {
        let polls = self.polls;
        let is_done = self.put_now(queue_pair, |connection| {
            connection.write_and_send_now(data, remote, header, polls)
        });
        if is_done && remote.len as usize > AT_ONCE_MAX {
            self.has_copied();
        }
        is_done
    }

    #[inline]
    fn send_at_once(&mut self, queue_pair: QueuePair, header: &[u8]) -> bool {
        self.put_now(queue_pair, |connection| connection.send_header_now(header))
    }

    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        _fence: bool,
    ) -> Result<(), PostError> {
        let room = check_list(into, usize::MAX)?;
        if remote.len as usize > BULK_BYTES_MAX.min(room) {
            return Err(PostError::TooLarge);
        }
        self.post_one_sided(queue_pair, (wr_id, true), into, (remote, false))
    }

    fn post_tagged_send(
        &mut self,
        _queue_pair: QueuePair,
        _wr_id: WrId,
        _tag: Tag,
        _header: &[u8],
        _data: &mut SgList,
        _signaled: bool,
    ) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn post_tagged_recv(
        &mut self,
        _queue_pair: QueuePair,
        _wr_id: WrId,
        _tag: Tag,
        _header: Option<Span>,
        _data: &mut SgList,
    ) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn cancel_tagged_recv(&mut self, _queue_pair: QueuePair, _tag: Tag) {}

    fn ring(&mut self) {
        self.ring_all();
    }

    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.ring_all();
        (self.turn, self.taken) = (0, 0);
        let is_quiet = self.pass_quietly();
        if !is_quiet && self.queue.len() < max {
            self.pass();
            self.ring_all();
        }
        self.polls += 1;
        if is_quiet { 0 } else { self.queue.poll(completions, max) }
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        self.queue.next_event()
    }

    fn arm(&mut self) -> bool {
        self.prepare_sleep()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.waiter.clone()
    }

    fn system_calls(&self) -> u64 {
        self.system_calls + self.waiter.system_calls()
    }
}
