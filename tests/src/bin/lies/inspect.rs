//! Reads all that a user without rights may, by the rules, and looks for what it may not see.

use std::time::{Duration, Instant};

use dafs_protocol::{
    CacheHint, ClientId, CredHandle, ExtentList, FileHandle, Operation, Outcome, Purpose,
    RequestHead, SetupReply, SetupRequest, SizeClass, SlotId, StateId, decode_reply,
    decode_setup_reply, encode_request, encode_setup_request,
};
use dafs_tests::wire::{Asked, Came, Mode, Wire};

use crate::deeds::{DATA_BYTES, FILE_BYTES, FILES, OTHERS, XATTRS, flags};
use crate::liar::wish;
use dafs_tests::marks::Marks;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Inspector<'a> {
    wire: Wire,
    marks: &'a Marks,
    seen: Option<&'static str>,
    sequence: u32,
}

type Answer = Result<Vec<Outcome>, String>;

/// What is there and may not be; an error when the server does not serve. What this user's liars
/// left behind may hold its share for a lease: then it is tried again.
pub(crate) fn all(target: &str, marks: &Marks) -> Result<Option<&'static str>, String> {
    let start = Instant::now();
    loop {
        match once(target, marks) {
            Err(_) if start.elapsed() < PATIENCE => {}
            end => return end,
        }
    }
}

fn once(target: &str, marks: &Marks) -> Result<Option<&'static str>, String> {
    let wire = Wire::connect(target, true).map_err(|error| error.to_string())?;
    let mut inspector = Inspector { wire, marks, seen: None, sequence: 0 };
    inspector.set_up()?;
    let home = inspector.home()?;
    for name in FILES {
        inspector.file(home, name)?;
    }
    for name in OTHERS {
        let look = Operation::Lookup { dir: home, path: name, no_follow: true };
        inspector.call(&[look, Operation::ReadLink { handle: FileHandle::PREVIOUS }])?;
    }
    let list = Operation::ReadDir {
        dir: home,
        cookie: 0,
        bytes_max: 65_536,
        attributes: true,
        handles: true,
    };
    inspector.call(&[list])?;
    inspector.call(&[Operation::SessionDestroy])?;
    Ok(inspector.seen)
}

impl Inspector<'_> {
    fn next(&mut self) -> Result<Came, String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.wire.push();
            let (marks, seen) = (self.marks, &mut self.seen);
            let came = self.wire.pull(&mut |b| *seen = seen.or_else(|| marks.found_in(b)));
            match self.wire.take() {
                Some(Came::Ended) => return Err("the server ended an honest connection".into()),
                Some(next) => return Ok(next),
                None if !came => std::thread::sleep(Duration::from_micros(100)),
                None => {}
            }
        }
        Err(format!("no answer within {PATIENCE:?}"))
    }

    fn exchange(&mut self, header: &[u8]) -> Result<Vec<u8>, String> {
        self.sequence += 1;
        let (tag, room) = (self.sequence & 0xffff, DATA_BYTES as u32);
        let asked = Asked { tag, mode: Mode::None, data_len: 0, room, header, inline: &[] };
        self.wire.ask(&asked);
        loop {
            if let Came::Reply(answered, header) = self.next()?
                && answered == tag
            {
                return Ok(header);
            }
        }
    }

    fn set_up(&mut self) -> Result<(), String> {
        while self.next()? != Came::Accepted {}
        let mut client = [7; 16];
        client[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let purpose = Purpose::Create { attr: wish(), client: ClientId(client) };
        let hello = SetupRequest::hello([2; 32], SizeClass::Any, false, purpose);
        let mut header = Vec::new();
        encode_setup_request(&hello, &mut header);
        match decode_setup_reply(&self.exchange(&header)?) {
            Ok(SetupReply::Ready { .. }) => Ok(()),
            other => Err(format!("no session for an honest client: {other:?}")),
        }
    }

    /// Outcomes up to the first that failed.
    fn call(&mut self, operations: &[Operation<'_>]) -> Answer {
        let head = RequestHead { slot: SlotId(0), sequence: self.sequence, cred: CredHandle(0) };
        let mut header = Vec::new();
        encode_request(&head, operations, &mut header).map_err(|error| error.to_string())?;
        let reply = decode_reply(&self.exchange(&header)?).map_err(|error| error.to_string())?;
        let results = reply.results.map_err(|status| format!("an honest request: {status:?}"))?;
        Ok(results.into_iter().map_while(Result::ok).collect())
    }

    fn home(&mut self) -> Result<FileHandle, String> {
        let root = Operation::GetRoot { export: b"" };
        let dir = FileHandle::PREVIOUS;
        let found =
            self.call(&[root, Operation::Lookup { dir, path: b"open", no_follow: false }])?;
        match found.last() {
            Some(Outcome::Found { handle, .. }) => Ok(*handle),
            other => Err(format!("no home: {other:?}")),
        }
    }

    fn file(&mut self, dir: FileHandle, path: &[u8]) -> Result<(), String> {
        let (cache, flags) = (CacheHint::default(), flags(false));
        let opened = self.call(&[Operation::Open { dir, path, flags, mode: 0, cache }])?;
        // A name that is not there, or no file.
        let Some(Outcome::Opened { handle, state, .. }) = opened.first() else { return Ok(()) };
        let (handle, state) = (*handle, *state);
        self.read(state)?;
        for name in XATTRS {
            self.call(&[Operation::GetXattr { handle, name, size_max: 65_536 }])?;
        }
        self.call(&[Operation::ListXattr { handle, size_max: 65_536 }])?;
        self.call(&[Operation::Close { state }]).map(drop)
    }

    fn read(&mut self, state: StateId) -> Result<(), String> {
        for offset in (0..2 * FILE_BYTES as u64).step_by(DATA_BYTES) {
            let extents = ExtentList::one(offset, DATA_BYTES as u32);
            let read = Operation::Read { state, extents };
            match self.call(&[read])?.first() {
                Some(Outcome::Read { end_of_file: false, .. }) => {}
                _ => break,
            }
        }
        Ok(())
    }
}
