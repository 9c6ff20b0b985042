//! A worker: one engine, its sessions, their chains. No thread, no clock.

mod admission;
mod at_once;
mod clock;
mod company;
mod complaints;
mod connections;
mod crowd;
mod data_plane;
mod misses;
mod named;
mod requests;
mod sessions;
mod transfers;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_fabric::{Rkey, SgList, Span, Waiter};
use dafs_message::{ConnId, Event, Node, RequestId, Short};
use dafs_protocol::{SessionId, WaitMode, decode_plain_read};
use dafs_store::{Blocking, allow_blocking};
use dafs_unifier::{AccessedBits, DomainId};
use rustc_hash::FxHashMap;

use crate::context::{Action, Context, Held};
use crate::locks::LockTable;
use crate::mailbox::{Mailbox, Message};
use crate::metrics::count;
use crate::page_reads::PageReads;
use crate::paths::DataPin;
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::shared::Shared;
use crate::tasks::Tasks;
use clock::Clock;
use company::Company;
use complaints::Complaints;
use connections::{Connection, Connections};
use data_plane::DataPlane;
use named::NamedPlane;
use sessions::{End, Kept};
use transfers::{ReplyPins, Transfers};

/// Serves the connections given to it. One thread drives it with [`progress`](Worker::progress).
pub struct Worker {
    pub(crate) node: Node,
    pub(crate) shared: Arc<Shared>,
    pub(crate) context: Rc<Context>,
    tasks: Tasks,
    page_reads: PageReads,
    mailbox: Arc<Mailbox>,
    connections: Connections,
    complaints: Complaints,
    sessions: FxHashMap<SessionId, Kept>,
    transfers: Transfers,
    pub(crate) clock: Clock,
    /// No lease can end before.
    leases_due: Duration,
    system_calls: u64,
    wait_mode: WaitMode,
    company: Company,
    data_plane: DataPlane,
    named: NamedPlane,
    /// It shuts down: no request begins, and then all sessions end.
    stopping: Option<Duration>,
}

pub(crate) const TIMER: Duration = Duration::from_millis(200);
/// How long requests that run may hold up a shut-down.
const SHUT_DOWN_MAX: Duration = Duration::from_secs(5);

