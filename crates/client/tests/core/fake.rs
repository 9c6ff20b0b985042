//! A scripted server: few operations, honest slots, and lies on demand.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "fake_locks.rs"]
mod locks;
#[path = "fake_operations.rs"]
mod operations;
#[path = "fake_setup.rs"]
mod setup;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dafs_fabric::sim::SimNet;
use dafs_fabric::{Address, Buffer, Domain, Listener, PostedBuffer, Provider, SgList, Waiter};
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig, RequestId};
use dafs_protocol::*;
pub use locks::FakeLocks;
use operations::is_write;

/// The simulated node of the server.
pub const SERVER: u32 = 1;
const ROOT: FileHandle = FileHandle([1; 64]);
const LEASE_MS: u32 = 3000;

struct Session {
    slots: ServerSlots,
    secret: SessionSecret,
    opens: HashMap<StateId, FileHandle>,
    /// Users by credential.
    users: HashMap<u32, u32>,
    /// Where the reply of a running slot goes.
    targets: HashMap<u16, RequestId>,
}

/// A request whose data is on its way.
struct Fetching {
    session: SessionId,
    request: Vec<u8>,
    data: PostedBuffer,
    reply_max: u32,
}

/// What is on disk; survives a restart.
#[derive(Default, Clone)]
pub struct Disk {
    pub files: BTreeMap<Vec<u8>, Vec<u8>>,
    pub inodes: BTreeMap<Vec<u8>, u64>,
    pub next_inode: u64,
}

/// What the server does wrong, or differently.
#[derive(Default)]
pub struct Script {
    /// So many replies to requests with this operation are not sent: the connection breaks.
    pub lose_replies: usize,
    /// Answers that no server may give.
    pub lie: Option<fn(&mut Reply)>,
    /// Answers to set-up requests are swallowed.
    pub mute: bool,
    /// The key that clients must prove, and that is proven to them.
    pub key: Option<Vec<u8>>,
    /// Somebody changes what it grants on the way.
    pub changes_grant: bool,
    pub refuse: Option<Status>,
    /// Requests are taken, and kept until this is over.
    pub stall: bool,
    /// As `stall`, of writes.
    pub stall_writes: bool,
    /// Commits are done, and answered when this is over.
    pub hold_commits: bool,
    /// Of new sessions.
    pub lease_ms: u32,
    /// Of new sessions; `None`: 4.
    pub slots: Option<u16>,
    /// The user of sessions.
    pub uid: u32,
    /// Locks may be reclaimed.
    pub grace: bool,
    /// Who waits for a lock gets it, and is told before LOCK is answered.
    pub grant_before_reply: bool,
    /// Handles mean nothing after a restart.
    pub forgets_handles: bool,
    /// So many requests with pushed data are not taken.
    pub declines: usize,
    /// What is written cannot be handed to the file system.
    pub disk_full: bool,
    /// So many opens are refused.
    pub refused_opens: usize,
    /// So many writes are refused.
    pub refused_writes: usize,
    /// What became of requests of former sessions; `None`: nobody knows.
    pub request_outcome: Option<RequestOutcome>,
    /// By what clients of its host are to find it.
    pub same_host: Option<SameHostToken>,
}

/// A request, its header, bytes of its data and whether they are pushed, room for the reply.
type Stalled = (RequestId, Vec<u8>, (u32, bool), u32);

pub struct Fake {
    provider: Arc<dyn Provider>,
    /// Where the server runs, if that is simulated.
    net: Option<Arc<SimNet>>,
    pub address: Address,
    node: Node,
    listener: Box<dyn Listener>,
    /// Where clients of its host find it.
    near: Option<Box<dyn Listener>>,
    /// Connections that were made there.
    pub came_near: usize,
    sessions: HashMap<SessionId, Session>,
    conns: HashMap<ConnId, SessionId>,
    hellos: HashMap<ConnId, (Vec<u8>, Purpose)>,
    fetching: HashMap<RequestId, Fetching>,
    stalled: Vec<Stalled>,
    /// Replies to commits that are held.
    held: Vec<(RequestId, Vec<u8>)>,
    sending: HashMap<u64, PostedBuffer>,
    next: u64,
    boot: u8,
    /// Starts of its machine.
    pub machine: u8,
    pub script: Script,
    pub disk: Disk,
    /// Not yet committed: lost at a restart.
    pub memory: Disk,
    handles: HashMap<FileHandle, Vec<u8>>,
    pub locks: FakeLocks,
    /// Executed operations by name.
    pub executed: BTreeMap<&'static str, usize>,
    /// The same, by user.
    pub executed_as: BTreeMap<(&'static str, u32), usize>,
    acting: u32,
    pub requests: usize,
    /// Those of them whose data was pushed.
    pub pushed: usize,
    /// Requests of former sessions that were asked for.
    pub questions: Vec<(SessionId, SlotId, u32)>,
    pub live: bool,
}

impl Fake {
    /// On the simulated node [`SERVER`].
    pub fn simulated(net: &Arc<SimNet>) -> Fake {
        let provider = net.provider(SERVER);
        let address = provider.address();
        Fake { net: Some(net.clone()), ..Fake::new(Arc::new(provider), &address) }
    }

