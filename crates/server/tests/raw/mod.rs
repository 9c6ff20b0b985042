//! A session without the client library: chains as they are on the wire, to a server over a
//! directory of this host.

#![allow(dead_code, reason = "each test file uses a part")]

mod options;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{Address, Arena, Domain, SgList};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};
use dafs_protocol::{
    CacheHint, ClientId, CreateMode, CredHandle, ExtentList, FileHandle, OpResult, OpenFlags,
    Operation, Outcome, Purpose, RequestHead, SessionAttr, SessionId, SessionSecret, SetupReply,
    SetupRequest, SizeClass, SlotId, Stability, StateId, Status, WaitMode, decode_reply,
    decode_setup_reply, encode_request, encode_setup_request,
};
use dafs_server::{Config, DataPath, Server};
use dafs_unifier::CacheDomains;

pub const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    create: CreateMode::No,
    truncate: false,
    append: false,
    no_follow: false,
    unlinked: false,
    again: false,
};
pub const BOTH: OpenFlags = OpenFlags { write: true, ..READ };
pub const MAKE: OpenFlags = OpenFlags { create: CreateMode::Unchecked, ..BOTH };

/// A server over a directory of its own.
pub struct Served {
    pub directory: tempfile::TempDir,
    _state: tempfile::TempDir,
    server: Option<Server>,
}

impl Served {
    /// With all defaults.
    pub fn start() -> Served {
        Served::with(|_| ())
    }

    /// With a data path, and otherwise as is wanted.
    pub fn on(path: DataPath) -> Served {
        Served::with(|config| {
            options::apply_wanted(config);
            config.exports[0].data_path = path;
        })
    }

    /// With what is changed of the defaults for tests.
    pub fn with(configure: impl FnOnce(&mut Config)) -> Served {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config::for_directory(directory.path());
        config.listen = vec!["tcp://127.0.0.1:0".into()];
        config.arena_bytes = Some(64 << 20);
        configure(&mut config);
        // What nobody filled, or what is written when it is free, ends the test.
        dafs_fabric::poison::switch_on(std::array::from_fn(|at| (at * 37 + 11) as u8));
        let state = tempfile::tempdir().expect("a directory");
        config.state = Some(state.path().to_owned());
        let server = Server::start(&config, Arc::new(TcpProvider::new()), &dafs_store_posix::open)
            .expect("server");
        Served { directory, _state: state, server: Some(server) }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A counter of the server, as its admin port tells it.
    pub fn counter(&self, of: impl Fn(&dafs_server::Counters) -> u64) -> u64 {
        of(&self.server.as_ref().expect("runs").shared().counters)
    }

    /// Where it listens, in the order of its configuration.
    pub fn addresses(&self) -> &[Address] {
        self.server.as_ref().expect("runs").addresses()
    }

    pub fn admin(&self) -> std::net::SocketAddr {
        self.server.as_ref().expect("runs").admin_address()
    }

    pub fn unifier(&self) -> &CacheDomains {
        self.server.as_ref().expect("runs").shared().unifier()
    }

    /// Files that the cache knows.
    pub fn files(&self) -> u64 {
        self.unifier().stats().files
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// A name that no other client has.
fn client() -> ClientId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    ClientId(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)).to_le_bytes())
}

/// A session with some slots. All but [`Raw::begin`] uses the first, in whose order it is done.
pub struct Raw {
    node: Node,
    conn: ConnId,
    sequence: u32,
    request: Arc<Arena>,
    reply: Arc<Arena>,
    session: (SessionId, SessionSecret),
    pub root: FileHandle,
    pub cred: CredHandle,
}

/// Servers here act for other users.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("this process").uid() == 0
}

pub fn write_of(state: StateId, offset: u64, bytes: u32) -> Operation<'static> {
    let extents = ExtentList::one(offset, bytes);
    Operation::Write { state, extents, stability: Stability::Unstable, within: false }
}

type Results = Result<(Vec<Outcome>, Vec<u8>), Status>;

impl Raw {
    pub fn connect(served: &Served) -> Raw {
        Raw::connect_with(served, ConnOptions::default())
    }

    /// As `connect`; data that is not small is not pushed: the server fetches it.
    pub fn connect_untagged(served: &Served) -> Raw {
        Raw::connect_with(served, ConnOptions { use_tagged: false, ..ConnOptions::default() })
    }

