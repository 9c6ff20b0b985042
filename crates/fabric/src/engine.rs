//! The traits of a transport: provider, device, listener, engine, waiter.
//!
//! An [`Engine`] is a completion queue together with the queue pairs bound to it. One thread at
//! a time uses it (`&mut self`), so that its hot path takes no lock; a server gives each worker
//! one, a client session has one. Verbs knows the two objects apart; here they are one because
//! nothing above ever splits them (docs/decisions/0001).

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ConnectError, OpenError, PostError, RegisterError};
use crate::mem::{MemoryRegion, Piece, Readers, Span, Views, Words};
use crate::types::{
    Access, Address, DeviceAttr, Hardware, Incoming, NamedAnswer, NamedAsk, PeerInfo, QueuePair,
    QueuePairEvent, RemoteSpan, Rkey, SgList, ShortMessage, Tag, WorkCompletion, WrId,
};

/// A kind of network.
pub trait Provider: Send + Sync {
    /// The scheme of its addresses, `tcp` for example.
    fn name(&self) -> &'static str;
    /// Opens a device with a protection domain of its own: keys of one device mean nothing on
    /// another.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] where this machine lacks what the provider needs.
    fn open(&self) -> Result<Arc<dyn Device>, OpenError>;
    /// What of this machine it goes by, for people: empty where that is nothing but the machine itself.
    fn hardware(&self) -> Vec<Hardware> {
        Vec::new()
    }
}

/// An open device and its protection domain.
pub trait Device: Send + Sync {
    /// What it can do.
    fn attr(&self) -> &DeviceAttr;
    /// Makes `span` reachable for peers by a key, until the region is dropped.
    ///
    /// # Errors
    /// [`RegisterError::Refused`] at a limit: fall back to a copy.
    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError>;
    /// A new completion queue with room for queue pairs.
    ///
    /// # Errors
    /// The system's.
    fn engine(&self) -> Result<Box<dyn Engine>, OpenError>;
    /// Waits for peers at `address`.
    ///
    /// # Errors
    /// [`ConnectError::Address`], [`ConnectError::Io`].
    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError>;

    /// Where a device of this kind, in any process of this host, listens for the clients to whom a server
    /// has told this random `token`, and where those connect. The address proves to each end that the other
    /// one has the token, too, and takes the wish `?server_uid=UID|any` behind it. `None`: this is no
    /// network of one host.
    fn same_host(&self, token: [u8; 16]) -> Option<Address> {
        let _ = token;
        None
    }

    /// The same by a directory that both ends see, also where they have other networks in common, or
    /// none: who may write there is trusted.
    fn local_address(&self, directory: &Path) -> Option<Address> {
        let _ = directory;
        None
    }
}

/// Takes connection requests. Never blocks; slow or silent peers are dropped after a time limit
/// and bounded in number.
pub trait Listener: Send {
    /// Where it listens, with the port that was chosen.
    fn address(&self) -> Address;
    /// The next complete connection request.
    fn poll_accept(&mut self) -> Option<Incoming>;
    /// Readable when `poll_accept` may have something; `None` in simulation.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A completion queue and its queue pairs.
///
/// Posting never blocks, makes no system call and does not allocate once queues have grown; work
/// leaves with [`ring`](Engine::ring) or the next [`poll`](Engine::poll). What is posted belongs
/// to the engine until its completion. Every posted request completes exactly once.
pub trait Engine: Send {
    /// As of the device.
    fn attr(&self) -> &DeviceAttr;
    /// Starts to connect; `Connected` or `Refused` follows as an event.
    ///
    /// # Errors
    /// What can be known at once: a bad address, no descriptor, [`ConnectError::PrivateData`].
    fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError>;
    /// Takes a connection request; the queue pair is connected at once (no event).
    ///
    /// # Errors
    /// [`ConnectError::Resource`], [`ConnectError::PrivateData`], [`ConnectError::Io`].
    fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError>;
    /// Tells the peer why it is not wanted.
    fn reject(&mut self, incoming: Incoming, reason: &str);
    /// Ends a queue pair: all work comes back `Flushed`, then `Quiescent`. What was posted
    /// before and not yet left may be lost. Unknown queue pairs are ignored.
    fn disconnect(&mut self, queue_pair: QueuePair);