impl Worker {
    /// A worker of `shared` over a node; `number` is part of its sessions' ids.
    pub fn new(number: u16, mut node: Node, shared: Arc<Shared>) -> Worker {
        node.serve_named();
        let mailbox = Arc::new(Mailbox::default());
        mailbox.ready.set_waiter(node.waiter());
        shared.join(number, mailbox.clone());
        let context = Rc::new(Context::new(shared.clone(), number, node.segments_max()));
        let connections = Connections::new(shared.limits.connections_unproven);
        Worker {
            node,
            context,
            tasks: Tasks::new(mailbox.ready.clone()),
            page_reads: PageReads::new(mailbox.ready.clone()),
            shared,
            mailbox,
            connections,
            complaints: Complaints::default(),
            sessions: FxHashMap::default(),
            transfers: Transfers::default(),
            clock: Clock::default(),
            leases_due: Duration::ZERO,
            system_calls: 0,
            wait_mode: WaitMode::Adaptive,
            company: Company::default(),
            data_plane: DataPlane::default(),
            named: NamedPlane::default(),
            stopping: None,
        }
    }

    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        self.mailbox.clone()
    }

    /// Does everything that can be done now; true if something was done. When the last call was
    /// long ago, the time between them counts for no lease and no other limit.
    pub fn progress(&mut self, now: Duration) -> bool {
        self.context.now.set(self.clock.pass(now));
        match self.data_plane.is_looked_at() {
            true => self.pass_looked_at(now),
            false => self.pass(now),
        }
    }

    /// A pass whose time is taken, if it answers reads by a reference.
    #[cold]
    fn pass_looked_at(&mut self, now: Duration) -> bool {
        let requests = |worker: &Worker| worker.context.counters.requests.load(Ordering::Relaxed);
        let (start, asked) = (self.shared.process.thread_time(), requests(self));
        let before = self.data_plane.begin_look();
        let busy = self.pass(now);
        let took = self.shared.process.thread_time().saturating_sub(start);
        let requests = requests(self).wrapping_sub(asked);
        if let Some(more) = self.data_plane.end_look(before, (took, requests)) {
            let more = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
            count(&self.context.counters.data_plane_ns, more);
        }
        busy
    }

    #[inline(always)]
    fn pass(&mut self, now: Duration) -> bool {
        // Most passes of who spins find nothing, here and in the following looks.
        let mut busy = self.has_woken() && self.take_woken();
        if self.node.poll() > 0 {
            busy = true;
            self.answer_shorts();
        }
        busy |= self.answer_named();
        if self.node.has_told() || self.tasks.has_ready() || self.has_actions() {
            busy |= self.do_all();
        }
        if self.clock.is_timer_due(now) || self.stopping.is_some() {
            self.timers(now);
        }
        self.node.ring();
        busy
    }

    /// Others left something, or woke tasks.
    #[inline]
    fn has_woken(&self) -> bool {
        self.mailbox.has_some() || self.tasks.has_ready()
    }

    /// Takes what others left, and goes on with what they woke; true if there was something.
    #[inline(never)]
    fn take_woken(&mut self) -> bool {
        let busy = self.mailbox.has_some() && self.take_messages();
        // Who waits for what has come from the disk is not to wait for a look at the network.
        busy | (self.tasks.has_ready() && self.run_ready())
    }

    /// Goes on until nothing more can be done now; true if something was done.
    #[inline(never)]
    fn do_all(&mut self) -> bool {
        let mut busy = false;
        loop {
            busy |= self.tasks.has_ready() && self.run_ready();
            while let Some(token) = self.node.next_sent() {
                self.reply_sent(token);
                busy = true;
            }
            while let Some(event) = self.node.next_event() {
                self.handle(event);
                busy = true;
            }
            busy |= self.answer_shorts();
            busy |= self.drain_actions();
            if !self.tasks.has_ready() && !self.node.has_event() {
                break;
            }
        }
        // Before writers have to wait.
        if self.shared.unifier.is_half_dirty() {
            self.write_back();
        }
        busy
    }

    /// What others left; true if there was something.
    fn take_messages(&mut self) -> bool {
        let messages = self.mailbox.take();
        let any = !messages.is_empty();
        messages.into_iter().for_each(|message| self.message(message));
        any
    }

    /// Goes on with tasks that were woken, and replies with pages that have come; true if there was any.
    fn run_ready(&mut self) -> bool {
        // The one request under way goes on; write-back would take its time.
        let alone = self.chains() == 1 && self.context.writing_back.get() == 0;
        allow_blocking(self.blocking(alone));
        let mut pages = self.page_reads.take_ends();
        let any = self.tasks.run_ready(&mut pages);
        for (number, end) in pages.drain(..) {
            self.page_read_ended(number, end);
        }
        self.page_reads.keep_ends(pages);
        allow_blocking(Blocking::None);
        if any {
            // What has waited long is answered before more is begun.
            self.drain_actions();
            self.node.ring();
        }
        any
    }

    /// When [`progress`](Worker::progress) wants to be called at the latest.
    pub fn next_timeout(&self) -> Duration {
        self.clock.next_timer()
    }

    /// True when it is safe to sleep on [`waiter`](Worker::waiter).
    pub fn prepare_sleep(&mut self) -> bool {
        self.mailbox.ready.prepare_sleep() && self.mailbox.is_empty() && self.node.arm()
    }

    /// The sleep is over.
    pub fn awake(&self) {
        self.mailbox.ready.awake();
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.node.waiter()
    }

    /// How its sessions want it to wait: polled if any busy one does, sleeping if all do.
    pub fn wait_mode(&self) -> WaitMode {
        self.wait_mode
    }

    /// As [`Node::peers_are_here`].
    pub(crate) fn peers_are_here(&mut self) -> bool {
        self.node.peers_are_here()
    }

    /// Requests that have not ended; while it shuts down also sessions.
    pub fn running(&self) -> usize {
        self.tasks.len() + self.page_reads.len() + self.stopping.map_or(0, |_| self.sessions.len())
    }

    /// Clients read pages in place that it pins.
    pub(crate) fn has_lent(&self) -> bool {
        self.node.has_lent()
    }

    /// Begins nothing more. When what runs has been answered, but not after too long, all sessions
    /// are closed (their files are flushed by running tasks).
    pub fn shut_down(&mut self) {
        self.stopping = Some(self.clock.now() + SHUT_DOWN_MAX);
    }

    fn end_sessions(&mut self) {
        let Some(limit) = self.stopping else { return };
        if self.sessions.is_empty() || (self.is_any_at_work() && self.clock.now() < limit) {
            return;
        }
        let mut ids: Vec<_> = self.sessions.keys().copied().collect();
        // In an order that does not depend on the table: simulations repeat.
        ids.sort_unstable_by_key(|id| id.0);
        self.context.locks(LockTable::stop);
        for id in ids {
            self.destroy(id, End::ShutDown);
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accept(incoming, proof) => self.accept(incoming, proof),
            Message::LockEnded(ended) => self.lock_ended(ended),
            Message::Granted(granted) => self.granted(granted),
            Message::Replaced { session, by, at } => {
                self.destroy(session, End::Replaced);
                self.shared.send(at, Message::Freed { session: by });
            }
            Message::Freed { session } => {
                if let Some(session) = self.session(session) {
                    session.life.let_go();
                    self.finish_binds();
                }
            }
        }
    }

    #[inline(always)]
    fn drain_actions(&mut self) -> bool {
        self.has_actions() && self.drain_some_actions()
    }

    #[inline]
    fn has_actions(&self) -> bool {
        !self.context.actions.borrow().is_empty()
    }

    fn drain_some_actions(&mut self) -> bool {
        let mut any = false;
        loop {
            let Some(action) = self.context.actions.borrow_mut().pop_front() else { return any };
            any = true;
            match action {
                Action::Fetch { id, into } => self.node.fetch(id, into),
                Action::Reply { id, header, data, held } => self.reply(id, header, data, held),
                Action::ReplyPage { id, header, page, grant } => {
                    self.reply_page(id, &header, page, grant);
                }
                Action::Destroy { session } => self.destroy(session, End::Destroyed),
                Action::GoOn { session } => self.go_on(session),
                Action::LockEnded(ended) => self.lock_ended(ended),
                Action::LookAgain { session, conn } => {
                    let key = |memory: &Span| Some(self.node.readable_by(conn, memory)?.rkey);
                    session.mappable.look_again(conn, || self.shared.shown.keys(key));
                }
                Action::Heed { session, conn, domain, accessed } => {
                    self.heed(&session, conn, (domain, accessed));
                }
            }
        }
    }

    /// Without these bits, what a client reads by himself counts as unused.
    fn heed(&mut self, session: &Session, conn: ConnId, (domain, accessed): (DomainId, Rkey)) {
        if session.heeds(domain) {
            return;
        }
        let of = (session.who.uid, session.allowance.user.part_of(AccessedBits::MAX));
        let add = |words| self.shared.unifier.add_accessed(domain, words, of);
        if let Some(bits) = self.node.words(conn, accessed).and_then(add) {
            session.heed(domain, bits);
        }
    }

    fn reply(&mut self, id: RequestId, header: Vec<u8>, data: SgList, held: Vec<Held>) {
        let (mut data, held) = self.in_few_pieces(data, held);
        let order = self.context.transfer();
        // Also without data: a peer that takes no replies is to hold no more than its share of them.
        let token = match planted(Defect::HeldTooShort) {
            true => u64::MAX,
            false => self.transfers.leave(order, id.conn(), ReplyPins::All(held)),
        };
        self.node.reply_told(id, &header, &mut data, token);
        self.handed_over(id.conn(), token);
        self.context.recycle(header);
    }

    /// What is scattered over more memory than a transfer takes is copied together; its request
    /// took the memory for that.
    fn in_few_pieces(&self, data: SgList, mut held: Vec<Held>) -> (SgList, Vec<Held>) {
        if data.len() <= self.context.segments_max {
            return (data, held);
        }
        let bytes = dafs_fabric::sg_bytes(&data);
        // Without memory the message layer ends the connection.
        let Ok(scratch) = self.context.scratch(bytes) else { return (data, held) };
        let mut at = 0;
        for span in &data {
            scratch.copy_span(at, span);
            at += span.len();
        }
        let together = SgList::from_iter([scratch.part(0, bytes)]);
        held.retain(|held| matches!(held, Held::Grant(_)));
        held.push(Held::Data(DataPin::Scratch(scratch)));
        (together, held)
    }

    /// What came as a short message, and could not be answered where it was: mostly a read.
    #[inline(never)]
    fn handle_short(&mut self, short: Short) {
        if let Short::Request { id, .. } = short
            && let Some(read) = decode_plain_read(self.node.short_header())
            && let Some(session) = self.connections.bound_to(id.conn()).cloned()
        {
            return self.plain_read(&session, id, read);
        }
        let event = short.with_header(self.node.keep_short_header());
        self.handle(event);
    }

    #[inline(always)]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { id, header, data_len, pushed, .. } => {
                self.request(id, header, data_len, pushed);
            }
            Event::Fetched { id, placed } => self.context.fetched(id, placed),
            Event::ReplySent { token } => self.reply_sent(token),
            Event::Disconnected { conn, reason, peer_fault } => {
                self.disconnected(conn, &reason, peer_fault);
            }
            Event::Quiescent { conn } => self.quiescent(conn),
            Event::Reply { conn, tag, header, .. } => {
                self.callback_answered(conn, tag, &header);
                self.node.recycle(header);
            }
            // A server connects to nobody.
            _ => {}
        }
    }

    #[inline(always)]
    fn reply_sent(&mut self, token: u64) {
        let Some(mut held) = self.transfers.left(token) else { return };
        for held in held.drain(..) {
            if let Held::Data(DataPin::Scratch(scratch)) = held {
                self.context.give_back_scratch(scratch);
            }
        }
        self.context.recycle_held(held);
    }

    #[inline(always)]
    fn request(&mut self, id: RequestId, header: Vec<u8>, data_len: u32, pushed: bool) {
        let connection = id.conn();
        if let Some(session) = self.connections.bound_to(connection).cloned() {
            return self.chain(&session, id, header, (data_len, pushed));
        }
        match self.connections.get(connection) {
            Some(Connection::Unproven(_)) => self.set_up(connection, id, &header),
            Some(Connection::Waiting) => {
                self.violation(connection, "request while waiting for a bind");
            }
            // It came before the peer could know of the end.
            _ => self.node.recycle(header),
        }
    }

    #[inline(never)]
    fn timers(&mut self, now: Duration) {
        if self.clock.is_timer_due(now) {
            self.clock.timers_begin(now);
            self.look_at_all();
            self.drain_actions();
        }
        self.end_sessions();
    }

    fn look_at_all(&mut self) {
        let lease = Duration::from_secs(u64::from(self.shared.limits.lease_seconds));
        if self.context.number == 0 {
            self.watch_locks(lease);
        }
        let unsent = |live: &&Kept| live.session.callbacks.borrow().unsent().is_some();
        let mut behind: Vec<_> = self.sessions.values().filter(unsent).collect();
        behind.sort_unstable_by_key(|live| live.session.number());
        let behind: Vec<_> = behind.into_iter().map(|live| live.session.clone()).collect();
        for session in behind {
            self.send_callbacks(&session);
        }
        self.expire_sessions(lease);
        self.end_slow_transfers(lease);
        self.end_late_set_ups();
        self.report_withheld();
        self.replace_named_key();
        if self.context.number == 0 && self.shared.unifier.write_back_due(self.clock.caller()) {
            self.write_back();
        }
        self.wait_mode = self.choose_wait_mode();
        let calls = self.node.system_calls();
        let new = calls.wrapping_sub(self.system_calls);
        self.shared.counters.system_calls.fetch_add(new, Ordering::Relaxed);
        self.system_calls = calls;
    }
}

impl Worker {
    /// Begins to write back what is due. What hangs from an earlier time stays behind.
    fn write_back(&mut self) {
        let context = self.context.clone();
        context.writing_back.set(context.writing_back.get() + 1);
        // Of all workers the same.
        let now = self.clock.caller();
        self.tasks.spawn(async move {
            context.shared.unifier.write_back(now).await;
            context.writing_back.set(context.writing_back.get() - 1);
        });
    }
}
