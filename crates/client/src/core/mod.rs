//! The session as a state machine: no thread, no clock, no randomness of its own.
//!
//! A [`Core`] owns a message [`Node`] and does what it is asked to by [`submit`](Core::submit)
//! whenever [`progress`](Core::progress) is called, with the time that it is told. A simulation
//! drives it as well as threads do.

mod answer;
mod attempts;
mod call;
mod callbacks;
mod cancel;
mod chain;
mod config;
mod credentials;
mod delivery;
mod dispatch;
mod done_queue;
mod files;
mod flights;
mod give_back;
mod ids;
mod in_doubt;
mod internal_answer;
mod kept_files;
mod kept_memory;
mod lent;
mod link;
mod locks;
mod named;
mod named_reads;
mod open_options;
mod opens;
mod output;
mod own_reads;
mod place;
mod plain_reads;
mod recovery;
mod referred;
mod replaced;
mod replay_log;
mod rewriting;
mod same_host;
mod submission;
mod unsynced;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::{Buffer, PostedBuffer, Waiter};
use dafs_message::{Event, Node};
use dafs_protocol::{
    Attr, ClientId, ClientSlots, FileHandle, Identity, Nonce, OpResult, SessionId, SessionSecret,
};

pub use call::{Beside, CoreDone};
pub use cancel::Cancelled;
pub use config::{CoreConfig, Facts};
pub use ids::{FileKey, Owner};
pub use kept_memory::{KeptMemory, SharedBytes};
pub use named::NamedCounts;
pub use open_options::OpenOptions;
pub use output::{Advised, Object, Opened, Output, Referred};
pub use own_reads::OwnReads;
pub use place::{Place, Put};
pub use work::{Memory, Work};

use crate::error::Error;
use call::CallRecord;
use callbacks::Callbacks;
use credentials::Credentials;
use done_queue::DoneQueue;
use files::{Files, Finder};
use flights::Flights;
use link::Link;
use locks::Locks;
use own_reads::Telling;
use recovery::Recovery;
pub use replay_log::KeptBytes;
use replay_log::ReplayId;
pub(crate) use replay_log::Spares;
use same_host::SameHost;
pub(crate) use same_host::is_usual;

/// Fills a nonce with random bytes.
pub type NonceSource = Box<dyn FnMut(&mut Nonce) + Send>;

/// Calls that wait for a slot.
const QUEUE_MAX: usize = 4096;
/// Where the session is.
#[derive(Debug)]
enum Phase {
    /// No connection, and none is tried: the next call begins.
    Idle,
    /// The first connection is made, or made again.
    Opening,
    /// The export's root is asked for.
    Rooting,
    /// So many files are yet to be opened in the new session.
    Reopening(usize),
    /// So many locks are yet to be reclaimed in the new session.
    Reclaiming(usize),
    /// So many questions what became of a call are yet to be answered.
    Asking(usize),
    /// Kept writes are written again.
    Rewriting(rewriting::Rewriting),
    /// The server is told that this was all.
    Completing,
    /// Calls flow, as far as their links are connected.
    Ready,
    /// All connections end; when no memory is in use any more, this follows.
    Draining(Next),
    /// Over.
    Closed,
}

/// What follows when all connections are quiescent.
#[derive(Debug)]
enum Next {
    /// The server forgot the session: make another, and go on.
    NewSession {
        /// After a while: the last one was of no use.
        pause: bool,
    },
    /// All calls fail.
    Fail(Error),
}

/// The names of a session.
#[derive(Debug, Clone, Copy)]
struct SessionKeys {
    id: SessionId,
    secret: SessionSecret,
}

/// Which session it is.
struct SessionState {
    nonces: NonceSource,
    client: ClientId,
    keys: Option<SessionKeys>,
    /// Connections that were made for it, or for those before it.
    attempts: u64,
    /// There was one once: from then on a lost server is waited for.
    established: bool,
    closing: bool,
    destroyed: bool,
    /// What calls fail with that come after the end; `None`: they are interrupted.
    ended: Option<Error>,
    facts: Facts,
    root: FileHandle,
    telling: Telling,
}

/// Requests under way, and calls that wait to be one.
struct Requests {
    slots: ClientSlots,
    flights: Flights,
    /// Of the reply that is being looked at; kept for its memory.
    results: Vec<OpResult>,
    /// Flights that are not posted now.
    unposted: usize,
    /// The core's own calls; they go first.
    urgent: VecDeque<Box<CallRecord>>,
    /// Small and bulk calls that wait.
    queues: [VecDeque<Box<CallRecord>>; 2],
    /// Calls without an owner, queued or under way.
    background: usize,
    rung: bool,
}

/// What ended, and memory for what comes.
#[derive(Default)]
struct Answers {
    done: DoneQueue,
    /// Answers whose buffer is still in use somewhere.
    lingering: Vec<(CoreDone, PostedBuffer)>,
    notices: VecDeque<String>,
    scratch: Vec<Buffer>,
    records: Vec<Box<CallRecord>>,
}

