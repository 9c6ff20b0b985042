//! Large files: in pieces, several under way; holes stay holes.

use std::fs::{self, File as LocalFile};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering;

use dafs_client::{Call, Done, File, Group, OpenOptions, Session};
use dafs_fabric::Buffer;
use dafs_protocol::{Attr, Stability, Status};

use super::small::dress_file;
use super::{Engine, Job};
use crate::copy::side::{self, Side};
use crate::failure::Cause;
use crate::place::{self, local};
use crate::sys;

/// Bytes of a piece, unless a session allows less.
pub const PIECE_BYTES: usize = 1 << 20;
/// Pieces under way.
pub const WINDOW: usize = 8;

/// Copies one regular file of any size.
pub fn copy(engine: &Engine<'_>, job: &Job) -> Result<(), Cause> {
    let temporary = place::temporary(&job.to).map_err(|failure| Cause::Text(failure.text))?;
    let source = Source::open(&engine.from, &job.from)?;
    let attr = source.attr()?;
    fill(engine, &source, &attr, &temporary)
        .and_then(|()| engine.to.rename(&temporary, &job.to))
        .inspect_err(|cause| engine.discard(&temporary, cause))
}

fn fill(engine: &Engine<'_>, source: &Source, attr: &Attr, temporary: &[u8]) -> Result<(), Cause> {
    let sink = Sink::create(&engine.to, temporary)?;
    let bytes = Pump::new(engine, source, &sink, attr)?.run()?;
    sink.finish(&engine.to, temporary, bytes, &engine.like(attr))
}

/// An open file to copy from.
enum Source {
    Local(LocalFile),
    Remote(File, Session),
}

impl Source {
    fn open(side: &Side, path: &[u8]) -> Result<Source, Cause> {
        match side {
            Side::Local => {
                // A fifo that took the file's place must not block.
                let flags = libc::O_NONBLOCK;
                let file =
                    fs::OpenOptions::new().read(true).custom_flags(flags).open(local(path))?;
                Ok(Source::Local(file))
            }
            Side::Remote(remote) => {
                let file = remote.session.open(path, OpenOptions::read())?;
                Ok(Source::Remote(file, remote.session.clone()))
            }
        }
    }

    /// As it is now that it is open.
    fn attr(&self) -> Result<Attr, Cause> {
        match self {
            Source::Local(file) => Ok(side::attr_of(&file.metadata()?)),
            Source::Remote(file, _) => Ok(file.opened_attr()),
        }
    }

    /// The next data (or hole) from `offset` on; `None`: nothing but a hole follows.
    fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>, Cause> {
        match self {
            Source::Local(file) => match sys::seek(file, offset, hole) {
                // The file system does not tell: all is data.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    Ok(Some(if hole { u64::MAX } else { offset }))
                }
                other => Ok(other?),
            },
            Source::Remote(file, _) => {
                let found = if hole { file.seek_hole(offset) } else { file.seek_data(offset) };
                match found {
                    Err(error)
                        if matches!(error.status(), Some(Status::NotSupp | Status::Inval)) =>
                    {
                        Ok(Some(if hole { u64::MAX } else { offset }))
                    }
                    Err(error) if error.status() == Some(Status::NxIo) => Ok(None),
                    other => Ok(other?),
                }
            }
        }
    }
}

/// An open file to copy to.
enum Sink {
    Local(LocalFile),
    Remote(File, Session),
}

impl Sink {
    fn create(side: &Side, path: &[u8]) -> Result<Sink, Cause> {
        match side {
            Side::Local => Ok(Sink::Local(side::create_local(path)?)),
            Side::Remote(remote) => {
                let file = remote.session.open(path, new_file())?;
                Ok(Sink::Remote(file, remote.session.clone()))
            }
        }
    }

    fn finish(self, side: &Side, path: &[u8], bytes: u64, like: &side::Like) -> Result<(), Cause> {
        match self {
            Sink::Local(file) => {
                if file.metadata()?.len() != bytes {
                    file.set_len(bytes)?;
                }
                Ok(dress_file(&file, like)?)
            }
            Sink::Remote(file, _) => {
                if file.attr()?.size != bytes {
                    file.set_len(bytes)?;
                }
                // Closed first: what is flushed then must not touch the times again.
                file.close()?;
                side.dress(path, like)
            }
        }
    }
}

