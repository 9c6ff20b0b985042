//! A client that sends well-formed lies to a real server: limits hold, nothing leaks, others
//! are served meanwhile. Last line: a summary.

#![forbid(unsafe_code)]

mod half_sent;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{Address, Arena, Provider, SgList};
use dafs_fabric_tcp::TcpProvider;
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};
use dafs_protocol::{
    CacheHint, ClientId, CreateMode, CredHandle, Dialled, Extent, ExtentList, FileHandle, LockKind,
    LockRange, LockRequest, LockTicket, Locked, OpResult, OpenFlags, Operation, Outcome, OwnerKey,
    PROTOCOL_VERSION, Purpose, RequestHead, SessionAttr, SessionId, SetupReply, SetupRequest,
    SizeClass, SlotId, Stability, StateId, Status, WaitMode, decode_reply, decode_setup_reply,
    encode_request, encode_setup_request,
};
use dafs_tests::Served;
use dafs_tests::client::session;

/// A connection of the message layer, with nothing of the client library.
struct Raw {
    node: Node,
    conn: ConnId,
    sequences: Vec<u32>,
    next_tag: u32,
    arena: std::sync::Arc<Arena>,
}

type Results = Result<Vec<OpResult>, Status>;

fn address(url: &str) -> Address {
    let authority = url.trim_start_matches("dafs://").trim_end_matches('/');
    Address::parse(&format!("tcp://{authority}")).expect("address")
}

impl Raw {
    fn connect(url: &str) -> Raw {
        let device = TcpProvider::default().open().expect("device");
        let engine = device.engine().expect("engine");
        let mut node = Node::new(device, engine, NodeConfig::default()).expect("node");
        // It takes callbacks, and answers none.
        let options = ConnOptions { credits: 8, ..ConnOptions::default() };
        let conn = node.connect(&address(url), &[], options).expect("connect");
        let arena = Arena::new(1 << 20).expect("arena");
        let mut raw = Raw { node, conn, sequences: vec![0; 4096], next_tag: 1, arena };
        match raw.event() {
            Some(Event::Connected { .. }) => raw,
            other => panic!("not connected: {other:?}"),
        }
    }

    /// The next event within five seconds; `None`: nothing came.
    fn event(&mut self) -> Option<Event> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            self.node.poll();
            if let Some(event) = self.node.next_event() {
                return Some(event);
            }
            std::thread::yield_now();
        }
        None
    }

    /// Sends bytes as a request with `data`; the reply's header, or `None` when the server
    /// ended the connection.
    fn exchange(&mut self, header: &[u8], data: SgList) -> Option<Vec<u8>> {
        let tag = self.next_tag % 60;
        self.next_tag += 1;
        let into = SgList::from_elem(self.arena.span(0, 65_536), 1);
        self.node.submit(self.conn, tag, header, data, into).ok()?;
        self.node.ring();
        loop {
            match self.event()? {
                Event::Reply { header, .. } => return Some(header),
                Event::Disconnected { .. } | Event::Quiescent { .. } => return None,
                _ => {}
            }
        }
    }

    fn set_up(&mut self, request: &SetupRequest) -> Option<SetupReply> {
        let mut bytes = Vec::new();
        encode_setup_request(request, &mut bytes);
        decode_setup_reply(&self.exchange(&bytes, SgList::new())?).ok()
    }

    fn create(&mut self) -> (SessionId, [u8; 16]) {
        match self.set_up(&hello(
            PROTOCOL_VERSION,
            Purpose::Create { attr: wish(), client: new_client() },
        )) {
            Some(SetupReply::Ready { session, secret, .. }) => (session, secret),
            other => panic!("no session: {other:?}"),
        }
    }

    /// A chain on slot 0 with the right sequence.
    fn chain(&mut self, operations: &[Operation<'_>]) -> Option<Results> {
        self.sequences[0] += 1;
        self.chain_at(0, self.sequences[0], operations, SgList::new())
    }

    fn chain_at(
        &mut self,
        slot: u16,
        sequence: u32,
        operations: &[Operation<'_>],
        data: SgList,
    ) -> Option<Results> {
        let head = RequestHead { slot: SlotId(slot), sequence, cred: CredHandle(0) };
        let mut bytes = Vec::new();
        encode_request(&head, operations, &mut bytes).expect("well-formed");
        let reply = self.exchange(&bytes, data)?;
        Some(decode_reply(&reply).expect("a reply").results)
    }

    fn root(&mut self) -> FileHandle {
        match self.chain(&[Operation::GetRoot { export: b"" }]) {
            Some(Ok(results)) => match results.first() {
                Some(Ok(Outcome::Found { handle, .. })) => *handle,
                other => panic!("no root: {other:?}"),
            },
            other => panic!("no root: {other:?}"),
        }
    }
}

/// A client that no other session of this process has.
fn new_client() -> ClientId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64;
    ClientId((number | u128::from(std::process::id())).to_le_bytes())
}

