//! Large files: in pieces, several under way; holes stay holes.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use dafs_client::{Call, Done, Group, Session};
use dafs_fabric::Buffer;
use dafs_protocol::{Attr, FileKind, Stability};

use super::{Counts, Engine, Job, Placed, ROOM_WAIT};
use crate::copy::ends::{Sink, Source, are_same, read_full};
use crate::copy::partial::{self, Partial};
use crate::copy::{PIECE_BYTES, WINDOW};
use crate::failure::Cause;
use crate::place;

/// Copies one regular file of any size.
pub fn copy(engine: &Engine<'_>, job: &Job) -> Result<Placed, Cause> {
    let source = Source::open(&engine.from, &job.from, engine.rules().follow)?;
    let attr = source.attr()?;
    if attr.kind != FileKind::File {
        return Err("it was a file, and is none any more".into());
    }
    let (temporary, sink) = match written(engine, job, &source, &attr)? {
        Some(complete) => complete,
        None => {
            let temporary = temporary(&job.to)?;
            let filled = Sink::create(&engine.to, &temporary).and_then(|sink| {
                Pump::new(engine, &source, &sink, &attr, None).and_then(Pump::run)?;
                Ok(sink)
            });
            // Even what was not made by all accounts: a server that restarts may not know.
            let sink = filled.inspect_err(|cause| engine.discard(&temporary, cause))?;
            (temporary, sink)
        }
    };
    let placed = complete(engine, job, &source, &attr, (&temporary, sink));
    placed.inspect_err(|cause| engine.discard(&temporary, cause))
}

fn temporary(to: &[u8]) -> Result<Vec<u8>, Cause> {
    place::temporary(to).map_err(|failure| Cause::Text(failure.text))
}

/// All bytes, where another copy can go on if this one is broken off; `None`: nothing is done yet.
fn written(
    engine: &Engine<'_>,
    job: &Job,
    source: &Source,
    attr: &Attr,
) -> Result<Option<(Vec<u8>, Sink)>, Cause> {
    if attr.size < partial::BYTES_MIN {
        return Ok(None);
    }
    let Some(partial) = Partial::open(&engine.to, &job.to, attr)? else { return Ok(None) };
    Counts::add(&engine.counts().resumed, partial.start);
    let filled = Pump::new(engine, source, &partial.sink, attr, Some(&partial)).and_then(Pump::run);
    if let Err(cause) = filled {
        // Of use only where somebody will want to go on.
        let goes_on = cause.is_final() || cause.is_lost_by_restart();
        if !goes_on {
            engine.discard(&partial.path, &cause);
        }
        return Err(cause);
    }
    let path = partial.path.clone();
    let complete = partial.complete(&engine.to);
    complete.map(Some).inspect_err(|cause| {
        // Renamed after all, or replaced: the name may be another copy's by now.
        if !cause.is_lost_by_restart() && !matches!(cause, Cause::Text(_)) {
            engine.discard(&path, cause);
        }
    })
}

/// All bytes are there: the rest, and the name.
fn complete(
    engine: &Engine<'_>,
    job: &Job,
    source: &Source,
    attr: &Attr,
    (temporary, sink): (&[u8], Sink),
) -> Result<Placed, Cause> {
    if engine.rules().xattrs {
        let have = engine.inherits(&job.to, job.dir.as_deref());
        engine.copy_xattrs(&job.from, temporary, have);
    }
    sink.finish(temporary, engine.rules().sync, &engine.like(attr))?;
    if engine.rules().checksum {
        let written = Source::open(&engine.to, temporary, false)?;
        if !are_same(source, &written, &|| engine.is_stopped())? {
            return Err("what was written is not what is read again: the copy is removed".into());
        }
    }
    engine.put_in_place(temporary, job)
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
    /// What was asked for and did not come whole: the rest is asked for.
    rests: Vec<(u64, usize)>,
    /// Where the file ends: earlier than expected when it shrank.
    end: u64,
    /// Where what was written ends.
    written_end: u64,
    /// Notes how far it is.
    partial: Option<&'p Partial>,
    /// What was noted last.
    noted: u64,
}

