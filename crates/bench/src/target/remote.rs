//! A directory of a DAFS server, by one client thread with a completion group.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dafs_client::{Call, Done, Error, File, Group, OpenOptions, Output, Session};
use dafs_fabric::Buffer;
use dafs_protocol::Stability;

use super::costs::Costs;
use super::memory::{Memory, take};
use super::read_path::{self, ReadPath};
use super::{
    FILL_BYTES, Files, Op, SMALL_FILES, Target, Work, deep_path, own_directory, small_name,
};
use crate::offsets::Offsets;
use crate::slice::Slice;
use crate::wait::Wait;

/// Requests under way while preparing and cleaning up.
const WINDOW: usize = 32;

/// Makes a session that waits as told; `None`: as it likes.
pub type Connect = Box<dyn Fn(Option<Wait>) -> io::Result<Session>>;

/// A directory of a server. Each stretch of measuring has a session of its own, so that a server
/// that polls for it does not do so while something else is measured.
pub struct Remote {
    connect: Connect,
    directory: Vec<u8>,
    transport: &'static str,
    memory: Memory,
    read_path: ReadPath,
    file_bytes: u64,
    /// The next number of a file to make.
    next: u64,
    made: bool,
}

impl Remote {
    /// Measures in the directory `path` of the server that `connect` connects to; what is read goes to such
    /// `memory`, in such a way.
    ///
    /// # Errors
    /// There is no session.
    pub fn new(
        connect: Connect,
        path: &[u8],
        (memory, read_path): (Memory, ReadPath),
    ) -> io::Result<Remote> {
        let transport = connect(None)?.info().transport;
        let directory = below(path, &own_directory());
        let (file_bytes, next, made) = (0, SMALL_FILES, false);
        Ok(Remote { connect, directory, transport, memory, read_path, file_bytes, next, made })
    }

    fn path(&self, name: &str) -> Vec<u8> {
        below(&self.directory, name)
    }

    fn file(&self, session: &Session, write: bool) -> io::Result<File> {
        let options = OpenOptions { read: true, write, ..OpenOptions::default() };
        Ok(session.open(&self.path("file"), options)?)
    }

    fn fill(&mut self, session: &Session, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
        let file = session.open(&self.path("file"), OpenOptions::write())?;
        let piece = FILL_BYTES.min(session.info().attr.data_bytes_max as usize);
        let pieces = bytes.div_ceil(piece as u64);
        let mut window = Window::new(session, 8, piece)?;
        let mut next = 0;
        window.run(&mut |buffer| {
            if next == pieces || stop.load(Ordering::Relaxed) {
                return None;
            }
            let offset = next * piece as u64;
            next += 1;
            let len = (bytes - offset).min(piece as u64) as u32;
            let (file, stability) = (file.clone(), Stability::Unstable);
            Some(Call::Write { file, offset, buffer: buffer?, len, stability })
        })?;
        file.close()?;
        self.file_bytes = bytes;
        // Into the cache, if it fits.
        let file = self.file(session, false)?;
        let mut next = 0;
        window.run(&mut |buffer| {
            if next == pieces || stop.load(Ordering::Relaxed) {
                return None;
            }
            next += 1;
            let offset = (next - 1) * piece as u64;
            Some(Call::Read { file: file.clone(), offset, buffer: buffer?, len: piece as u32 })
        })?;
        Ok(())
    }

    /// Makes the small files with these numbers.
    fn make(
        &self,
        session: &Session,
        size: usize,
        mut numbers: std::ops::Range<u64>,
    ) -> io::Result<()> {
        let mut window = Window::new(session, WINDOW, size)?;
        window.run(&mut |buffer| {
            let path = self.path(&small_name(numbers.next()?));
            Some(put(path, buffer, size, false))
        })
    }

    /// Removes the small files with these numbers, as far as they are there.
    fn remove(&self, session: &Session, mut numbers: std::ops::Range<u64>) -> io::Result<()> {
        let mut window = Window::new(session, WINDOW, 1)?;
        window.may_fail = true;
        window.run(&mut |_| {
            let path = self.path(&small_name(numbers.next()?));
            Some(Call::Remove { path, directory: false })
        })
    }