fn wish() -> SessionAttr {
    SessionAttr {
        slots: 16,
        data_bytes_max: 1 << 20,
        inline_bytes: 512,
        wait: WaitMode::Sleeping,
        lease_ms: 0,
        tagged: true,
        rdma_read: true,
        read_ahead: true,
    }
}

fn hello(version: u32, purpose: Purpose) -> SetupRequest {
    SetupRequest::Hello { version, nonce: [1; 32], class: SizeClass::Any, keyed: false, purpose }
}

fn open_flags(write: bool) -> OpenFlags {
    OpenFlags {
        read: true,
        write,
        create: CreateMode::No,
        truncate: false,
        append: false,
        no_follow: false,
        unlinked: false,
        again: false,
    }
}

fn open<'a>(dir: FileHandle, path: &'a [u8], write: bool) -> Operation<'a> {
    Operation::Open { dir, path, flags: open_flags(write), mode: 0, cache: CacheHint::default() }
}

/// The status of the first operation.
fn status(results: Option<Results>) -> Option<Status> {
    match results? {
        Err(status) => Some(status),
        Ok(results) => results.into_iter().find_map(Result::err),
    }
}

type Case = fn(&str) -> Result<(), String>;

fn expect(what: &str, ok: bool) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what.to_string()) }
}

fn garbage(url: &str) -> Result<(), String> {
    for i in 0..64u64 {
        let mut stream = TcpStream::connect(&address(url).target).map_err(|e| e.to_string())?;
        stream.write_all(&dafs_tests::tree::pattern(i, 4000)).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(Duration::from_secs(6))).map_err(|e| e.to_string())?;
        let mut rest = Vec::new();
        // It must end the connection, within its time limit for half-open ones.
        let ended = match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        expect("garbage does not end the connection", ended)?;
    }
    Ok(())
}

fn set_up_lies(url: &str) -> Result<(), String> {
    let refused = |reply: Option<SetupReply>, status: Status| matches!(reply, Some(SetupReply::Refused { status: s, .. }) if s == status);
    let attr = wish();
    let reply =
        Raw::connect(url).set_up(&hello(99, Purpose::Create { attr, client: new_client() }));
    expect("another version is refused", refused(reply, Status::Version))?;
    let foreign = Purpose::Bind { session: SessionId([7; 16]), secret: [0; 16] };
    let reply = Raw::connect(url).set_up(&hello(PROTOCOL_VERSION, foreign));
    expect("a foreign session is refused", refused(reply, Status::BadSession))?;
    let mut first = Raw::connect(url);
    let (session, mut secret) = first.create();
    secret[15] ^= 1;
    let stolen = Purpose::Bind { session, secret };
    let reply = Raw::connect(url).set_up(&hello(PROTOCOL_VERSION, stolen));
    expect("a wrong secret is refused", refused(reply, Status::BadSession))?;
    let prove = SetupRequest::Prove { dialled: Dialled::default(), proof: [0; 32] };
    let reply = Raw::connect(url).set_up(&prove);
    expect("a proof nobody asked for is refused", refused(reply, Status::BadMessage))?;
    let mut early = Raw::connect(url);
    expect("a request before set-up ends the connection", early.chain(&[Operation::Null]).is_none())
}

fn slot_lies(url: &str) -> Result<(), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let root = raw.root();
    let null = [Operation::Null];
    let mut at = |slot, sequence, ops: &[Operation<'_>]| {
        status(raw.chain_at(slot, sequence, ops, SgList::new()))
    };
    expect("an unknown slot", at(4000, 1, &null) == Some(Status::BadSlot))?;
    expect("a sequence from the future", at(1, 5, &null) == Some(Status::SeqMisordered))?;
    expect("the first", at(1, 1, &null).is_none())?;
    expect("the past", at(1, 0, &null) == Some(Status::SeqMisordered))?;
    let other = [Operation::GetAttr { handle: root, state: StateId::NONE }];
    expect("another request as a retry", at(1, 1, &other) == Some(Status::SeqFalseRetry))?;
    expect("a true retry", at(1, 1, &null).is_none())
}