    fn connect_with(served: &Served, options: ConnOptions) -> Raw {
        Raw::connect_to(&served.addresses()[0], options)
    }

    /// At one of the server's addresses.
    pub fn connect_to(address: &Address, options: ConnOptions) -> Raw {
        let mut raw = Raw::dial(address, options, &[]);
        let attr = SessionAttr {
            slots: 16,
            data_bytes_max: 1 << 20,
            inline_bytes: 512,
            wait: WaitMode::Sleeping,
            lease_ms: 0,
            tagged: true,
            rdma_read: true,
            read_ahead: true,
        };
        raw.set_up(SizeClass::Any, Purpose::Create { attr, client: client() });
        match raw.one(Operation::GetRoot { export: b"" }) {
            Ok(Outcome::Found { handle, .. }) => raw.root = handle,
            other => panic!("no root: {other:?}"),
        }
        raw
    }

    /// A second connection of a session, which goes on with its first slot.
    pub fn join(&self, address: &Address) -> Raw {
        let (session, secret) = self.session;
        let mut raw = Raw::dial(address, ConnOptions::default(), &session.0);
        raw.set_up(SizeClass::Bulk, Purpose::Bind { session, secret });
        Raw { sequence: self.sequence, root: self.root, ..raw }
    }

    fn dial(address: &Address, options: ConnOptions, private: &[u8]) -> Raw {
        let domain = Domain::open(&TcpProvider::default()).expect("device");
        let mut node = Node::new(domain, NodeConfig::default()).expect("node");
        let conn = node.connect(address, private, options).expect("connect");
        let arena = || Arena::new(1 << 20).expect("arena");
        let mut raw = Raw {
            node,
            conn,
            sequence: 0,
            request: arena(),
            reply: arena(),
            session: Default::default(),
            root: FileHandle::default(),
            cred: CredHandle(0),
        };
        assert!(matches!(raw.event(), Event::Connected { .. }));
        raw
    }

    fn set_up(&mut self, class: SizeClass, purpose: Purpose) {
        let request = SetupRequest::hello([1; 32], class, false, purpose);
        let mut bytes = Vec::new();
        encode_setup_request(&request, &mut bytes);
        let (reply, _) = self.exchange(&bytes, SgList::new());
        match decode_setup_reply(&reply).expect("a reply") {
            SetupReply::Ready { session, secret, .. } => self.session = (session, secret),
            other => panic!("{other:?}"),
        }
    }