    fn check(&self, session: &Session, work: &Work<'_>) -> io::Result<()> {
        let most = session.info().attr.data_bytes_max;
        if work.size as u64 <= u64::from(most) {
            return Ok(());
        }
        let text = format!("size {}: this session takes {most} bytes per request", work.size);
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

pub(crate) fn below(directory: &[u8], name: &str) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

fn put(path: Vec<u8>, buffer: Option<Buffer>, size: usize, commit: bool) -> Call {
    Call::PutFile {
        path,
        buffer,
        len: u32::try_from(size).unwrap_or(0),
        mode: 0o644,
        exclusive: true,
        times: None,
        owner: None,
        rename_to: None,
        commit,
    }
}

impl Target for Remote {
    fn transport(&self) -> &str {
        self.transport
    }

    fn has_waits(&self) -> bool {
        true
    }

    fn set_up(&mut self, file_bytes: Option<u64>, stop: &AtomicBool) -> io::Result<()> {
        let session = (self.connect)(None)?;
        session.mkdir(&self.directory, 0o700)?;
        self.made = true;
        let mut path = self.directory.clone();
        let components = deep_path();
        for (level, name) in components.iter().enumerate() {
            path = below(&path, name);
            if level + 1 < components.len() {
                session.mkdir(&path, 0o700)?;
            } else {
                session.open(&path, OpenOptions::write())?.close()?;
            }
        }
        match file_bytes {
            Some(bytes) => self.fill(&session, bytes, stop),
            None => Ok(()),
        }
    }

    fn prepare(&mut self, work: &Work<'_>) -> io::Result<()> {
        if work.op != Op::OpenRead {
            return Ok(());
        }
        let session = (self.connect)(None)?;
        self.check(&session, work)?;
        self.remove(&session, 0..SMALL_FILES)?;
        self.make(&session, work.size, 0..SMALL_FILES)
    }

    fn measure(&mut self, work: &Work<'_>) -> io::Result<Slice> {
        let session = (self.connect)(work.wait)?;
        self.check(&session, work)?;
        let first = self.next;
        if work.op == Op::Remove {
            self.make(&session, work.size, first..first + work.files())?;
        }
        let file = match work.op.uses_file() {
            true => Some(self.file(&session, true)?),
            false => None,
        };
        let mut window = Window::of(self.memory, &session, work.depth, work.size)?;
        window.wanted = self.read_path.copies_to(work.size);
        let mut calls = Calls::new(self, work, file);
        let costs = Costs::begin(&session)?;
        let mut slice = match (&calls.file, self.read_path) {
            // Several at a time are reads by name, which are posted as requests are.
            (Some(file), ReadPath::Optimistic)
                if work.depth == 1 && matches!(work.op, Op::Read | Op::RandRead) =>
            {
                let offsets = Offsets::new(self.file_bytes, work.size as u64, work.op.is_random());
                read_path::measure(work, file, offsets, window.a_buffer()?)?
            }
            _ => window.measure(work, &mut calls)?,
        };
        costs.end(&session, &mut slice)?;
        if let Some(copied) = &mut slice.client_copied_bytes {
            *copied += window.copied;
        }
        let (end, file) = (calls.next, calls.file.take());
        drop(calls);
        // What was written leaves the cache now, not beside what is measured next.
        if let Some(file) = file {
            file.close()?;
        }
        if matches!(work.op, Op::Create | Op::CreateFsync) {
            self.remove(&session, first..end)?;
        } else if work.op == Op::Remove {
            self.remove(&session, end..first + work.files())?;
        }
        self.next = end.max(first);
        Ok(slice)
    }

    fn begin(&mut self, wait: Option<Wait>) -> io::Result<Box<dyn Files + '_>> {
        let session = (self.connect)(wait)?;
        let costs = Some(Costs::begin(&session)?);
        Ok(Box::new(RemoteFiles {
            group: session.group(),
            session,
            remote: self,
            buffer: None,
            costs,
        }))
    }

    fn clean_up(&mut self) -> io::Result<()> {
        if !self.made {
            return Ok(());
        }
        let session = (self.connect)(None)?;
        remove_tree(&session, &self.directory)?;
        self.made = false;
        Ok(())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.clean_up();
    }
}

/// Removes a directory with all that is in it.
///
/// # Errors
/// The server's.
pub(crate) fn remove_tree(session: &Session, path: &[u8]) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in session.read_dir(path)? {
        let entry = entry?;
        let mut child = path.to_vec();
        child.push(b'/');
        child.extend_from_slice(&entry.name);
        let kind = entry.attr.map(|attr| attr.kind).or(entry.kind);
        if kind == Some(dafs_protocol::FileKind::Directory) {
            remove_tree(session, &child)?;
        } else {
            files.push(child);
        }
    }
    let mut window = Window::new(session, WINDOW, 1)?;
    window.run(&mut |_| Some(Call::Remove { path: files.pop()?, directory: false }))?;
    Ok(session.remove_dir(path)?)
}