/// One session with its connections, calls and files.
pub struct Core {
    node: Node,
    config: CoreConfig,
    now: Duration,
    phase: Phase,
    links: [Link; 2],
    /// Until then no link needs attention, if all stand that are wanted.
    settled_until: Duration,
    same_host: SameHost,
    /// `progress` is wanted, not only `ring`.
    wants_progress: bool,
    session: SessionState,
    requests: Requests,
    recovery: Recovery,
    answers: Answers,
    files: Files,
    credentials: Credentials,
    locks: Locks,
    callbacks: Callbacks,
}

impl Core {
    /// A core that connects with `node` when it is first asked for something.
    pub fn new(node: Node, config: CoreConfig, mut nonces: NonceSource) -> Core {
        let mut nonce = Nonce::default();
        nonces(&mut nonce);
        let client = nonce.first_chunk().map_or_else(ClientId::default, |id| ClientId(*id));
        let facts = Facts::before(&config);
        let session = SessionState {
            nonces,
            client,
            keys: None,
            attempts: 0,
            established: false,
            closing: false,
            destroyed: false,
            ended: None,
            facts,
            root: FileHandle::default(),
            telling: Telling::default(),
        };
        let requests = Requests {
            slots: ClientSlots::new(0),
            flights: Flights::default(),
            results: Vec::new(),
            unposted: 0,
            urgent: VecDeque::new(),
            queues: [VecDeque::new(), VecDeque::new()],
            background: 0,
            rung: true,
        };
        Core {
            node,
            config,
            now: Duration::ZERO,
            phase: Phase::Idle,
            links: [Link::new(), Link::new()],
            settled_until: Duration::ZERO,
            same_host: SameHost::default(),
            wants_progress: false,
            session,
            requests,
            recovery: Recovery::default(),
            answers: Answers::default(),
            files: Files::default(),
            credentials: Credentials::default(),
            locks: Locks::default(),
            callbacks: Callbacks::default(),
        }
    }

    /// Whether another call may be submitted.
    pub fn has_room(&self) -> bool {
        self.requests.queues.iter().map(VecDeque::len).sum::<usize>() < QUEUE_MAX
    }

    /// What is kept of the writes of a file now.
    pub fn kept_memory(&self, file: FileKey) -> KeptMemory {
        self.files.kept_memory(file)
    }

    /// The answers for `owner` are not wanted any more. Calls that did not leave are dropped;
    /// buffers of the others are freed when the network has left them.
    pub fn abandon_owner(&mut self, owner: Owner) {
        let flights = self.requests.flights.all().iter_mut().flatten();
        let calls = flights.map(|flight| &mut flight.call);
        for call in calls.filter(|call| call.owner == Some(owner)) {
            call.owner = None;
            self.requests.background += 1;
        }
        self.drop_queued(owner);
        self.cancel_waits(owner, true);
        self.files.disown(owner, &mut self.requests.background);
        self.answers.lingering.iter_mut().for_each(|(done, _)| {
            if done.owner == Some(owner) {
                done.owner = None;
            }
        });
        let mut all = std::mem::take(&mut self.answers.done);
        while let Some(mut done) = all.pop() {
            if done.owner == Some(owner) {
                done.owner = None;
                self.clean_up(done);
            } else {
                self.answers.done.push(done);
            }
        }
    }

    /// Takes events, does what they ask for, and sends what can be sent. True when something
    /// happened.
    pub fn progress(&mut self, now: Duration) -> bool {
        self.now = self.now.max(now);
        self.wants_progress = false;
        let has_done = !self.answers.done.is_empty();
        let busy = self.node.poll() > 0 && self.take_events();
        self.on_time();
        self.settle();
        self.pump();
        if !self.answers.lingering.is_empty() {
            self.return_buffers();
        }
        if !self.requests.rung {
            self.ring();
        }
        busy || has_done || !self.answers.done.is_empty()
    }

    /// Takes what the node has; true if there was something.
    #[inline(never)]
    fn take_events(&mut self) -> bool {
        let mut busy = false;
        loop {
            if let Some(short) = self.node.next_short() {
                self.on_short(short);
            } else if let Some(event) = self.node.next_event() {
                self.on_event(event);
            } else {
                return busy;
            }
            busy = true;
        }
    }

