//! Lies between requests and their data: sent again with other data, a byte short, never; replies
//! that nobody takes. Over raw frames.

use std::time::{Duration, Instant};

use dafs_client::OpenOptions;
use dafs_protocol::{
    CacheHint, ClientId, CreateMode, CredHandle, Extent, ExtentList, FileHandle, Operation,
    Outcome, PROTOCOL_VERSION, Purpose, RequestHead, SessionId, SetupReply, SetupRequest,
    SizeClass, SlotId, Stability, StateId, Status, decode_reply, decode_setup_reply,
    encode_request, encode_setup_request,
};
use dafs_tests::client::session;
use dafs_tests::wire::{Asked, Came, Mode, Wire};

use crate::{address, expect, new_client, open_flags, wish};

const DATA: u32 = 1 << 20;

/// A session over frames.
struct Frames {
    wire: Wire,
    tag: u32,
    session: (SessionId, [u8; 16]),
    sequence: u32,
}

impl Frames {
    fn connect(url: &str, purpose: Purpose, class: SizeClass) -> Result<Frames, String> {
        let wire = Wire::connect(&address(url).target, true).map_err(|error| error.to_string())?;
        let session = (SessionId([0; 16]), [0; 16]);
        let mut frames = Frames { wire, tag: 0, session, sequence: 0 };
        while frames.next()? != Came::Accepted {}
        let (version, nonce, keyed) = (PROTOCOL_VERSION, [1; 32], false);
        let hello = SetupRequest::Hello { version, nonce, class, keyed, purpose };
        let mut header = Vec::new();
        encode_setup_request(&hello, &mut header);
        frames.send(&header, Mode::None, 0);
        match decode_setup_reply(&frames.reply()?) {
            Ok(SetupReply::Ready { session, secret, .. }) => frames.session = (session, secret),
            other => return Err(format!("no session: {other:?}")),
        }
        Ok(frames)
    }

    fn create(url: &str) -> Result<Frames, String> {
        let client: ClientId = new_client();
        Frames::connect(url, Purpose::Create { attr: wish(), client }, SizeClass::Small)
    }

    /// A second connection of the session.
    fn second(&self, url: &str) -> Result<Frames, String> {
        let (session, secret) = self.session;
        Frames::connect(url, Purpose::Bind { session, secret }, SizeClass::Bulk)
    }

    fn next(&mut self) -> Result<Came, String> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            self.wire.push();
            self.wire.pull(&mut |_| ());
            match self.wire.take() {
                Some(Came::Ended) => return Err("the connection ended".into()),
                Some(came) => return Ok(came),
                None => std::thread::yield_now(),
            }
        }
        Err("no answer".into())
    }

    fn send(&mut self, header: &[u8], mode: Mode, data_len: u32) {
        self.tag += 0x1_0001;
        let (tag, room) = (self.tag - 0x1_0000, DATA);
        self.wire.ask(&Asked { tag, mode, data_len, room, header, inline: &[] });
        self.wire.push();
    }

    fn reply(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Came::Reply(_, header) = self.next()? {
                return Ok(header);
            }
        }
    }

    fn granted(&mut self) -> Result<u32, String> {
        loop {
            if let Came::Grant(tag, ..) = self.next()? {
                return Ok(tag);
            }
        }
    }

    /// A session's file of this name, which is made, and its state.
    fn open(&mut self, path: &[u8]) -> Result<StateId, String> {
        let flags = dafs_protocol::OpenFlags { create: CreateMode::Unchecked, ..open_flags(true) };
        let (dir, cache) = (FileHandle::PREVIOUS, CacheHint::default());
        let open = Operation::Open { dir, path, flags, mode: 0o600, cache };
        self.sequence += 1;
        let header = request(0, self.sequence, &[Operation::GetRoot { export: b"" }, open])?;
        self.send(&header, Mode::None, 0);
        let reply = decode_reply(&self.reply()?).map_err(|error| error.to_string())?;
        match reply.results.map(|mut results| results.pop()) {
            Ok(Some(Ok(Outcome::Opened { state, .. }))) => Ok(state),
            other => Err(format!("open: {other:?}")),
        }
    }
}

