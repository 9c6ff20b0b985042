//! A server with its workers and clients without the client library, on a simulated network.

#![allow(dead_code, reason = "each test file uses a part")]

#[path = "peer.rs"]
mod peer;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{Arena, Domain, Listener, Provider, SgList};
use dafs_message::{ConnOptions, Node, NodeConfig, RequestId, incoming_private_data};
use dafs_protocol::*;
use dafs_server::{
    DataPath, Export, Exports, Limits, MemoryLog, MemoryRecords, Proof, Shared, SharedOptions,
    ShownCaches, Worker,
};
use dafs_store::memory::{Job, MemoryStore};
use dafs_unifier::Unifier;
pub use peer::MEMORY;
use peer::{Peer, SERVER, address};

pub const LEASE: Duration = Duration::from_secs(3);

type Results = Result<Vec<OpResult>, Status>;

struct Running {
    listener: Box<dyn Listener>,
    workers: Vec<Worker>,
    shared: Arc<Shared>,
}

/// Calls of the store that wait; `None`: they run as they come.
type Held = Arc<Mutex<Option<VecDeque<Job>>>>;

pub struct World {
    pub net: Arc<SimNet>,
    pub store: MemoryStore,
    held: Held,
    records: MemoryRecords,
    intent_log: MemoryLog,
    pub limits: Limits,
    running: Option<Running>,
    peers: Vec<Peer>,
    /// Who connects next, and his groups.
    uid: u32,
    pub groups: Vec<u32>,
    /// On which worker, if not by its number.
    pub place: Option<usize>,
    /// What sessions wish for.
    pub wait: WaitMode,
    /// Hellos that were said.
    attempts: u64,
}

/// A client, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who(usize);

fn node(net: &Arc<SimNet>, number: u32) -> Node {
    let domain = Domain::open(&net.provider(number)).expect("device");
    let config = NodeConfig { receives_max: 1024, ..NodeConfig::default() };
    Node::new(domain, config).expect("node")
}

impl World {
    pub fn new(seed: u64, workers: u16) -> World {
        let limits = Limits { lease_seconds: LEASE.as_secs() as u32, ..Limits::default() };
        World::with(seed, workers, limits)
    }

    pub fn with(seed: u64, workers: u16, limits: Limits) -> World {
        World::on(seed, workers, limits, MemoryStore::new(), Held::default())
    }

    /// One whose store [holds](Self::hold) its calls when it is told to.
    pub fn holding(seed: u64) -> World {
        let held = Held::default();
        let calls = held.clone();
        let store = MemoryStore::with_scheduler(Arc::new(move |job| {
            if let Some(held) = &mut *calls.lock().expect("calls") {
                return held.push_back(job);
            }
            job();
        }));
        let limits = Limits { lease_seconds: LEASE.as_secs() as u32, ..Limits::default() };
        World::on(seed, 1, limits, store, held)
    }

    fn on(seed: u64, workers: u16, limits: Limits, store: MemoryStore, held: Held) -> World {
        let net = SimNet::new(SimConfig::new(seed));
        let records = MemoryRecords::default();
        let time = net.clone();
        let intent_log = MemoryLog::new(Arc::new(move || time.now()));
        let mut world = World {
            net,
            store,
            held,
            records,
            intent_log,
            limits,
            running: None,
            peers: Vec::new(),
            uid: 0,
            groups: Vec::new(),
            place: None,
            wait: WaitMode::Sleeping,
            attempts: 0,
        };
        world.start(workers);
        world
    }