/// For writing, new, for nobody else to read until it is complete.
pub fn new_file() -> OpenOptions {
    OpenOptions {
        write: true,
        create: true,
        exclusive: true,
        mode: 0o600,
        ..OpenOptions::default()
    }
}

/// Bytes of a piece that all these sessions take.
fn piece_bytes<'s>(sessions: impl IntoIterator<Item = &'s Session>) -> usize {
    let least = sessions.into_iter().map(|s| s.info().attr.data_bytes_max as usize).min();
    least.unwrap_or(PIECE_BYTES).clamp(1, PIECE_BYTES)
}

/// Moves pieces from a source to a sink.
struct Pump<'p> {
    engine: &'p Engine<'p>,
    source: &'p Source,
    sink: &'p Sink,
    from: Option<Group>,
    to: Option<Group>,
    pieces: Pieces<'p>,
    idle: Vec<Buffer>,
    /// Offset and length of what is under way, by tag.
    under_way: Vec<Option<(u64, usize)>>,
    /// Where the file ends: earlier than expected when it shrank.
    end: u64,
}

impl<'p> Pump<'p> {
    fn new(
        engine: &'p Engine<'p>,
        source: &'p Source,
        sink: &'p Sink,
        attr: &Attr,
    ) -> Result<Pump<'p>, Cause> {
        let reading = match source {
            Source::Remote(_, session) => Some(session),
            Source::Local(_) => None,
        };
        let writing = match sink {
            Sink::Remote(_, session) => Some(session),
            Sink::Local(_) => None,
        };
        let piece = piece_bytes(reading.into_iter().chain(writing));
        let count = attr.size.div_ceil(piece as u64).clamp(1, WINDOW as u64) as usize;
        let idle = Buffer::many(count, piece).map_err(|error| Cause::Text(error.to_string()))?;
        Ok(Pump {
            engine,
            source,
            sink,
            from: reading.map(Session::group),
            to: writing.map(Session::group),
            pieces: Pieces::new(source, attr, piece),
            idle,
            under_way: (0..count).map(|_| None).collect(),
            end: attr.size,
        })
    }

    /// Copies everything; how long the file is.
    fn run(mut self) -> Result<u64, Cause> {
        let result = self.pump();
        // What is under way ends before the file is closed or removed.
        for group in [&self.from, &self.to].into_iter().flatten() {
            while group.outstanding() > 0 {
                group.wait(usize::MAX, None);
            }
        }
        result.map(|()| self.end)
    }

    fn pump(&mut self) -> Result<(), Cause> {
        loop {
            while !self.idle.is_empty() {
                if self.engine.is_stopped() {
                    return Err(Cause::Interrupted);
                }
                let Some((offset, len)) = self.pieces.next()? else { break };
                if offset >= self.end {
                    break;
                }
                if let Some(buffer) = self.idle.pop() {
                    self.read(buffer, offset, len)?;
                }
            }
            if self.under_way.iter().all(Option::is_none) {
                return Ok(());
            }
            self.collect()?;
        }
    }

    fn read(&mut self, mut buffer: Buffer, offset: u64, len: usize) -> Result<(), Cause> {
        match self.source {
            Source::Local(file) => {
                let into = buffer.get_mut(..len).unwrap_or_default();
                let bytes = read_full(file, into, offset)?;
                self.read_done(buffer, offset, len, bytes)
            }
            Source::Remote(file, _) => {
                let tag = self.begin(offset, len);
                let call = Call::Read {
                    file: file.clone(),
                    offset,
                    buffer,
                    len: u32::try_from(len).unwrap_or(0),
                };
                self.submit(true, tag, call)
            }
        }
    }

    fn read_done(
        &mut self,
        buffer: Buffer,
        offset: u64,
        wanted: usize,
        bytes: usize,
    ) -> Result<(), Cause> {
        if bytes < wanted {
            self.end = self.end.min(offset + bytes as u64);
        }
        if bytes == 0 {
            self.idle.push(buffer);
            return Ok(());
        }
        match self.sink {
            Sink::Local(file) => {
                file.write_all_at(buffer.get(..bytes).unwrap_or_default(), offset)?;
                self.written(buffer, bytes);
                Ok(())
            }
            Sink::Remote(file, _) => {
                let tag = self.begin(offset, bytes);
                let call = Call::Write {
                    file: file.clone(),
                    offset,
                    buffer,
                    len: u32::try_from(bytes).unwrap_or(0),
                    stability: Stability::Unstable,
                };
                self.submit(false, tag, call)
            }
        }
    }

    fn written(&mut self, buffer: Buffer, bytes: usize) {
        self.engine.counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.idle.push(buffer);
    }

    fn begin(&mut self, offset: u64, len: usize) -> u64 {
        let free = self.under_way.iter().position(Option::is_none);
        let index = free.expect("at most as many pieces as buffers");
        self.under_way[index] = Some((offset, len));
        index as u64
    }

    fn submit(&mut self, from: bool, tag: u64, mut call: Call) -> Result<(), Cause> {
        loop {
            let group = if from { &self.from } else { &self.to };
            let Some(group) = group else { return Ok(()) };
            match group.submit(tag, call) {
                Ok(()) => {
                    group.flush();
                    return Ok(());
                }
                Err(again) => call = again,
            }
            // Others fill the session.
            let done = group.wait(1, None);
            if done.is_empty() {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            done.into_iter().try_for_each(|done| self.ended(from, done))?;
        }
    }

    fn collect(&mut self) -> Result<(), Cause> {
        for from in [false, true] {
            let group = if from { &self.from } else { &self.to };
            let Some(group) = group else { continue };
            if group.outstanding() > 0 {
                let done = group.wait(1, None);
                return done.into_iter().try_for_each(|done| self.ended(from, done));
            }
        }
        Ok(())
    }

    fn ended(&mut self, from: bool, done: Done) -> Result<(), Cause> {
        let bytes = done.bytes()?;
        let slot = usize::try_from(done.tag).ok().and_then(|tag| self.under_way.get_mut(tag));
        let (Some((offset, len)), Some(buffer)) = (slot.and_then(Option::take), done.buffer) else {
            return Err(Cause::from("a reply came twice or without its buffer"));
        };
        if from {
            return self.read_done(buffer, offset, len, bytes);
        }
        if bytes < len {
            return Err(Cause::from("the server wrote less than it was given"));
        }
        self.written(buffer, bytes);
        Ok(())
    }
}