fn request(slot: u16, sequence: u32, operations: &[Operation<'_>]) -> Result<Vec<u8>, String> {
    let head = RequestHead { slot: SlotId(slot), sequence, cred: CredHandle(0) };
    let mut header = Vec::new();
    encode_request(&head, operations, &mut header).map_err(|error| error.to_string())?;
    Ok(header)
}

fn write(state: StateId, offset: u64, bytes: u32) -> Operation<'static> {
    let extents = ExtentList::one(offset, bytes);
    Operation::Write { state, extents, stability: Stability::Unstable, within: false }
}

/// Others write and read meanwhile.
fn others_are_served(url: &str) -> Result<(), String> {
    let session = session(url);
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let file = session.open(b"beside", options).map_err(|error| error.to_string())?;
    let start = Instant::now();
    file.write_at(b"12345", 0).map_err(|error| error.to_string())?;
    let mut into = [0; 5];
    file.read_at(&mut into, 0).map_err(|error| error.to_string())?;
    let took = start.elapsed();
    let served = &into == b"12345" && took < dafs_tests::patient(Duration::from_secs(2));
    expect(&format!("others are served: {took:?}"), served)
}

/// The data of a write is a hundred bytes, or nothing, when it comes again over another connection.
pub(crate) fn resent_with_other_data(url: &str) -> Result<(), String> {
    let mut first = Frames::create(url)?;
    let state = first.open(b"resent")?;
    let header = request(1, 1, &[write(state, 0, DATA)])?;
    let mut second = first.second(url)?;
    first.send(&header, Mode::Grant, DATA);
    first.granted()?;
    for (mode, len) in [(Mode::None, 0), (Mode::Grant, 100)] {
        second.send(&header, mode, len);
        let reply = decode_reply(&second.reply()?).map_err(|error| error.to_string())?;
        let refused = reply.results == Err(Status::SeqFalseRetry);
        expect(&format!("{len} bytes: {:?}", reply.results), refused)?;
    }
    drop(first);
    let extents = ExtentList::one(0, DATA);
    let read = Operation::Read { state, extents, report_holes: false };
    second.send(&request(2, 1, &[read])?, Mode::None, 0);
    let reply = decode_reply(&second.reply()?).map_err(|error| error.to_string())?;
    let empty = matches!(reply.results.as_deref(), Ok([Ok(Outcome::Read { bytes: 0, .. })]));
    expect(&format!("nothing was written: {:?}", reply.results), empty)
}

/// All slots wait for the last byte of what they write, in chains that need memory of their own.
pub(crate) fn a_byte_short(url: &str) -> Result<(), String> {
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut frames = Frames::create(url)?;
        let state = frames.open(b"short")?;
        let data = vec![7; DATA as usize];
        for slot in 1..16 {
            let chain = [write(state, 0, 1), write(state, 4096, DATA - 1)];
            frames.send(&request(slot, 1, &chain)?, Mode::Grant, DATA);
        }
        let tag = frames.granted()?;
        frames.wire.push_data(tag, DATA as usize, 0, &data);
        frames.wire.tear(1);
        frames.wire.push();
        kept.push(frames);
    }
    others_are_served(url)
}

/// No byte of what they write ever comes.
pub(crate) fn data_that_never_comes(url: &str) -> Result<(), String> {
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut frames = Frames::create(url)?;
        let state = frames.open(b"never")?;
        for slot in 1..16 {
            let at = u64::from(slot) << 20;
            frames.send(&request(slot, 1, &[write(state, at, DATA)])?, Mode::Grant, DATA);
        }
        frames.granted()?;
        kept.push(frames);
    }
    others_are_served(url)
}

/// Reads of a thousand single bytes of a page, behind large ones, and nobody takes the replies.
pub(crate) fn replies_not_taken(url: &str) -> Result<(), String> {
    let mut kept = Vec::new();
    for _ in 0..16 {
        let mut frames = Frames::create(url)?;
        let state = frames.open(b"data")?;
        let large = Extent::one(0, 100_000);
        let tiny = Extent { offset: 0, len: 1, count: 1000, stride: 1 };
        for slot in 1..16 {
            let extent = if slot < 8 { large } else { tiny };
            let extents = ExtentList::new(&[extent]).ok_or("extents")?;
            let read = Operation::Read { state, extents, report_holes: false };
            frames.send(&request(slot, 1, &[read])?, Mode::None, 0);
        }
        kept.push(frames);
    }
    others_are_served(url)
}
