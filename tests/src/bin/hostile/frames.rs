//! A session over raw frames, with nothing of the client library nor of the message layer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_protocol::{
    CacheHint, ClientId, CreateMode, CredHandle, FileHandle, OpResult, OpenFlags, Operation,
    Outcome, Purpose, RequestHead, SessionAttr, SessionId, SetupReply, SetupRequest, SizeClass,
    SlotId, StateId, Status, WaitMode, decode_reply, decode_setup_reply, encode_request,
    encode_setup_request,
};
use dafs_tests::marks::Marks;
use dafs_tests::wire::{Asked, Came, Mode, Wire};

/// Data of one request at most, and room for that of a reply.
pub(crate) const DATA: u32 = 1 << 20;
/// Requests that a session may have under way.
pub(crate) const SLOTS: u16 = 64;
/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) type Results = Result<Vec<OpResult>, Status>;

static MARKS: OnceLock<Marks> = OnceLock::new();
static SEEN: OnceLock<&str> = OnceLock::new();

/// From now on nothing that comes may have one of these.
pub(crate) fn look_for(marks: Marks) {
    let _ = MARKS.set(marks);
}

/// What came and may not have.
pub(crate) fn seen() -> Option<&'static str> {
    SEEN.get().copied()
}

static OPEN: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

/// A connection, for as long as this is kept.
pub(crate) struct Counted;

impl Counted {
    pub(crate) fn new() -> Counted {
        let open = OPEN.fetch_add(1, Ordering::SeqCst) + 1;
        MOST.fetch_max(open, Ordering::SeqCst);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Connections of this process at a time, at most.
pub(crate) fn connections() -> u64 {
    MOST.load(Ordering::SeqCst)
}

/// `HOST:PORT`.
pub(crate) fn target(url: &str) -> &str {
    url.trim_start_matches("dafs://").trim_end_matches('/')
}

/// A client that no other session of this process has.
pub(crate) fn new_client() -> ClientId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64;
    ClientId((number | u128::from(std::process::id())).to_le_bytes())
}

fn wish() -> SessionAttr {
    SessionAttr {
        slots: SLOTS,
        data_bytes_max: DATA,
        inline_bytes: 512,
        wait: WaitMode::Sleeping,
        lease_ms: 0,
        tagged: true,
        rdma_read: true,
        read_ahead: true,
    }
}

pub(crate) fn create() -> Purpose {
    Purpose::Create { attr: wish(), client: new_client() }
}

pub(crate) fn hello(class: SizeClass, purpose: Purpose) -> SetupRequest {
    SetupRequest::hello([1; 32], class, false, purpose)
}

pub(crate) fn open_flags(write: bool) -> OpenFlags {
    OpenFlags {
        read: true,
        write,
        create: if write { CreateMode::Unchecked } else { CreateMode::No },
        truncate: false,
        append: false,
        no_follow: false,
        unlinked: false,
        again: false,
    }
}

/// Opens, for writing too: then it is made.
pub(crate) fn open(dir: FileHandle, path: &[u8], write: bool) -> Operation<'_> {
    let (flags, cache) = (open_flags(write), CacheHint::default());
    Operation::Open { dir, path, flags, mode: 0o600, cache }
}

pub(crate) const ROOT: Operation<'static> = Operation::GetRoot { export: b"" };

/// The status of the first operation that failed, or of the request.
pub(crate) fn status(results: Result<Results, String>) -> Option<Status> {
    match results {
        Ok(Ok(results)) => results.into_iter().find_map(Result::err),
        Ok(Err(status)) => Some(status),
        Err(_) => None,
    }
}

pub(crate) fn expect(what: &str, ok: bool) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what.to_string()) }
}