fn handle_lies(url: &str) -> Result<(), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let root = raw.root();
    for byte in 0..64 {
        let mut forged = root;
        forged.0[byte] ^= 0x10;
        let got = status(raw.chain(&[Operation::GetAttr { handle: forged, state: StateId::NONE }]));
        let ok = matches!(got, Some(Status::BadHandle | Status::Stale));
        expect(&format!("a handle forged at byte {byte}: {got:?}"), ok)?;
    }
    for state in [1, 77, u64::MAX - 1] {
        let extents = ExtentList::one(0, 4096);
        let read = Operation::Read { state: StateId(state), extents, report_holes: false };
        let got = status(raw.chain(&[read]));
        expect(&format!("a foreign state: {got:?}"), got == Some(Status::BadStateId))?;
    }
    // Appending is writing: the store would be asked for the right to read only.
    let flags = OpenFlags { append: true, ..open_flags(false) };
    let sly =
        Operation::Open { dir: root, path: b"data", flags, mode: 0, cache: CacheHint::default() };
    let got = status(raw.chain(&[sly]));
    expect(&format!("appending without writing: {got:?}"), got == Some(Status::Inval))?;
    for path in [&b"../../etc/passwd"[..], b"/../etc/passwd", b"escape/passwd", b"absolute/passwd"]
    {
        let got = raw.chain(&[Operation::Lookup { dir: root, path, no_follow: false }]);
        let ok = status(got).is_some();
        expect(&format!("out of the export by {}", String::from_utf8_lossy(path)), ok)?;
    }
    Ok(())
}

fn range_lies(url: &str) -> Result<(), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let root = raw.root();
    let opened = raw.chain(&[open(root, b"data", true)]);
    let state = match opened.and_then(Result::ok).and_then(|mut r| r.pop()) {
        Some(Ok(Outcome::Opened { state, .. })) => state,
        other => return Err(format!("open: {other:?}")),
    };
    let far = i64::MAX as u64 - 4096;
    for extent in [
        Extent { offset: 0, len: 4096, count: 1000, stride: 1 << 60 },
        Extent { offset: 0, len: 1 << 20, count: 3, stride: 1 << 20 },
        Extent { offset: 0, len: 1, count: 60_000, stride: 1 },
    ] {
        let Some(extents) = ExtentList::new(&[extent]) else { continue };
        let head = RequestHead { slot: SlotId(2), sequence: 1, cred: CredHandle(0) };
        let read = Operation::Read { state, extents, report_holes: false };
        // What the encoder refuses, a server never sees from it; the rest must be refused there.
        if encode_request(&head, std::slice::from_ref(&read), &mut Vec::new()).is_ok() {
            let got = status(raw.chain(&[read]));
            expect(&format!("an impossible extent {extent:?}"), got.is_some())?;
        }
    }
    let read = Operation::Read { state, extents: ExtentList::one(far, 4096), report_holes: false };
    expect("a read far behind the end", status(raw.chain(&[read])).is_none())?;
    // Data that is not there: says 65536, brings 100.
    let write = Operation::Write {
        state,
        extents: ExtentList::one(0, 65_536),
        stability: Stability::Unstable,
        within: false,
    };
    let data = SgList::from_elem(raw.arena.span(0, 100), 1);
    let got = status(raw.chain_at(3, 1, &[write], data));
    expect(&format!("too little data: {got:?}"), got == Some(Status::BadMessage))?;
    let truncate = Operation::Fallocate { state, mode: 0xffff, offset: 0, len: u64::MAX };
    expect("an impossible fallocate", status(raw.chain(&[truncate])).is_some())
}

const OPENS_MAX: usize = 500;

fn a_million_opens(url: &str) -> Result<(), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let root = raw.root();
    for i in 0..OPENS_MAX + 50 {
        match status(raw.chain(&[open(root, b"data", false)])) {
            None if i < OPENS_MAX => {}
            Some(Status::Resource) if i >= OPENS_MAX => return Ok(()),
            other => return Err(format!("open {i}: {other:?}")),
        }
    }
    Err("opens without limit".into())
}