/// The calls of a measurement, one after the other.
struct Calls<'a> {
    remote: &'a Remote,
    op: Op,
    size: usize,
    file: Option<File>,
    offsets: Offsets,
    small: Offsets,
    deep: Vec<u8>,
    next: u64,
    end: u64,
}

impl<'a> Calls<'a> {
    fn new(remote: &'a Remote, work: &Work<'_>, file: Option<File>) -> Calls<'a> {
        Calls {
            op: work.op,
            size: work.size,
            file,
            offsets: Offsets::new(remote.file_bytes, work.size as u64, work.op.is_random()),
            small: Offsets::new(SMALL_FILES, 1, true),
            deep: remote.path(&deep_path().join("/")),
            next: remote.next,
            end: remote.next + work.files(),
            remote,
        }
    }

    /// The next call; `None` when there is nothing left to do it with.
    fn next(&mut self, buffer: Option<Buffer>) -> Option<Call> {
        let len = u32::try_from(self.size).ok()?;
        let number = self.next;
        if matches!(self.op, Op::Create | Op::CreateFsync | Op::Remove) {
            if number == self.end {
                return None;
            }
            self.next += 1;
        }
        let small = |number| self.remote.path(&small_name(number));
        Some(match self.op {
            Op::Read | Op::RandRead => {
                let (file, offset, buffer) = (self.file.clone()?, self.offsets.next(), buffer?);
                match self.remote.memory {
                    Memory::Lent => Call::Lend { file, offset, buffer, len },
                    _ => Call::Read { file, offset, buffer, len },
                }
            }
            Op::Write | Op::RandWrite | Op::WriteFsync => Call::Write {
                file: self.file.clone()?,
                offset: self.offsets.next(),
                buffer: buffer?,
                len,
                stability: match self.op {
                    Op::WriteFsync => Stability::File,
                    _ => Stability::Unstable,
                },
            },
            Op::Stat => Call::Stat { path: self.deep.clone(), no_follow: false },
            Op::Create | Op::CreateFsync => {
                put(small(number), buffer, self.size, self.op == Op::CreateFsync)
            }
            Op::OpenRead => Call::GetFile { path: small(self.small.next()), buffer: buffer? },
            Op::Remove => Call::Remove { path: small(number), directory: false },
        })
    }
}

/// Requests under way, each with a buffer.
struct Window {
    group: Group,
    /// Idle places: tag and buffer.
    idle: Vec<(u64, Option<Buffer>)>,
    sent: Vec<Instant>,
    done: Vec<Done>,
    may_fail: bool,
    /// Where what was read is wanted, if that is not where it came to, and how much was copied there.
    wanted: Option<Vec<u8>>,
    copied: u64,
}

impl Window {
    fn new(session: &Session, depth: usize, size: usize) -> io::Result<Window> {
        Window::of(Memory::Shared, session, depth, size)
    }