    pub fn start(&mut self, workers: u16) {
        let arena = Arena::new(16 << 20).expect("arena");
        let config = dafs_unifier::Config::new(arena.len(), Arc::new(Timestamp::default));
        let export = Export {
            name: String::new(),
            store: Arc::new(self.store.clone()),
            read_only: false,
            policy: dafs_unifier::Policy::Lru,
            data_path: DataPath::Unifier,
            path: "memory".into(),
            domain: dafs_unifier::DomainId::FIRST,
            share_cache: false,
            optimistic: Default::default(),
        };
        let random = Mutex::new(self.net.rng(77));
        let shared = Shared::new(SharedOptions {
            exports: Exports::new(vec![export]),
            unifier: Arc::new(Unifier::new(arena, config, WriteVerifier([7; 16])).into()),
            shown: ShownCaches::default(),
            scopes: None,
            page_cache: None,
            arena_bytes: 16 << 20,
            limits: self.limits.clone(),
            key: None,
            own: dafs_protocol::Identity::root(),
            intent_log: Some(Box::new(self.intent_log.clone())),
            end_mark: None,
            numbers: None,
            recorder: None,
            records: Box::new(self.records.clone()),
            entropy: Box::new(move |bytes| {
                bytes.copy_from_slice(&random.lock().expect("random").bytes(bytes.len()));
            }),
            process_stats: Box::new(|| (0, 0)),
            addresses: Vec::new(),
            same_host: None,
            stopwatch: Box::new(|| std::time::Duration::ZERO),
            thread_time: Box::new(|| std::time::Duration::ZERO),
        });
        let device = self.net.provider(SERVER).open().expect("device");
        let listener = device.listen(&address()).expect("listen");
        let worker = |number| Worker::new(number, node(&self.net, SERVER), shared.clone());
        let workers = (0..workers).map(worker).collect();
        self.running = Some(Running { listener, workers, shared });
    }

    /// Calls of the store wait from now on.
    pub fn hold(&mut self) {
        *self.held.lock().expect("calls") = Some(VecDeque::new());
    }

    /// Those that wait.
    pub fn calls(&self) -> usize {
        self.held.lock().expect("calls").as_ref().map_or(0, VecDeque::len)
    }

    /// The one that waits longest runs.
    pub fn complete_one(&mut self) {
        let job = self.held.lock().expect("calls").as_mut().and_then(VecDeque::pop_front);
        job.expect("a call waits")();
    }

    /// No call waits any more.
    pub fn release(&mut self) {
        let jobs = self.held.lock().expect("calls").take();
        jobs.into_iter().flatten().for_each(|job| job());
    }