impl<'p> Pump<'p> {
    fn new(
        engine: &'p Engine<'p>,
        source: &'p Source,
        sink: &'p Sink,
        attr: &Attr,
        partial: Option<&'p Partial>,
    ) -> Result<Pump<'p>, Cause> {
        let start = partial.map_or(0, |partial| partial.start);
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
        let idle = match reading.or(writing) {
            Some(session) => session.buffers(count, piece)?,
            None => Buffer::many(count, piece).map_err(|error| Cause::Text(error.to_string()))?,
        };
        Ok(Pump {
            engine,
            source,
            sink,
            from: reading.map(Session::group),
            to: writing.map(Session::group),
            pieces: Pieces::new(source, attr, piece, start),
            idle,
            under_way: (0..count).map(|_| None).collect(),
            rests: Vec::new(),
            end: attr.size,
            written_end: start,
            partial,
            noted: start,
        })
    }

    /// Copies everything.
    fn run(mut self) -> Result<(), Cause> {
        let mut result = self.pump();
        // What is under way ends before the file is closed or removed.
        for from in [true, false] {
            let Some(group) = (if from { &self.from } else { &self.to }) else { continue };
            let mut late = Vec::new();
            while group.outstanding() > 0 {
                late.extend(group.wait(usize::MAX, None));
            }
            if !from && matches!(result, Err(Cause::Interrupted)) {
                late.into_iter().for_each(|done| self.late(&done));
            }
        }
        // The user wants to end; where the server is lost it was waited for once.
        let wanted = !self.engine.stopped.load(Ordering::Relaxed);
        if wanted && matches!(result, Err(Cause::Interrupted)) {
            let _ = self.note();
        }
        if result.is_ok() && self.written_end != self.end {
            result = self.sink.set_len(self.end);
        }
        result
    }

    /// A write that ended after the copy was broken off.
    fn late(&mut self, done: &Done) {
        let slot = usize::try_from(done.tag).ok().and_then(|tag| self.under_way.get_mut(tag));
        if let Some(slot) = slot
            && done.bytes().ok() == slot.map(|(_, len)| len)
        {
            *slot = None;
        }
    }

    fn pump(&mut self) -> Result<(), Cause> {
        loop {
            while !self.idle.is_empty() {
                if self.engine.is_stopped() {
                    return Err(Cause::Interrupted);
                }
                let next = match self.rests.pop() {
                    Some(rest) => Some(rest),
                    None => self.pieces.next()?,
                };
                let Some((offset, len)) = next.filter(|(offset, _)| *offset < self.end) else {
                    break;
                };
                if let Some(limit) = &self.engine.shared.limit {
                    limit.take(len as u64);
                }
                if let Some(buffer) = self.idle.pop() {
                    self.read(buffer, offset, len)?;
                }
            }
            if self.under_way.iter().all(Option::is_none) && self.rests.is_empty() {
                return Ok(());
            }
            self.collect()?;
            if self.partial.is_some() && self.complete_end() >= self.noted + partial::NOTED_BYTES {
                self.note()?;
            }
        }
    }

    /// All before this is written.
    fn complete_end(&self) -> u64 {
        let open = self.under_way.iter().flatten().chain(&self.rests).map(|(offset, _)| *offset);
        open.min().unwrap_or(u64::MAX).min(self.pieces.at)
    }

    fn note(&mut self) -> Result<(), Cause> {
        let Some(partial) = self.partial else { return Ok(()) };
        // The file is as long as what is written of it.
        self.noted = self.complete_end().min(self.written_end);
        partial.note(&self.engine.to, self.noted)
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
        if bytes == 0 {
            self.end = self.end.min(offset);
            self.idle.push(buffer);
            return Ok(());
        }
        // Less than was asked for is not yet the end.
        if bytes < wanted {
            self.rests.push((offset + bytes as u64, wanted - bytes));
        }
        match self.sink {
            Sink::Local(file) => {
                file.write_all_at(buffer.get(..bytes).unwrap_or_default(), offset)?;
                self.written(buffer, offset, bytes);
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

    fn written(&mut self, buffer: Buffer, offset: u64, bytes: usize) {
        self.written_end = self.written_end.max(offset + bytes as u64);
        Counts::add(&self.engine.counts().bytes, bytes as u64);
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
                group.wait_for_room(ROOM_WAIT);
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
        self.written(buffer, offset, bytes);
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
    fn new(source: &'p Source, attr: &Attr, piece: usize, at: u64) -> Pieces<'p> {
        let has_holes = attr.allocated < attr.size;
        let data_end = if has_holes { 0 } else { attr.size };
        Pieces { source, piece, at, data_end, size: attr.size }
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