    pub fn new(provider: Arc<dyn Provider>, address: &Address) -> Fake {
        let (node, listener) = open(&*provider, address);
        Fake {
            provider,
            net: None,
            address: listener.address(),
            node,
            listener,
            near: None,
            came_near: 0,
            sessions: HashMap::new(),
            conns: HashMap::new(),
            hellos: HashMap::new(),
            fetching: HashMap::new(),
            stalled: Vec::new(),
            held: Vec::new(),
            sending: HashMap::new(),
            next: 1,
            boot: 1,
            machine: 1,
            script: Script { uid: 1000, lease_ms: LEASE_MS, ..Script::default() },
            disk: Disk::default(),
            memory: Disk::default(),
            handles: HashMap::new(),
            locks: FakeLocks::default(),
            executed: BTreeMap::new(),
            executed_as: BTreeMap::new(),
            acting: 0,
            requests: 0,
            pushed: 0,
            questions: Vec::new(),
            live: true,
        }
    }

    /// As after kill -9: sessions and what was not committed are gone.
    pub fn restart(&mut self) {
        match &self.net {
            Some(net) => net.crash(SERVER),
            None => self.stop(),
        }
        let (node, listener) = open(&*self.provider, &self.address);
        (self.node, self.listener, self.near) = (node, listener, None);
        self.script.same_host = None;
        self.sessions.clear();
        self.conns.clear();
        self.hellos.clear();
        self.fetching.clear();
        self.stalled.clear();
        self.held.clear();
        self.drop_session_locks();
        self.sending.clear();
        self.live = true;
        self.boot += 1;
        self.memory = self.disk.clone();
        if self.script.forgets_handles {
            self.handles.clear();
        }
    }

    /// Clients of its host find it by this, which they are told, until it is restarted.
    pub fn listen_near(&mut self, token: SameHostToken) {
        let device = self.provider.open().expect("device");
        let address = device.same_host(token).expect("a network of one host");
        self.near = Some(device.listen(&address).expect("listener"));
        self.script.same_host = Some(token);
    }

    /// As after kill -9, until [`restart`](Self::restart): nobody listens at its address.
    pub fn leave(&mut self) {
        if let Some(net) = &self.net {
            net.crash(SERVER);
        }
        self.conns.clear();
        self.live = false;
    }

    /// Nobody listens any more, and all connections end.
    pub fn stop(&mut self) {
        let elsewhere = Address { target: "127.0.0.1:0".into(), ..self.address.clone() };
        let (node, listener) = open(&*self.provider, &elsewhere);
        (self.node, self.listener) = (node, listener);
    }

    pub fn waiter(&mut self) -> Option<Arc<dyn Waiter>> {
        self.node.arm().then(|| self.node.waiter())
    }

    /// The server forgets all sessions, as after their lease.
    pub fn forget_sessions(&mut self) {
        self.sessions.clear();
        self.drop_session_locks();
        let conns: Vec<ConnId> = self.conns.drain().map(|(conn, _)| conn).collect();
        for conn in conns {
            self.node.disconnect(conn, "forgotten");
        }
    }

    pub fn put(&mut self, path: &[u8], data: &[u8]) {
        self.memory.next_inode += 1;
        self.memory.inodes.insert(path.to_vec(), self.memory.next_inode);
        self.memory.files.insert(path.to_vec(), data.to_vec());
        self.disk = self.memory.clone();
    }

    pub fn verifier(&self) -> WriteVerifier {
        WriteVerifier::new([self.machine; 8], [self.boot; 8])
    }

    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    pub fn connection_count(&self) -> usize {
        self.conns.len()
    }

    pub fn user_count(&self) -> usize {
        self.sessions.values().map(|session| session.users.len()).sum()
    }

    pub fn open_count(&self) -> usize {
        self.sessions.values().map(|session| session.opens.len()).sum()
    }