    fn of(memory: Memory, session: &Session, depth: usize, size: usize) -> io::Result<Window> {
        let mut buffers = memory.buffers(session, depth, size)?;
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xa5));
        let idle = buffers.into_iter().enumerate();
        Ok(Window {
            group: session.group(),
            idle: idle.map(|(tag, buffer)| (tag as u64, Some(buffer))).collect(),
            sent: vec![Instant::now(); depth],
            done: Vec::with_capacity(depth),
            may_fail: false,
            wanted: None,
            copied: 0,
        })
    }

    /// One that is idle.
    fn a_buffer(&mut self) -> io::Result<&mut Buffer> {
        let first = self.idle.first_mut().and_then(|(_, buffer)| buffer.as_mut());
        first.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn submit(&mut self, tag: u64, call: Call, now: Instant) -> io::Result<()> {
        self.group.submit(tag, call).map_err(|_| full())?;
        if let Some(sent) = self.sent.get_mut(tag as usize) {
            *sent = now;
        }
        Ok(())
    }

    /// Makes all calls that `next` gives, which is handed an idle buffer for each.
    fn run(&mut self, next: &mut dyn FnMut(Option<Buffer>) -> Option<Call>) -> io::Result<()> {
        let mut failure = None;
        let mut more = true;
        loop {
            while more && failure.is_none() {
                let Some((tag, buffer)) = self.idle.pop() else { break };
                match next(buffer) {
                    Some(call) => self.submit(tag, call, Instant::now())?,
                    None => more = false,
                }
            }
            if self.group.outstanding() == 0 {
                return failure.map_or(Ok(()), Err);
            }
            self.group.wait_into(&mut self.done, 1, None);
            for done in self.done.drain(..) {
                match done.result {
                    Err(error) if !self.may_fail => failure = Some(io::Error::from(error)),
                    _ => {}
                }
                self.idle.push((done.tag, done.buffer));
            }
        }
    }

    fn measure(&mut self, work: &Work<'_>, calls: &mut Calls<'_>) -> io::Result<Slice> {
        let mut slice = Slice::default();
        let mut failure: Option<Error> = None;
        let bytes = work.op.bytes(work.size);
        let started = Instant::now();
        let mut now = started;
        let mut under_way = 0;
        let mut more = true;
        loop {
            more &= work.goes_on(started, now) && failure.is_none();
            while more {
                let Some((tag, buffer)) = self.idle.pop() else { break };
                match calls.next(buffer) {
                    Some(call) => {
                        self.submit(tag, call, now)?;
                        under_way += 1;
                    }
                    None => more = false,
                }
            }
            if under_way == 0 {
                break;
            }
            self.group.wait_into(&mut self.done, 1, None);
            for done in &self.done {
                if let Ok(output) = &done.result {
                    let wanted = self.wanted.as_deref_mut();
                    self.copied += take(output, done.buffer.as_ref(), wanted) as u64;
                }
            }
            now = Instant::now();
            for done in self.done.drain(..) {
                under_way -= 1;
                if let Some(sent) = self.sent.get(done.tag as usize) {
                    slice.latency.record(now - *sent);
                }
                slice.ops += 1;
                slice.bytes += bytes;
                match done.result {
                    Ok(
                        Output::Read { bytes: got, .. }
                        | Output::Lent { bytes: got, .. }
                        | Output::Got { bytes: got, .. },
                    ) if (got as u64) < bytes => {
                        let text = "a read was short: somebody else changes the file";
                        failure = Some(Error::Local(text.into()));
                    }
                    Err(error) => failure = Some(error),
                    Ok(_) => {}
                }
                self.idle.push((done.tag, done.buffer));
            }
        }
        slice.seconds = (now - started).as_secs_f64();
        failure.map_or(Ok(slice), |error| Err(error.into()))
    }
}

fn full() -> io::Error {
    io::Error::other("the session does not take that many requests: use a smaller depth")
}

struct RemoteFiles<'a> {
    group: Group,
    session: Session,
    remote: &'a Remote,
    buffer: Option<Buffer>,
    costs: Option<Costs>,
}

impl RemoteFiles<'_> {
    fn buffer(&mut self, size: usize) -> io::Result<Buffer> {
        match self.buffer.take().filter(|buffer| buffer.len() >= size) {
            Some(buffer) => Ok(buffer),
            None => {
                let mut buffer = self.session.buffer(size).map_err(io::Error::other)?;
                buffer.fill(0xa5);
                Ok(buffer)
            }
        }
    }

    fn call(&mut self, call: Call) -> io::Result<Output> {
        if self.group.submit(0, call).is_err() {
            return Err(full());
        }
        let done = self.group.wait(1, None).pop();
        let done = done.ok_or_else(|| io::Error::other("no answer"))?;
        self.buffer = done.buffer;
        Ok(done.result?)
    }
}

impl Files for RemoteFiles<'_> {
    fn create(&mut self, number: u64, size: usize) -> io::Result<()> {
        let buffer = self.buffer(size)?;
        let path = self.remote.path(&small_name(number));
        self.call(put(path, Some(buffer), size, false)).map(drop)
    }

    fn read(&mut self, number: u64, size: usize) -> io::Result<usize> {
        let buffer = self.buffer(size)?;
        let path = self.remote.path(&small_name(number));
        match self.call(Call::GetFile { path, buffer })? {
            Output::Got { bytes, .. } => Ok(bytes),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn write(&mut self, number: u64, size: usize) -> io::Result<()> {
        let buffer = Some(self.buffer(size)?);
        let path = self.remote.path(&small_name(number));
        let mut call = put(path, buffer, size, false);
        if let Call::PutFile { exclusive, .. } = &mut call {
            *exclusive = false;
        }
        self.call(call).map(drop)
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        let path = self.remote.path(&small_name(number));
        self.call(Call::Remove { path, directory: false }).map(drop)
    }

    fn costs(&mut self, slice: &mut Slice) -> io::Result<()> {
        match self.costs.take() {
            Some(costs) => costs.end(&self.session, slice),
            None => Ok(()),
        }
    }
}