    /// What has not ended in the workers.
    pub fn running(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.workers.iter().map(Worker::running).sum())
    }

    /// What the server's parts count.
    pub fn shared(&self) -> Arc<Shared> {
        self.running.as_ref().expect("runs").shared.clone()
    }

    /// Nothing more begins; what runs goes on.
    pub fn shut_down(&mut self) {
        let running = self.running.as_mut().expect("runs");
        running.workers.iter_mut().for_each(Worker::shut_down);
    }

    /// As after kill -9.
    pub fn crash(&mut self) {
        self.net.crash(SERVER);
        self.running = None;
    }

    /// As after Ctrl-C.
    pub fn stop(&mut self) {
        let running = self.running.as_mut().expect("runs");
        running.workers.iter_mut().for_each(Worker::shut_down);
        self.run_for(Duration::from_millis(500));
        self.crash();
    }

    pub fn sessions(&self) -> usize {
        let workers = &self.running.as_ref().expect("runs").workers;
        workers.iter().map(Worker::session_count).sum()
    }

    fn turn(&mut self) {
        let now = self.net.now();
        if let Some(running) = &mut self.running {
            while let Some(incoming) = running.listener.poll_accept() {
                let named = incoming_private_data(&incoming).and_then(|p| p.first_chunk::<2>());
                let count = running.workers.len();
                let number = named.map_or(self.place.unwrap_or(self.uid as usize % count), |n| {
                    usize::from(u16::from_le_bytes(*n))
                });
                let who = Identity { uid: self.uid, gid: 0, groups: self.groups.clone() };
                running.workers[number].accept(incoming, Proof::Kernel(who));
            }
            for worker in &mut running.workers {
                worker.progress(now);
            }
        }
        self.peers.iter_mut().for_each(Peer::poll);
        if !self.net.step() {
            self.net.advance_to(now + Duration::from_millis(1));
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.net.now() + time;
        while self.net.now() < end {
            self.turn();
        }
    }

    pub fn run_until(&mut self, what: &str, mut reached: impl FnMut(&mut World) -> bool) {
        let limit = self.net.now() + Duration::from_secs(60);
        while !reached(self) {
            assert!(self.net.now() < limit, "not within a minute: {what}");
            self.turn();
        }
    }

    /// A client with a session, of the user that connects next; on the worker of that number.
    pub fn client(&mut self, client: u8, uid: u32) -> Who {
        let who = self.stranger(client);
        let reply = self.create(who, uid);
        assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
        who
    }

    pub fn stranger(&mut self, client: u8) -> Who {
        let who = Who(self.peers.len());
        self.peers.push(Peer {
            node: node(&self.net, 10 + self.peers.len() as u32),
            client: ClientId([client; 16]),
            conn: None,
            connected: false,
            session: None,
            sequences: vec![0; 64],
            next_tag: 100,
            memory: Arena::new(64 * MEMORY).expect("memory"),
            replies: HashMap::new(),
            callbacks: Vec::new(),
            disconnects: 0,
        });
        who
    }

    /// A new session.
    pub fn create(&mut self, who: Who, uid: u32) -> SetupReply {
        let attr = SessionAttr {
            slots: 64,
            data_bytes_max: 1 << 20,
            inline_bytes: 512,
            wait: self.wait,
            lease_ms: 0,
            tagged: true,
            rdma_read: true,
            read_ahead: true,
        };
        self.uid = uid;
        self.peers[who.0].sequences.fill(0);
        self.peers[who.0].session = None;
        let client = self.peers[who.0].client;
        let reply = self.set_up(who, Purpose::Create { attr, client });
        if let SetupReply::Ready { session, secret, .. } = reply {
            self.peers[who.0].session = Some((session, secret));
        }
        reply
    }

    /// The session on a new connection.
    pub fn bind(&mut self, who: Who, uid: u32) {
        self.uid = uid;
        let (session, secret) = self.peers[who.0].session.expect("a session");
        let reply = self.set_up(who, Purpose::Bind { session, secret });
        assert!(matches!(reply, SetupReply::Ready { .. }), "{reply:?}");
    }

    /// Tries that.
    pub fn bind_as(&mut self, who: Who, uid: u32) -> SetupReply {
        self.uid = uid;
        let (session, secret) = self.peers[who.0].session.expect("a session");
        self.set_up(who, Purpose::Bind { session, secret })
    }

    /// Tries that; whether it is refused.
    pub fn is_bind_refused(&mut self, who: Who, uid: u32) -> bool {
        matches!(self.bind_as(who, uid), SetupReply::Refused { .. })
    }

    /// A connection of a user, who says nothing over it.
    pub fn connect(&mut self, who: Who, uid: u32) {
        self.uid = uid;
        let peer = &mut self.peers[who.0];
        let private = peer.session.map(|(session, _)| session.0);
        let private = private.as_ref().map_or(&[][..], |id| &id[..]);
        let options = ConnOptions { credits: 8, ..ConnOptions::default() };
        peer.connected = false;
        peer.conn = Some(peer.node.connect(&address(), private, options).expect("connect"));
        self.run_until("connected", |world| world.peers[who.0].connected);
    }

    fn set_up(&mut self, who: Who, purpose: Purpose) -> SetupReply {
        self.connect(who, self.uid);
        let mut hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
        self.attempts += 1;
        if let SetupRequest::Hello { attempt, .. } = &mut hello {
            *attempt = self.attempts;
        }
        self.say(who, &hello, |_| {})
    }

    /// The answer to a set-up message, or to what `change` makes of it.
    pub fn say(
        &mut self,
        who: Who,
        request: &SetupRequest,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> SetupReply {
        let mut bytes = Vec::new();
        encode_setup_request(request, &mut bytes);
        change(&mut bytes);
        let tag = self.peers[who.0].submit(&bytes);
        decode_setup_reply(&self.reply(who, tag)).expect("a reply")
    }

    /// Hellos of attempts with these numbers, for a session of one's own or for that of before.
    pub fn attempt(&mut self, who: Who, uid: u32, number: u64, purpose: Purpose) -> SetupReply {
        self.connect(who, uid);
        let mut hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
        if let SetupRequest::Hello { attempt, .. } = &mut hello {
            *attempt = number;
        }
        self.say(who, &hello, |_| {})
    }

    /// Binds of one class by so many connections at once: how many serve after it.
    pub fn binds_at_once(&mut self, who: Who, uid: u32, count: usize) -> usize {
        let session = self.peers[who.0].session;
        let (id, secret) = session.expect("a session");
        let mut tags = Vec::new();
        for number in 0..count as u64 {
            let other = self.stranger(1);
            self.peers[other.0].session = session;
            self.connect(other, uid);
            let purpose = Purpose::Bind { session: id, secret };
            let mut hello = SetupRequest::hello([1; 32], SizeClass::Any, false, purpose);
            if let SetupRequest::Hello { attempt, .. } = &mut hello {
                *attempt = 10 + number;
            }
            let mut bytes = Vec::new();
            encode_setup_request(&hello, &mut bytes);
            tags.push((other, bytes));
        }
        // All are there before the server looks.
        for (other, bytes) in &tags {
            self.peers[other.0].submit(bytes);
        }
        // Also those that are refused end.
        self.run_for(Duration::from_secs(1));
        tags.iter().filter(|(other, _)| self.disconnects(*other) == 0).count()
    }

    fn reply(&mut self, who: Who, tag: u32) -> Vec<u8> {
        self.run_until("a reply", |world| world.peers[who.0].replies.contains_key(&tag));
        self.peers[who.0].replies.remove(&tag).expect("just seen")
    }

    /// The connection breaks at both ends.
    pub fn cut(&mut self, who: Who) {
        self.net.break_connections(10 + who.0 as u32);
        self.run_until("a break", |world| !world.peers[who.0].connected);
    }

    /// Ends its session; the connections end with it.
    pub fn destroy(&mut self, who: Who) {
        let before = self.disconnects(who);
        self.send(who, 0, &[Operation::SessionDestroy]);
        self.run_until("the end", |world| world.disconnects(who) > before);
    }

    /// Sends a chain and does not wait; answers the tag of the reply.
    pub fn send(&mut self, who: Who, slot: u16, operations: &[Operation<'_>]) -> u32 {
        self.peers[who.0].sequences[usize::from(slot)] += 1;
        self.resend(who, slot, operations)
    }

    pub fn resend(&mut self, who: Who, slot: u16, operations: &[Operation<'_>]) -> u32 {
        let sequence = self.peers[who.0].sequences[usize::from(slot)];
        let head = RequestHead { slot: SlotId(slot), sequence, cred: CredHandle(0) };
        let mut bytes = Vec::new();
        encode_request(&head, operations, &mut bytes).expect("well-formed");
        self.peers[who.0].submit(&bytes)
    }

    /// As [`send`](Self::send), of one operation with so many bytes of data, each of them this one; what is
    /// read comes into the same memory.
    pub fn send_with(
        &mut self,
        who: Who,
        slot: u16,
        operation: &Operation<'_>,
        (byte, sent): (u8, usize),
    ) -> u32 {
        self.peers[who.0].sequences[usize::from(slot)] += 1;
        self.resend_with(who, slot, operation, (byte, sent))
    }

    pub fn resend_with(
        &mut self,
        who: Who,
        slot: u16,
        operation: &Operation<'_>,
        (byte, sent): (u8, usize),
    ) -> u32 {
        let sequence = self.peers[who.0].sequences[usize::from(slot)];
        let head = RequestHead { slot: SlotId(slot), sequence, cred: CredHandle(0) };
        let mut bytes = Vec::new();
        encode_request(&head, std::slice::from_ref(operation), &mut bytes).expect("well-formed");
        let peer = &mut self.peers[who.0];
        let memory = peer.memory.span(usize::from(slot) * MEMORY, MEMORY);
        memory.write_message(0, &[byte; MEMORY]);
        let list = |len| match len {
            0 => SgList::new(),
            len => SgList::from_iter([memory.part(0, len)]),
        };
        peer.submit_with(&bytes, list(sent), list(MEMORY - sent))
    }

    /// What came into the memory of a slot.
    pub fn memory(&self, who: Who, slot: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        let memory = self.peers[who.0].memory.span(usize::from(slot) * MEMORY, MEMORY);
        memory.read_message(MEMORY, &mut bytes);
        bytes
    }

    /// A reply of that tag has come.
    pub fn has_reply(&self, who: Who, tag: u32) -> bool {
        self.peers[who.0].replies.contains_key(&tag)
    }

    pub fn results(&mut self, who: Who, tag: u32) -> Results {
        decode_reply(&self.reply(who, tag)).expect("a reply").results
    }

    /// A chain on slot 0.
    pub fn chain(&mut self, who: Who, operations: &[Operation<'_>]) -> Results {
        let tag = self.send(who, 0, operations);
        self.results(who, tag)
    }

    pub fn one(&mut self, who: Who, operation: Operation<'_>) -> OpResult {
        self.chain(who, &[operation])?.pop().expect("a result")
    }

    /// The root of the export.
    pub fn root(&mut self, who: Who) -> FileHandle {
        match self.one(who, Operation::GetRoot { export: b"" }) {
            Ok(Outcome::Found { handle, .. }) => handle,
            other => panic!("no root: {other:?}"),
        }
    }

    /// The last sequence of a slot.
    pub fn sequence(&self, who: Who, slot: u16) -> u32 {
        self.peers[who.0].sequences[usize::from(slot)]
    }

    /// The session that it has, or had last.
    pub fn session_of(&self, who: Who) -> SessionId {
        self.peers[who.0].session.expect("a session").0
    }

    /// Opens a file, which is made.
    pub fn open(&mut self, who: Who, name: &str, read: bool, write: bool) -> StateId {
        match self.open_as(who, name, read, write) {
            Ok(Outcome::Opened { state, .. }) => state,
            other => panic!("not open: {other:?}"),
        }
    }

    /// Opens a file for reading and writing, if it may be.
    pub fn try_open(&mut self, who: Who, name: &str) -> OpResult {
        self.open_as(who, name, true, true)
    }

    fn open_as(&mut self, who: Who, name: &str, read: bool, write: bool) -> OpResult {
        let root = self.root(who);
        let flags = OpenFlags {
            read,
            write,
            create: CreateMode::Unchecked,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let (path, cache) = (name.as_bytes(), CacheHint::default());
        self.one(who, Operation::Open { dir: root, path, flags, mode: 0o666, cache })
    }

    /// The callbacks that came, after a moment in which all could.
    pub fn callbacks(&mut self, who: Who) -> Vec<(RequestId, CallbackRequest)> {
        self.run_for(Duration::from_millis(600));
        std::mem::take(&mut self.peers[who.0].callbacks)
    }

    /// The only callback.
    pub fn callback(&mut self, who: Who) -> (RequestId, CallbackRequest) {
        let mut list = self.callbacks(who);
        assert_eq!(list.len(), 1, "{list:?}");
        list.remove(0)
    }

    pub fn answer(&mut self, who: Who, id: RequestId, reply: &CallbackReply) {
        let mut bytes = Vec::new();
        encode_callback_reply(reply, &mut bytes);
        let node = &mut self.peers[who.0].node;
        node.reply(id, &bytes, SgList::new(), 0);
        node.ring();
    }

    /// Takes the only callback and answers it.
    pub fn taken(&mut self, who: Who) -> (LockTicket, Result<(), Status>) {
        let (id, callback) = self.callback(who);
        self.confirm(who, id, &callback, Ok(()));
        match callback.what {
            Callback::Lock { ticket, result } => (ticket, result),
            other => panic!("not of a lock: {other:?}"),
        }
    }

    pub fn confirm(
        &mut self,
        who: Who,
        id: RequestId,
        callback: &CallbackRequest,
        result: Result<(), Status>,
    ) {
        let CallbackRequest { slot, sequence, .. } = *callback;
        self.answer(who, id, &CallbackReply { slot, sequence, result });
    }

    /// How often its connections ended.
    pub fn disconnects(&self, who: Who) -> usize {
        self.peers[who.0].disconnects
    }

    /// So much time in which the client says that it is there.
    pub fn live_for(&mut self, who: &[Who], time: Duration) {
        let end = self.net.now() + time;
        while self.net.now() < end {
            for who in who {
                let tag = self.send(*who, 9, &[Operation::Null]);
                self.results(*who, tag).expect("alive");
            }
            self.run_for(LEASE / 4);
        }
    }
}