pub(crate) fn request(
    slot: u16,
    sequence: u32,
    cred: u32,
    operations: &[Operation<'_>],
) -> Result<Vec<u8>, String> {
    let head = RequestHead { slot: SlotId(slot), sequence, cred: CredHandle(cred) };
    let mut header = Vec::new();
    encode_request(&head, operations, &mut header).map_err(|error| error.to_string())?;
    Ok(header)
}

/// The tag of a slot's next request: its place is one that the server has room for.
pub(crate) fn tag(slot: u16, generation: u16) -> u32 {
    u32::from(slot.min(SLOTS) + 1) << 16 | u32::from(generation)
}

pub(crate) struct Frames {
    pub wire: Wire,
    pub session: (SessionId, [u8; 16]),
    sequence: u32,
    generation: u16,
    _counted: Counted,
}

impl Frames {
    /// A connection of no session yet.
    pub(crate) fn connect(url: &str) -> Result<Frames, String> {
        let wire = Wire::connect(target(url), true).map_err(|error| error.to_string())?;
        let (session, sequence, generation) = ((SessionId([0; 16]), [0; 16]), 0, 0);
        let mut frames = Frames { wire, session, sequence, generation, _counted: Counted::new() };
        while frames.next()? != Came::Accepted {}
        Ok(frames)
    }

    /// Answers the server's word; an error: the connection ended.
    pub(crate) fn set_up(&mut self, request: &SetupRequest) -> Result<SetupReply, String> {
        let mut header = Vec::new();
        encode_setup_request(request, &mut header);
        self.generation = self.generation.wrapping_add(1);
        self.send(u32::from(self.generation), &header, Mode::None, 0);
        decode_setup_reply(&self.reply()?).map_err(|error| error.to_string())
    }

    fn joined(mut self, class: SizeClass, purpose: Purpose) -> Result<Frames, Status> {
        let ended = |_| Status::BadSession;
        match self.set_up(&hello(class, purpose)).map_err(ended)? {
            SetupReply::Ready { session, secret, .. } => self.session = (session, secret),
            SetupReply::Refused { status, .. } => return Err(status),
            SetupReply::Challenge { .. } => return Err(Status::AuthFailed),
        }
        Ok(self)
    }

    /// A new session, or why the server gives none.
    pub(crate) fn try_session(url: &str) -> Result<Result<Frames, Status>, String> {
        Ok(Frames::connect(url)?.joined(SizeClass::Small, create()))
    }

    pub(crate) fn session(url: &str) -> Result<Frames, String> {
        Frames::try_session(url)?.map_err(|status| format!("no session: {status:?}"))
    }

    /// A second connection of the session, which goes on where this one is.
    pub(crate) fn second(&self, url: &str) -> Result<Frames, String> {
        let (session, secret) = self.session;
        let bind = Purpose::Bind { session, secret };
        let second = Frames::connect(url)?.joined(SizeClass::Bulk, bind);
        let second = second.map_err(|status| format!("no second connection: {status:?}"))?;
        Ok(Frames { sequence: self.sequence, ..second })
    }

    /// A session, and the state of a file that it has open and may write.
    pub(crate) fn with_file(url: &str, name: &str) -> Result<(Frames, StateId), String> {
        let mut frames = Frames::session(url)?;
        let state = frames.open(name, true)?;
        Ok((frames, state))
    }

    pub(crate) fn next(&mut self) -> Result<Came, String> {
        let (start, limit) = (Instant::now(), dafs_tests::patient(PATIENCE));
        while start.elapsed() < limit {
            match self.poll() {
                Some(Came::Ended) => return Err("the connection ended".into()),
                Some(came) => return Ok(came),
                None => std::thread::yield_now(),
            }
        }
        Err("no answer".into())
    }

    fn poll(&mut self) -> Option<Came> {
        self.wire.push();
        self.wire.pull(&mut |bytes| {
            if let Some(what) = MARKS.get().and_then(|marks| marks.found_in(bytes)) {
                let _ = SEEN.set(what);
            }
        });
        self.wire.take()
    }

    /// The tags of requests whose data the server has wanted since somebody looked.
    pub(crate) fn wanted(&mut self) -> Result<Vec<u32>, String> {
        let mut tags = Vec::new();
        while let Some(came) = self.poll() {
            match came {
                Came::Grant(tag, ..) => tags.push(tag),
                Came::Ended => return Err("the connection ended".into()),
                _ => {}
            }
        }
        Ok(tags)
    }

    /// The server has not ended the connection.
    pub(crate) fn is_up(&mut self) -> bool {
        loop {
            match self.poll() {
                Some(Came::Ended) => return false,
                Some(_) => {}
                None => return true,
            }
        }
    }

    fn send(&mut self, tag: u32, header: &[u8], mode: Mode, data_len: u32) {
        // Data that is asked for later goes in pieces where there are no tags.
        let mode = match mode {
            Mode::Grant if !self.wire.tagged => Mode::Pieces,
            mode => mode,
        };
        self.wire.ask(&Asked { tag, mode, data_len, room: DATA, header, inline: &[] });
        self.wire.push();
    }

    /// Sends all that waits, while the server takes it.
    pub(crate) fn flush(&mut self) {
        let (start, limit) = (Instant::now(), dafs_tests::patient(PATIENCE));
        while self.wire.unsent() > 0 && start.elapsed() < limit {
            self.wire.push();
            std::thread::yield_now();
        }
    }

    /// Sends a request of this slot, which announces so much data.
    pub(crate) fn ask(&mut self, slot: u16, header: &[u8], mode: Mode, data_len: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.send(tag(slot, self.generation), header, mode, data_len);
    }

    fn reply(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Came::Reply(_, header) = self.next()? {
                return Ok(header);
            }
        }
    }

    /// The next answer, to whatever was asked.
    pub(crate) fn answer(&mut self) -> Result<Results, String> {
        decode_reply(&self.reply()?).map(|reply| reply.results).map_err(|error| error.to_string())
    }

    /// The tag of a request whose data the server wants.
    pub(crate) fn granted(&mut self) -> Result<u32, String> {
        loop {
            match self.next()? {
                Came::Grant(tag, ..) => return Ok(tag),
                Came::Reply(_, header) => {
                    let results = decode_reply(&header).map(|reply| reply.results);
                    return Err(format!("answered before its data came: {results:?}"));
                }
                _ => {}
            }
        }
    }

    /// The answer to a chain without data, in its turn on slot 0; an error: the connection ended.
    pub(crate) fn chain(&mut self, operations: &[Operation<'_>]) -> Result<Results, String> {
        self.sequence += 1;
        self.chain_at((0, self.sequence, 0), operations)
    }

    /// As [`chain`](Self::chain), of a slot, with a sequence and a credential.
    pub(crate) fn chain_at(
        &mut self,
        (slot, sequence, cred): (u16, u32, u32),
        operations: &[Operation<'_>],
    ) -> Result<Results, String> {
        let header = request(slot, sequence, cred, operations)?;
        self.ask(slot, &header, Mode::None, 0);
        self.answer()
    }

    pub(crate) fn root(&mut self) -> Result<FileHandle, String> {
        match self.chain(&[ROOT])?.as_deref() {
            Ok([Ok(Outcome::Found { handle, .. })]) => Ok(*handle),
            other => Err(format!("no root: {other:?}")),
        }
    }

    /// The state of a file; to be written, it is made.
    pub(crate) fn open(&mut self, name: &str, write: bool) -> Result<StateId, String> {
        let chain = [ROOT, open(FileHandle::PREVIOUS, name.as_bytes(), write)];
        match self.chain(&chain)?.as_deref() {
            Ok([_, Ok(Outcome::Opened { state, .. })]) => Ok(*state),
            other => Err(format!("open {name}: {other:?}")),
        }
    }
}