    #[inline(always)]
    pub(in crate::core) fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected { conn, .. } => self.on_connected(conn),
            Event::Refused { conn, refused, reason } => self.on_refused(conn, refused, reason),
            Event::Reply { conn, tag, header, data_len } => {
                if tag == link::SETUP_TAG {
                    self.on_setup_reply(conn, &header);
                } else {
                    self.on_reply(conn, tag, &header, data_len);
                    self.release_callbacks();
                }
                self.node.recycle(header);
            }
            Event::NamedRead { conn, tag, bytes } => self.on_named(conn, tag, bytes),
            Event::Disconnected { conn, reason, peer_fault } => {
                self.on_disconnected(conn, &reason, peer_fault);
            }
            Event::Quiescent { conn } => self.on_quiescent(conn),
            Event::Request { id, header, data_len, .. } => {
                self.on_callback(id, &header, data_len);
                self.node.recycle(header);
            }
            // Nothing is fetched, replied or abandoned here.
            _ => {}
        }
    }

    /// Sends what was submitted; part of `progress`, for a thread that does not drive.
    pub fn ring(&mut self) {
        self.requests.rung = true;
        self.node.ring();
    }

    /// There is something to do that `ring` does not.
    pub fn wants_progress(&self) -> bool {
        self.wants_progress
    }

    /// Whether [`next_done`](Self::next_done) has something.
    pub fn has_done(&self) -> bool {
        !self.answers.done.is_empty()
    }

    /// A call that ended.
    #[inline]
    pub fn next_done(&mut self) -> Option<CoreDone> {
        self.answers.done.pop()
    }

    /// When `progress` must be called next, even if nothing happens.
    pub fn next_timeout(&self) -> Option<Duration> {
        (0..self.links.len()).filter_map(|index| self.link_timeout(index)).min()
    }

    /// Words for people: the server is lost, or back.
    pub fn next_notice(&mut self) -> Option<String> {
        self.answers.notices.pop_front()
    }

    /// Whether there are such words.
    pub fn has_notice(&self) -> bool {
        !self.answers.notices.is_empty()
    }

    /// True when it is safe to sleep on the [`waiter`](Self::waiter).
    pub fn arm(&mut self) -> bool {
        self.answers.done.is_empty() && !self.wants_progress && self.node.arm()
    }

    /// As [`Node::peers_are_here`].
    pub(crate) fn peers_are_here(&mut self) -> bool {
        self.node.peers_are_here()
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.node.waiter()
    }

    /// Something is under way that no caller waits for: a connection is made, a file closed.
    pub fn is_unsettled(&self) -> bool {
        let opening = match self.phase {
            Phase::Idle | Phase::Ready | Phase::Closed => false,
            Phase::Opening | Phase::Rooting | Phase::Reopening(_) | Phase::Draining(_) => true,
            Phase::Asking(_) | Phase::Rewriting(_) => true,
            Phase::Reclaiming(_) | Phase::Completing => true,
        };
        opening || self.requests.background > 0 || self.links.iter().any(Link::is_unsettled)
    }

    /// Calls flow.
    pub fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Ready) && self.links[0].is_ready()
    }

    /// What is known of the session.
    pub fn facts(&self) -> Facts {
        Facts { system_calls: self.node.stats().system_calls, ..self.session.facts.clone() }
    }

    /// Bytes of data of one request.
    pub fn data_bytes_max(&self) -> usize {
        self.session.facts.attr.data_bytes_max as usize
    }

    /// As it was when the file was opened.
    pub fn file_attr(&self, key: FileKey) -> Option<Attr> {
        self.files.any(key).map(|file| file.attr)
    }

    /// Who knows where an open file is, for when its handle is not known any more.
    pub fn found_by(
        &mut self,
        key: FileKey,
        find: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static,
    ) {
        if let Some(file) = self.files.any_mut(key) {
            file.found_by(Finder::new(find));
        }
    }

    /// The data of a file is changed for that user from now on.
    pub fn written_for(&mut self, key: FileKey, user: Arc<Identity>) {
        if let Some(file) = self.files.any_mut(key) {
            file.written_for(user);
        }
    }

    /// Closes a file that nobody uses any more, in the background. False where it is closed.
    pub fn close_file(&mut self, key: FileKey) -> bool {
        if self.files.is_closing(key) || self.session.closing {
            return false;
        }
        self.accept(CallRecord::internal(Work::Close { file: key }));
        true
    }

    /// Tells the server that the session is over; [`is_destroyed`](Self::is_destroyed) follows.
    /// No more calls are taken.
    pub fn close_session(&mut self) {
        if self.session.closing {
            return;
        }
        self.session.closing = true;
        if matches!(self.phase, Phase::Ready) && self.links[0].is_ready() {
            self.requests.background += 1;
            self.requests.urgent.push_back(CallRecord::internal(Work::Destroy));
        } else {
            self.session.destroyed = true;
        }
    }

    /// The server knows, or cannot be told.
    pub fn is_destroyed(&self) -> bool {
        self.session.destroyed
    }

    /// Everything ended: no call, no connection, no memory in use.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Ends all connections, and all calls with `error` as soon as their memory is free. Then
    /// the core is closed: whatever is submitted fails so, too.
    pub fn end(&mut self, error: Error) {
        self.session.ended.get_or_insert_with(|| error.clone());
        self.session.closing = true;
        self.session.destroyed = true;
        self.drain(Next::Fail(error));
    }
}