fn many_connections(url: &str) -> Result<(), String> {
    let target = address(url).target;
    let silent: Vec<_> = (0..600).filter_map(|_| TcpStream::connect(&target).ok()).collect();
    let start = Instant::now();
    session(url).stat(b"data").map_err(|error| error.to_string())?;
    let took = start.elapsed();
    drop(silent);
    expect(&format!("served in {took:?} beside silent connections"), took < Duration::from_secs(9))
}

fn many_sessions(url: &str) -> Result<(), String> {
    let mut kept = Vec::new();
    for _ in 0..80 {
        let mut raw = Raw::connect(url);
        let attr = wish();
        match raw.set_up(&hello(PROTOCOL_VERSION, Purpose::Create { attr, client: new_client() })) {
            Some(SetupReply::Ready { .. }) => kept.push(raw),
            Some(SetupReply::Refused { status: Status::Resource, .. }) => return Ok(()),
            other => return Err(format!("{other:?}")),
        }
    }
    Err("sessions without limit".into())
}

/// Runs as a user without rights: claims uid 0 and reads a 0600 file of root.
fn without_rights(url: &str) -> Result<(), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let register = Operation::CredRegister { uid: 0, gid: 0, groups: &[] };
    let got = status(raw.chain(&[register]));
    expect(&format!("uid 0 without proof: {got:?}"), got == Some(Status::NotAuthorized))?;
    let root = raw.root();
    let got = status(raw.chain(&[open(root, b"secret", false)]));
    expect(&format!("a 0600 file of root: {got:?}"), got == Some(Status::Access))?;
    let extents = ExtentList::one(0, 4096);
    let read = Operation::Read { state: StateId::PREVIOUS, extents, report_holes: false };
    let got = status(raw.chain(&[open(root, b"secret", false), read]));
    expect("read in one chain", got == Some(Status::Access))?;
    let head = RequestHead { slot: SlotId(1), sequence: 1, cred: CredHandle(1) };
    let mut bytes = Vec::new();
    encode_request(&head, &[open(root, b"secret", false)], &mut bytes)
        .map_err(|e| e.to_string())?;
    let reply = raw.exchange(&bytes, SgList::new()).ok_or("disconnected")?;
    let got = status(decode_reply(&reply).ok().map(|reply| reply.results));
    expect(&format!("a credential nobody registered: {got:?}"), got == Some(Status::NoCreds))
}

const LOCKS_MAX: u64 = 200;
const WAITS_MAX: u64 = 20;

/// Exclusive, of some bytes, by an owner of this number.
fn lock_request(number: u64, first: u64, last: u64) -> LockRequest {
    let owner = OwnerKey { kind: LockKind::Posix, number };
    let range = LockRange::new(first, last).expect("in order");
    LockRequest { owner, range, exclusive: true, pid: 1 }
}

/// A session with a file open, which is made.
fn opened(url: &str, name: &str) -> Result<(Raw, StateId), String> {
    let mut raw = Raw::connect(url);
    raw.create();
    let dir = raw.root();
    let flags = OpenFlags { create: CreateMode::Unchecked, ..open_flags(true) };
    let (path, cache) = (name.as_bytes(), CacheHint::default());
    match raw
        .chain(&[Operation::Open { dir, path, flags, mode: 0o600, cache }])
        .and_then(Result::ok)
        .and_then(|mut r| r.pop())
    {
        Some(Ok(Outcome::Opened { state, .. })) => Ok((raw, state)),
        other => Err(format!("open: {other:?}")),
    }
}

fn lock(raw: &mut Raw, state: StateId, lock: LockRequest, wait: bool) -> Result<Locked, Status> {
    let operation = Operation::Lock { state, lock, wait, reclaim: false };
    match raw.chain(&[operation]) {
        Some(Ok(mut results)) => match results.pop() {
            Some(Ok(Outcome::Lock(locked))) => Ok(locked),
            Some(Err(status)) => Err(status),
            other => panic!("no answer to LOCK: {other:?}"),
        },
        other => panic!("no answer to LOCK: {other:?}"),
    }
}

/// So many locks or waits of one byte each, until the server has enough.
fn until_refused(raw: &mut Raw, state: StateId, wait: bool) -> Result<u64, String> {
    for n in 0..10_000 {
        match lock(raw, state, lock_request(n % 3, n * 2, n * 2), wait) {
            Ok(_) => {}
            Err(Status::Resource) => return Ok(n),
            Err(other) => return Err(format!("{n}: {other:?}")),
        }
    }
    Err("without end".into())
}