    /// Who is at the other end of a queue pair that is connected, as far as the system knows. Not for
    /// hot paths.
    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        let _ = queue_pair;
        None
    }

    /// The peer of a queue pair was told of all memory that it may read: what it is referred to, it reaches, if
    /// that is memory for these `readers`, and it is one of them.
    fn lets_read(&self, queue_pair: QueuePair, readers: Readers) -> bool {
        let _ = (queue_pair, readers);
        true
    }

    /// The peer of a queue pair may read the memory that is [for its user, or for all](Readers), also what becomes
    /// so later. Others than the device's own user and root are not told of it before, as nobody knows who they are.
    /// Nobody is admitted who has no number in this process's user namespace.
    fn admit(&mut self, queue_pair: QueuePair) {
        let _ = queue_pair;
    }

    /// The peer's memory that this process may read, to be read in place: the peer has said that it leaves it
    /// alone until it is told otherwise, or this process has left it. `None`: there is no such way to it.
    fn view(&mut self, queue_pair: QueuePair, remotes: &[RemoteSpan]) -> Option<Views> {
        let _ = (queue_pair, remotes);
        None
    }

    /// All of a region of the peer that this process may read, mapped for as long as the span lives, also after
    /// the connection. The peer changes it at any time, and takes its memory away: what was copied out is to be
    /// checked. `None`: there is no such way to it.
    fn map(&mut self, queue_pair: QueuePair, rkey: Rkey) -> Option<Span> {
        let _ = (queue_pair, rkey);
        None
    }

    /// All words of a region of the peer, mapped for as long as they live, also after the connection, which both may
    /// change at any time. `None`: there is no such way to it, or it may not be both read and written.
    fn words(&mut self, queue_pair: QueuePair, rkey: Rkey) -> Option<Words> {
        let _ = (queue_pair, rkey);
        None
    }

    /// Whether the peer of a queue pair that has become quiescent may still read, by
    /// [`view`](Engine::view), what it was lent. With `awaited`, [`QueuePairEvent::Returned`] follows then;
    /// without, nobody wants to know, and the engine forgets it.
    fn is_still_read(&mut self, queue_pair: QueuePair, awaited: bool) -> bool {
        let _ = (queue_pair, awaited);
        false
    }

    /// Bytes that have moved so far of the data of what was posted to a queue pair as `wr_id` and
    /// has not completed; 0 also where that is not known. Not for hot paths.
    fn moved(&self, queue_pair: QueuePair, wr_id: WrId) -> u64 {
        let _ = (queue_pair, wr_id);
        0
    }