    fn event(&mut self) -> Event {
        let start = Instant::now();
        loop {
            self.node.poll();
            if let Some(event) = self.node.next_event() {
                return event;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the server does not answer");
            std::thread::yield_now();
        }
    }

    fn exchange(&mut self, header: &[u8], data: SgList) -> (Vec<u8>, Vec<u8>) {
        let into = SgList::from_iter([self.reply.span(0, 1 << 20)]);
        self.node.submit(self.conn, 1, header, data, into).expect("submit");
        self.node.ring();
        loop {
            match self.event() {
                Event::Reply { header, data_len, .. } => {
                    let mut data = Vec::new();
                    self.reply.span(0, 1 << 20).read_message(data_len as usize, &mut data);
                    return (header, data);
                }
                Event::Disconnected { reason, .. } => panic!("disconnected: {reason}"),
                _ => {}
            }
        }
    }

    /// The outcomes of a chain and its data, or the status of what failed.
    pub fn chain(&mut self, operations: &[Operation<'_>], data: &[u8]) -> Results {
        self.sequence += 1;
        let head = RequestHead { slot: SlotId(0), sequence: self.sequence, cred: self.cred };
        let mut header = Vec::new();
        encode_request(&head, operations, &mut header).expect("well-formed");
        let span = self.request.span(0, 1 << 20);
        span.write_message(0, data);
        let data = if data.is_empty() {
            SgList::new()
        } else {
            SgList::from_iter([span.part(0, data.len())])
        };
        let (reply, data) = self.exchange(&header, data);
        let results = decode_reply(&reply).expect("a reply").results?;
        let outcomes = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok((outcomes, data))
    }

    /// Asks for a chain without data and does not wait for it; once of each slot but the first.
    pub fn begin(&mut self, slot: u16, operations: &[Operation<'_>]) {
        self.begin_with(slot, operations, SgList::new());
    }

    /// As `begin`, with so many bytes of data. What the server fetches comes while this waits for
    /// answers.
    pub fn begin_with_data(&mut self, slot: u16, operations: &[Operation<'_>], bytes: usize) {
        let data = SgList::from_iter([self.request.span(0, bytes)]);
        self.begin_with(slot, operations, data);
    }

    /// As `begin_with_data`; the data waits until the server asks for it, and this goes on.
    pub fn begin_on_grant(&mut self, slot: u16, operations: &[Operation<'_>], bytes: usize) {
        let data = SgList::from_iter([self.request.span(0, bytes)]);
        let header = self.header_of(slot, operations);
        let tag = slot.into();
        self.node.submit_on_grant(self.conn, tag, &header, data, SgList::new()).expect("submit");
        self.node.ring();
    }

    /// Asks for so much data, whose place it shares with all others.
    pub fn begin_read(&mut self, slot: u16, state: StateId, bytes: u32) {
        let extents = ExtentList::one(0, bytes);
        let read = Operation::Read { state, extents };
        let header = self.header_of(slot, &[read]);
        let into = SgList::from_iter([self.reply.span(0, bytes as usize)]);
        self.node.submit(self.conn, slot.into(), &header, SgList::new(), into).expect("submit");
        self.node.ring();
    }

    fn header_of(&mut self, slot: u16, operations: &[Operation<'_>]) -> Vec<u8> {
        self.sequence += u32::from(slot == 0);
        let sequence = if slot == 0 { self.sequence } else { 1 };
        let head = RequestHead { slot: SlotId(slot), sequence, cred: self.cred };
        let mut header = Vec::new();
        encode_request(&head, operations, &mut header).expect("well-formed");
        header
    }

    fn begin_with(&mut self, slot: u16, operations: &[Operation<'_>], data: SgList) {
        let header = self.header_of(slot, operations);
        let room = usize::from(slot) * 4096;
        let into = SgList::from_iter([self.reply.span(room, 4096)]);
        self.node.submit(self.conn, slot.into(), &header, data, into).expect("submit");
        self.node.ring();
    }

    /// Goes on, and looks what comes within this time: true when the connection has ended.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < time {
            self.node.poll();
            if let Some(Event::Disconnected { .. }) = self.node.next_event() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// The slot whose chain is answered next, well.
    pub fn answered(&mut self) -> u16 {
        loop {
            if let Event::Reply { header, .. } = self.event() {
                let reply = decode_reply(&header).expect("a reply");
                assert!(reply.results.expect("begun").iter().all(Result::is_ok));
                return reply.slot.0;
            }
        }
    }

    /// The slot whose chain is answered next, and how.
    pub fn results(&mut self) -> (u16, Result<Vec<OpResult>, Status>) {
        loop {
            if let Event::Reply { header, .. } = self.event() {
                let reply = decode_reply(&header).expect("a reply");
                return (reply.slot.0, reply.results);
            }
        }
    }

    pub fn one(&mut self, operation: Operation<'_>) -> Result<Outcome, Status> {
        Ok(self.chain(&[operation], b"")?.0.remove(0))
    }

    /// Acts as somebody else from now on, for which the server must be root.
    pub fn act_as(&mut self, uid: u32, gid: u32) {
        self.cred = CredHandle(0);
        match self.one(Operation::CredRegister { uid, gid, groups: b"" }) {
            Ok(Outcome::Credential { cred }) => self.cred = cred,
            other => panic!("no credential: {other:?}"),
        }
    }

    pub fn open(
        &mut self,
        path: &str,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(FileHandle, StateId), Status> {
        let dir = self.root;
        let cache = CacheHint::default();
        match self.one(Operation::Open { dir, path: path.as_bytes(), flags, mode, cache })? {
            Outcome::Opened { handle, state, .. } => Ok((handle, state)),
            other => panic!("not opened: {other:?}"),
        }
    }

    pub fn write(&mut self, state: StateId, offset: u64, bytes: &[u8]) -> Result<(), Status> {
        let len = u32::try_from(bytes.len()).expect("short");
        let extents = ExtentList::one(offset, len);
        let stability = Stability::Unstable;
        let write = Operation::Write { state, extents, stability, within: false };
        self.chain(&[write], bytes).map(drop)
    }

    pub fn read(&mut self, state: StateId, offset: u64, len: u32) -> Result<Vec<u8>, Status> {
        let extents = ExtentList::one(offset, len);
        Ok(self.chain(&[Operation::Read { state, extents }], b"")?.1)
    }
}