    pub fn progress(&mut self) {
        if !self.live {
            return;
        }
        let near = self.near.as_mut().and_then(|near| near.poll_accept());
        self.came_near += usize::from(near.is_some());
        let others = std::iter::from_fn(|| self.listener.poll_accept());
        for incoming in near.into_iter().chain(others) {
            let options = ConnOptions { credits: 16, ..ConnOptions::default() };
            self.node.accept(incoming, &[], options).expect("accepted");
        }
        if !self.script.stall && !self.script.stall_writes {
            for (id, header, data_len, reply_max) in std::mem::take(&mut self.stalled) {
                if let Some(session) = self.conns.get(&id.conn()).copied() {
                    self.on_request(id, session, header, data_len, reply_max);
                }
            }
        }
        if !self.script.hold_commits {
            for (id, reply) in std::mem::take(&mut self.held) {
                self.node.reply(id, &reply, SgList::new(), 0);
            }
        }
        self.node.poll();
        while let Some(event) = self.node.next_event() {
            self.on_event(event);
        }
        self.send_callbacks();
        self.node.ring();
    }

    /// Requests that are not answered before something is over.
    pub fn stalled_requests(&self) -> usize {
        self.stalled.len()
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Request { id, header, data_len, reply_max, pushed } => {
                let data_len = (data_len, pushed);
                if let Some(session) = self.conns.get(&id.conn()).copied() {
                    let stalls_write = || self.script.stall_writes && is_write(&header);
                    if self.script.stall || stalls_write() {
                        self.requests += 1;
                        self.stalled.push((id, header, data_len, reply_max));
                    } else {
                        self.on_request(id, session, header, data_len, reply_max);
                    }
                } else {
                    self.on_setup(id, &header);
                }
            }
            Event::Fetched { id, placed } => {
                let Some(fetching) = self.fetching.remove(&id) else { return };
                let Fetching { session, request, data, reply_max } = fetching;
                let decoded = decode_request(&request).expect("decoded before");
                if placed.is_some() {
                    let data = data.take_back().expect("fetched");
                    self.execute(id, session, &decoded, Some(data), reply_max);
                } else if let Some(session) = self.sessions.get_mut(&session) {
                    session.slots.abandon(decoded.head.slot);
                    // Resent while its data was under way, and now without an answer: ask again.
                    if let Some(target) = session.targets.remove(&decoded.head.slot.0) {
                        self.node.disconnect(target.conn(), "resent too early");
                    }
                }
            }
            Event::Reply { header, .. } => self.on_callback_reply(&header),
            Event::ReplySent { token } => drop(self.sending.remove(&token)),
            Event::Disconnected { conn, .. } => drop(self.conns.remove(&conn)),
            _ => {}
        }
    }