    /// Posts a receive to the engine's shared receive queue; any queue pair may consume it.
    /// A peer that sends while none is posted waits.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    fn post_recv(&mut self, wr_id: WrId, buffers: SgList) -> Result<(), PostError>;
    /// As [`post_recv`](Engine::post_recv), of a receive whose completion was polled, in the order of these,
    /// with the memory that it had. False, and nothing was done: the engine does not have that any more.
    fn post_recv_again(&mut self, wr_id: WrId) -> bool {
        let _ = wr_id;
        false
    }
    /// From now on, messages of at most [`SHORT_MESSAGE_BYTES`](crate::SHORT_MESSAGE_BYTES) stay where they came until
    /// [`take_short`](Engine::take_short) takes them. What came before the end of a queue pair may take receives
    /// all the same. False: the device cannot do that.
    fn leave_short(&mut self) -> bool {
        false
    }
    /// Takes the next short message, which needs no receive and has no completion: for whoever has taken all
    /// completions. Messages of a queue pair come in their order, whether by this or that. False: there is none
    /// before the next [`poll`](Engine::poll).
    fn take_short(&mut self, into: &mut ShortMessage) -> bool {
        let _ = into;
        false
    }
    /// Sends one message: `header`, which is copied now, then `data`. Completes if `signaled`
    /// or in error. Here and below, the list of spans is taken, and left to the caller where the work
    /// request is refused.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError>;
    /// Sends one message without data, if it leaves at once: no completion follows. False, and nothing was done: the
    /// device has no such way, or no room, or work before it; [`post_send`](Engine::post_send) takes it.
    fn send_at_once(&mut self, queue_pair: QueuePair, header: &[u8]) -> bool {
        let _ = (queue_pair, header);
        false
    }
    /// Writes `data` to the peer's memory at `remote`, whose length is that of `data`.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError>;
    /// Writes `data` to the peer's memory at `remote`, whose length is that of `data`, and sends `header`
    /// behind it, of which the peer hears when the data is there: both now, or neither. True: that is done,
    /// and no completion follows. False, and nothing was done: the
    /// device has none that does both at once, has no room or work before it, or is refused the access;
    /// [`post_rdma_write`](Engine::post_rdma_write) tells which.
    fn write_and_send(
        &mut self,
        queue_pair: QueuePair,
        data: &[Piece<'_>],
        remote: RemoteSpan,
        header: &[u8],
    ) -> bool {
        let _ = (queue_pair, data, remote, header);
        false
    }
    /// Reads `remote` into `into`, always signaled. With `fence` it is performed after all reads of
    /// this queue pair that were posted before it; without, where the device does not promise
    /// [`ordered_reads`](DeviceAttr::ordered_reads), in any order with them.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        fence: bool,
    ) -> Result<(), PostError>;
    /// Reads, always signaled, what the peer knows by `name` (at most [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX)
    /// bytes, copied now), from byte `offset` of that on, into `into` (at most
    /// [`NAMED_READ_BYTES_MAX`](crate::NAMED_READ_BYTES_MAX)): as many bytes as there are; the
    /// rest may have been written, too. What the peer does not
    /// know, or does not give, is [`RemoteAccess`](crate::Status::RemoteAccess), and the queue pair lives. In any
    /// order with all else.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_named_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        name: &[u8],
        offset: u64,
    ) -> Result<(), PostError> {
        let _ = (queue_pair, wr_id, into, name, offset);
        Err(PostError::Unsupported)
    }
    /// From now on [`next_named`](Engine::next_named) has what peers ask for by name; without, all is refused. False:
    /// the device cannot do that.
    fn serve_named(&mut self) -> bool {
        false
    }
    /// The next named read of a peer: as many of a queue pair as its send queue is deep wait here or for their
    /// answers to leave.
    fn next_named(&mut self) -> Option<NamedAsk> {
        None
    }
    /// All of them, in their order: they take the place of what is in the list.
    fn take_named(&mut self, asks: &mut Vec<NamedAsk>) {
        asks.clear();
        asks.extend(std::iter::from_fn(|| self.next_named()));
    }
    /// Answers a peer's named read, each once, those of a queue pair in their order: with data, at most as many
    /// bytes as it asks for, signaled or not; or refuses it, without a completion. When the completion of an answer comes,
    /// all answers before it on this queue pair have left their buffers.
    ///
    /// # Errors
    /// See [`PostError`].
    fn answer_named(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        id: u32,
        data: Option<(&mut SgList, bool)>,
    ) -> Result<(), PostError> {
        let _ = (queue_pair, wr_id, id, data);
        Err(PostError::Unsupported)
    }
    /// Answers several with data, of a queue pair and in their order: the last one under the second number, signaled or
    /// not, those before it under the first one, unsignaled. Takes what was posted out of the list.
    ///
    /// # Errors
    /// That of the first one that is left in the list.
    fn answer_all_named(
        &mut self,
        queue_pair: QueuePair,
        (before, last): (WrId, WrId),
        answers: &mut Vec<NamedAnswer>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let (mut left, mut posted, mut ended) = (answers.len(), 0, Ok(()));
        for answer in answers.iter_mut() {
            left -= 1;
            let (wr_id, signaled) = if left == 0 { (last, signaled) } else { (before, false) };
            let data = Some((&mut answer.data, signaled));
            ended = self.answer_named(queue_pair, wr_id, answer.id, data);
            if ended.is_err() {
                break;
            }
            posted += 1;
        }
        answers.drain(..posted);
        ended
    }
    /// Sends `header`, which is copied now, and `data` to the buffers that the peer posted for
    /// `tag`. Large tagged sends interleave and are not ordered among each other, but never
    /// overtake a send posted before them.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_tagged_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError>;
    /// Posts where the one message with `tag` goes: its header to `header`, its data to `data`.
    ///
    /// # Errors
    /// [`PostError::TagInUse`] and others.
    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError>;
    /// Takes back a tagged receive: it completes with `Cancelled` (or had completed). A message
    /// for it that is under way or comes later is received and thrown away.
    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag);

    /// Hands posted work to the network. While more is to be received at once, work may be held
    /// for a bounded number of calls of this and [`poll`](Engine::poll).
    fn ring(&mut self);
    /// Rings (and may hold work as [`ring`](Engine::ring) does), makes progress and appends up to
    /// `max` completions; returns how many. Never blocks. Fair: one busy queue pair does not
    /// starve others.
    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize;
    /// How often every queue pair has been looked at since the engine was opened: one
    /// [`poll`](Engine::poll) need not look at all of them. What had come to a queue pair when
    /// this was `n` is in completions, as far as there were receives, when it is `n + 2`. Servers
    /// judge silence by it: where it stood still, no lease would ever end.
    fn rounds(&self) -> u64;
    /// The next event, in order with the completions already polled.
    fn poll_event(&mut self) -> Option<QueuePairEvent>;
    /// True when it is safe to sleep: nothing is ready and the waiter will wake for what comes.
    /// False: "work is already here", poll again.
    fn arm(&mut self) -> bool;
    /// What to sleep on, shared with other threads.
    fn waiter(&self) -> Arc<dyn Waiter>;
    /// Whether all peers that were lively lately ran on the processor that this thread is on now, as far as they
    /// have said: to spin would keep them from what is waited for. `Some(false)` also where that is not known;
    /// `None`: there are no such peers. Says to peers where this end runs.
    fn peers_are_here(&mut self) -> Option<bool> {
        None
    }
    /// System calls made since the engine was opened (0 where there are none).
    fn system_calls(&self) -> u64 {
        0
    }
}