fn locks_without_end(url: &str) -> Result<(), String> {
    const NAME: &str = "locks without end";
    let ((mut raw, state), (mut other, theirs)) = (opened(url, NAME)?, opened(url, NAME)?);
    let count = until_refused(&mut raw, state, false)?;
    expect(&format!("{count} locks"), count > 1 && count <= LOCKS_MAX)?;
    let got = lock(&mut other, theirs, lock_request(0, 1, 1), false);
    expect(&format!("another is served: {got:?}"), got == Ok(Locked::Granted))?;
    // Every other byte of one range given back makes as many ranges.
    let cut = |n: u64| Operation::Unlock {
        state: theirs,
        owner: lock_request(0, 0, 0).owner,
        range: LockRange::new(n * 2, n * 2).expect("in order"),
    };
    let whole = lock(&mut other, theirs, lock_request(0, 1 << 40, u64::MAX), false);
    expect(&format!("a large range: {whole:?}"), whole == Ok(Locked::Granted))?;
    let refused = (1 << 40..(1 << 40) + LOCKS_MAX + 9)
        .any(|n| status(other.chain(&[cut(n)])) == Some(Status::Resource));
    expect("pieces without end", refused)
}

fn waits_without_end(url: &str) -> Result<(), String> {
    const NAME: &str = "waits without end";
    let ((mut holder, held), (mut raw, state)) = (opened(url, NAME)?, opened(url, NAME)?);
    let all = lock(&mut holder, held, lock_request(0, 0, u64::MAX), false);
    expect(&format!("the holder: {all:?}"), all == Ok(Locked::Granted))?;
    let count = until_refused(&mut raw, state, true)?;
    expect(&format!("{count} waits"), count == WAITS_MAX)?;
    let (mut other, theirs) = opened(url, NAME)?;
    let got = lock(&mut other, theirs, lock_request(0, 0, 0), true);
    expect(&format!("another waits: {got:?}"), matches!(got, Ok(Locked::Waiting(_))))
}

fn callbacks_never_answered(url: &str) -> Result<(), String> {
    const NAME: &str = "callbacks never answered";
    let ((mut holder, held), (mut raw, state)) = (opened(url, NAME)?, opened(url, NAME)?);
    let key = lock_request(0, 0, 0).owner;
    let all = lock(&mut holder, held, lock_request(0, 0, u64::MAX), false);
    expect(&format!("the holder: {all:?}"), all == Ok(Locked::Granted))?;
    until_refused(&mut raw, state, true)?;
    let release = |number| Operation::OwnerRelease { owner: OwnerKey { number, ..key } };
    expect("release", status(holder.chain(&[release(0)])).is_none())?;
    // All waits are granted and given back. Their ends are not confirmed, so that they count.
    for number in 0..3 {
        expect("release", status(raw.chain(&[release(number)])).is_none())?;
    }
    let all = lock(&mut holder, held, lock_request(0, 0, u64::MAX), false);
    expect(&format!("served beside it: {all:?}"), all == Ok(Locked::Granted))?;
    let more = lock(&mut raw, state, lock_request(0, 0, 0), true);
    expect(&format!("more waits: {more:?}"), more == Err(Status::Resource))
}

fn locks_of_others(url: &str) -> Result<(), String> {
    const NAME: &str = "locks of others";
    let ((mut holder, held), (mut waiter, waits)) = (opened(url, NAME)?, opened(url, NAME)?);
    let all = lock_request(7, 0, u64::MAX);
    expect("the holder", lock(&mut holder, held, all, false) == Ok(Locked::Granted))?;
    let Ok(Locked::Waiting(ticket)) = lock(&mut waiter, waits, all, true) else {
        return Err("the second waits".into());
    };
    let (mut thief, state) = opened(url, NAME)?;
    for number in 1..ticket.0 + 9 {
        let got = status(thief.chain(&[Operation::LockCancel { ticket: LockTicket(number) }]));
        expect(&format!("ticket {number} of another: {got:?}"), got == Some(Status::NoEnt))?;
    }
    let owner = all.owner;
    let unlock = Operation::Unlock { state, owner, range: LockRange::ALL };
    for operation in [unlock, Operation::OwnerRelease { owner }] {
        let got = status(thief.chain(&[operation]));
        expect(&format!("it had nothing: {got:?}"), got.is_none())?;
    }
    let got = lock(&mut thief, state, all, false);
    expect(&format!("the owner number of another: {got:?}"), got == Err(Status::Again))?;
    let reclaim = Operation::Lock { state, lock: all, wait: false, reclaim: true };
    let got = status(thief.chain(&[reclaim]));
    expect(&format!("a reclaim of what it never had: {got:?}"), got == Some(Status::NoGrace))?;
    let cancel = Operation::LockCancel { ticket };
    expect("the second still waits", status(waiter.chain(&[cancel])).is_none())
}