/// The data of a file, cut into pieces; holes are left out.
struct Pieces<'p> {
    source: &'p Source,
    piece: usize,
    at: u64,
    /// Where the data at `at` ends.
    data_end: u64,
    size: u64,
}

impl<'p> Pieces<'p> {
    fn new(source: &'p Source, attr: &Attr, piece: usize) -> Pieces<'p> {
        let has_holes = attr.allocated < attr.size;
        let data_end = if has_holes { 0 } else { attr.size };
        Pieces { source, piece, at: 0, data_end, size: attr.size }
    }

    fn next(&mut self) -> Result<Option<(u64, usize)>, Cause> {
        if self.at >= self.size {
            return Ok(None);
        }
        if self.at >= self.data_end {
            let Some(start) = self.source.seek(self.at, false)?.filter(|s| *s < self.size) else {
                self.at = self.size;
                return Ok(None);
            };
            self.at = start.max(self.at);
            let end = self.source.seek(self.at, true)?.unwrap_or(self.size);
            self.data_end = end.clamp(self.at + 1, self.size);
        }
        // Pieces end at multiples of their size, so that whole blocks are written.
        let piece = self.piece as u64;
        let end = ((self.at / piece + 1) * piece).min(self.data_end);
        let found = (self.at, usize::try_from(end - self.at).unwrap_or(self.piece));
        self.at = end;
        Ok(Some(found))
    }
}

fn read_full(file: &LocalFile, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