    fn on_request(
        &mut self,
        id: RequestId,
        session_id: SessionId,
        header: Vec<u8>,
        (data_len, pushed): (u32, bool),
        reply_max: u32,
    ) {
        self.requests += 1;
        self.pushed += usize::from(pushed);
        let request = decode_request(&header).expect("a request");
        let head = request.head;
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return self.answer(id, &head, Err(Status::BadSession), None);
        };
        let verdict = session.slots.begin(head.slot, head.sequence, request.hash, data_len);
        if pushed && verdict == Verdict::New && self.script.declines > 0 {
            self.script.declines -= 1;
            session.slots.abandon(head.slot);
            return self.answer(id, &head, Err(Status::Delay), None);
        }
        match verdict {
            Verdict::Refuse(status) => self.answer(id, &head, Err(status), None),
            Verdict::Running => drop(session.targets.insert(head.slot.0, id)),
            Verdict::New if data_len > 0 => {
                let data = Buffer::new(data_len as usize).expect("buffer").post();
                self.node.fetch(id, [data.span().clone()].into_iter().collect());
                drop(request);
                let request = header;
                let fetching = Fetching { session: session_id, request, data, reply_max };
                self.fetching.insert(id, fetching);
            }
            Verdict::New => self.execute(id, session_id, &request, None, reply_max),
            Verdict::Replay(results) if results.iter().all(Option::is_some) => {
                session.slots.finish(head.slot, results.iter().map(Option::as_ref));
                let results = results.into_iter().flatten().collect();
                self.answer(id, &head, Ok(results), None);
            }
            // Reads are done again.
            Verdict::Replay(_) => self.execute(id, session_id, &request, None, reply_max),
        }
    }

    fn execute(
        &mut self,
        id: RequestId,
        session: SessionId,
        request: &Request<'_>,
        data: Option<Buffer>,
        reply_max: u32,
    ) {
        let cred = request.head.cred.0;
        let users = self.sessions.get(&session).map(|session| &session.users);
        self.acting = match users.and_then(|users| users.get(&cred)) {
            Some(uid) => *uid,
            None => {
                assert_eq!(cred, 0, "a credential of another session");
                self.script.uid
            }
        };
        self.locks.origin = (request.head.slot, request.head.sequence);
        let mut chain = Chain { handle: ROOT, state: StateId::NONE, data: Vec::new() };
        let (mut results, mut kept) = (Vec::new(), Vec::new());
        for operation in &request.operations {
            let result =
                self.operation(session, &mut chain, operation, data.as_deref().unwrap_or(&[]));
            kept.push(operation.is_cached().then(|| result.clone()));
            let failed = result.is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        // To the connection that asked last.
        let mut target = id;
        if let Some(session) = self.sessions.get_mut(&session) {
            session.slots.finish(request.head.slot, kept.iter().map(Option::as_ref));
            target = session.targets.remove(&request.head.slot.0).unwrap_or(id);
        }
        assert!(chain.data.len() <= reply_max as usize, "room for {reply_max}");
        let data = (!chain.data.is_empty()).then(|| {
            let mut buffer = Buffer::new(chain.data.len()).expect("buffer");
            buffer.copy_from_slice(&chain.data);
            buffer.post()
        });
        self.answer(target, &request.head, Ok(results), data);
    }

    fn answer(
        &mut self,
        id: RequestId,
        head: &RequestHead,
        results: Result<Vec<OpResult>, Status>,
        data: Option<PostedBuffer>,
    ) {
        let ping = matches!(results.as_deref(), Ok([Ok(Outcome::Done)]));
        if self.script.lose_replies > 0 && !ping {
            self.script.lose_replies -= 1;
            self.node.disconnect(id.conn(), "lost on the way");
            return;
        }
        let mut reply = Reply { slot: head.slot, sequence: head.sequence, results };
        if let Some(lie) = self.script.lie {
            lie(&mut reply);
        }
        let mut bytes = Vec::new();
        encode_reply(&reply, &mut bytes);
        let commits = matches!(reply.results.as_deref(), Ok([.., Ok(Outcome::Committed { .. })]));
        if self.script.hold_commits && commits {
            return self.held.push((id, bytes));
        }
        self.next += 1;
        let spans = data.iter().map(|data| data.span().clone()).collect();
        self.node.reply(id, &bytes, spans, self.next);
        self.sending.extend(data.map(|data| (self.next, data)));
    }

    fn attr(&self, path: &[u8]) -> Attr {
        let time = Timestamp::default();
        let size = self.memory.files.get(path).map(|file| file.len() as u64);
        let directory = path.is_empty() || path.ends_with(b"dir") || size.is_none();
        Attr {
            kind: if directory { FileKind::Directory } else { FileKind::File },
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            // Tells directories apart.
            size: size.unwrap_or(path.len() as u64),
            allocated: 0,
            inode: self.memory.inodes.get(path).copied().unwrap_or(0),
            device: 1,
            number: 0,
            rdev: 0,
            block_size: 4096,
            change: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        }
    }

    fn path(&self, dir: &FileHandle, name: &[u8]) -> Result<Vec<u8>, Status> {
        let base = match self.handles.get(dir) {
            _ if *dir == ROOT => Vec::new(),
            Some(base) => base.clone(),
            None => return Err(Status::Stale),
        };
        let parts = [base.as_slice(), name];
        let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Ok(parts.join(&b'/'))
    }

    fn handle(&mut self, path: &[u8]) -> FileHandle {
        if path.is_empty() {
            return ROOT;
        }
        let known = self.handles.iter().find(|(_, known)| *known == path);
        if let Some((handle, _)) = known {
            return *handle;
        }
        let mut handle = FileHandle::default();
        handle.0[0] = self.boot;
        handle.0[1] = u8::try_from(self.handles.len() + 1).expect("few");
        self.handles.insert(handle, path.to_vec());
        handle
    }
}

struct Chain {
    handle: FileHandle,
    state: StateId,
    data: Vec<u8>,
}

fn open(provider: &dyn Provider, address: &Address) -> (Node, Box<dyn Listener>) {
    let domain = Domain::open(provider).expect("device");
    let listener = domain.device().listen(address).expect("listener");
    (Node::new(domain, NodeConfig::default()).expect("node"), listener)
}