/// Sleeps for an engine, without holding it.
pub trait Waiter: Send + Sync {
    /// Sleeps until the engine has work, [`wake`](Waiter::wake) was called, or `timeout` is over.
    fn wait(&self, timeout: Option<Duration>);
    /// Ends a `wait` now, or the next one.
    fn wake(&self);
    /// From now on a `wait` also ends when this descriptor becomes readable (once each time, also
    /// when that was before the `wait`), until it is closed.
    ///
    /// # Errors
    /// The system's; this waiter has no descriptors.
    fn watch(&self, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
        let _ = descriptor;
        Err(std::io::ErrorKind::Unsupported.into())
    }
    /// As [`watch`](Waiter::watch), for the [descriptor](Waiter::descriptor) of another engine: a `wait`
    /// ends as long as it is readable.
    ///
    /// # Errors
    /// As of `watch`.
    fn watch_engine(&self, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
        let _ = descriptor;
        Err(std::io::ErrorKind::Unsupported.into())
    }
    /// Whether another [engine](Waiter::watch_engine) may have ended the last `wait`.
    fn engine_told(&self) -> bool {
        true
    }
    /// Nothing has come for this engine: who waited for several was not told of it.
    fn nothing_came(&self) {}
    /// Readable as long as the engine has work that it has not looked at: to sleep for several engines at
    /// a time ([`join_waiters`](crate::join_waiters)). `None`: there is none, and the engine must be polled.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The engine wants to be polled after this time at the latest, of which the descriptor does not
    /// tell. `None`: whenever that is readable.
    fn look_within(&self) -> Option<Duration> {
        None
    }
}