const CASES: &[(&str, Case)] = &[
    ("locks without end", locks_without_end),
    ("waits without end", waits_without_end),
    ("callbacks never answered", callbacks_never_answered),
    ("locks of others", locks_of_others),
    ("sent again with other data", half_sent::resent_with_other_data),
    ("a byte short", half_sent::a_byte_short),
    ("data that never comes", half_sent::data_that_never_comes),
    ("replies not taken", half_sent::replies_not_taken),
    ("garbage", garbage),
    ("set-up lies", set_up_lies),
    ("slot lies", slot_lies),
    ("handle lies", handle_lies),
    ("range lies", range_lies),
    ("a million opens", a_million_opens),
    ("many silent connections", many_connections),
    ("a caller without rights", as_nobody),
    ("many sessions", many_sessions),
    ("their resources are free after the lease", freed),
];

/// The same binary again, as a user without rights.
fn as_nobody(url: &str) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let public = || fs::Permissions::from_mode(0o755);
    fs::set_permissions(work.path(), public()).map_err(|error| error.to_string())?;
    let me = work.path().join("hostile");
    fs::copy(std::env::current_exe().expect("own path"), &me).map_err(|e| e.to_string())?;
    let mut run = Command::new(me);
    run.uid(NOBODY).gid(NOBODY).env("DAFS_HOSTILE_NOBODY", url);
    expect("see above", run.status().is_ok_and(|status| status.success()))
}

fn freed(url: &str) -> Result<(), String> {
    let start = Instant::now();
    let mut held = 0;
    while held < 20 {
        let mut raw = Raw::connect(url);
        let attr = wish();
        match raw.set_up(&hello(PROTOCOL_VERSION, Purpose::Create { attr, client: new_client() })) {
            Some(SetupReply::Ready { .. }) => held += 1,
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
        expect("sessions of dead clients stay", start.elapsed() < Duration::from_secs(LEASE + 1))?;
    }
    Ok(())
}

const LEASE: u64 = 3;

const NOBODY: u32 = 65_534;

fn main() -> ExitCode {
    if let Some(url) = std::env::var_os("DAFS_HOSTILE_NOBODY") {
        let result = without_rights(&url.to_string_lossy());
        eprintln!("{result:?}");
        return if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let work = tempfile::tempdir().expect("tempdir");
    let dir = work.path().join("served");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("data"), vec![1; 100_000]).expect("write");
    fs::write(dir.join("secret"), b"secret").expect("write");
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    std::os::unix::fs::symlink("/etc", dir.join("absolute")).expect("symlink");
    std::os::unix::fs::symlink("../../../../../etc", dir.join("escape")).expect("symlink");
    let config = work.path().join("dafs.toml");
    let limits = format!(
        "[limits]\nopens_per_session = {OPENS_MAX}\nsessions = 60\nlease_seconds = {LEASE}\n\
         locks_per_session = {LOCKS_MAX}\nlock_waits_per_session = {WAITS_MAX}\n"
    );
    fs::write(&config, limits).expect("write");
    let mut server = Served::start(&dir, &["--config", &config.display().to_string()]);
    let before = server.resident_bytes();
    let mut failed = Vec::new();
    for (name, case) in CASES {
        match case(&server.url) {
            Ok(()) => eprintln!("hostile: {name}: ok"),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    let cases = CASES.len();
    // After all of it the server serves, ends well, and has not grown without bound.
    let alive = session(&server.url).stat(b"data").is_ok_and(|attr| attr.size == 100_000);
    let grown = server.resident_bytes().saturating_sub(before) >> 20;
    if !alive || grown > 256 {
        failed.push(format!("afterwards: alive {alive}, grown by {grown} MiB"));
    }
    server.stop();
    failed.iter().for_each(|failure| eprintln!("hostile: FAILED {failure}"));
    println!(
        "{} of {cases} kinds of lies refused, server grew by {grown} MiB",
        cases - failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
