//! Small files: many under way, each in one request per side.

use std::io::{self, Read, Write};

use dafs_client::{Call, Done, Group, Output};
use dafs_fabric::Buffer;
use dafs_protocol::Attr;

use super::{Counts, Engine, Job, Placed, ROOM_WAIT, SMALL_BYTES_MAX};
use crate::copy::like::Like;
use crate::copy::local::dress_file;
use crate::copy::side::Side;
use crate::copy::xattr;
use crate::failure::{Cause, Failure};
use crate::place;

/// Files under way per thread.
const WINDOW: usize = 16;

/// The small files that one thread has under way.
pub struct Small<'e> {
    engine: &'e Engine<'e>,
    from: Option<Group>,
    to: Option<Group>,
    /// Idle buffers.
    buffers: Vec<Buffer>,
    /// Copies under way, by tag.
    copies: Vec<Option<Copy>>,
    under_way: usize,
}

struct Copy {
    job: Job,
    /// The name before it is complete.
    temporary: Vec<u8>,
    /// It is complete, and gets its name in a request of its own.
    renaming: bool,
}

impl<'e> Small<'e> {
    /// None under way.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(engine: &'e Engine<'e>) -> Result<Small<'e>, Failure> {
        let group = |side: &Side| match side {
            Side::Local(_) => None,
            Side::Remote(remote) => Some(remote.session.group()),
        };
        let session = match (&engine.from, &engine.to) {
            (Side::Remote(remote), _) | (_, Side::Remote(remote)) => Some(&remote.session),
            (Side::Local(_), Side::Local(_)) => None,
        };
        let buffers = match session {
            Some(session) => {
                session.buffers(WINDOW, SMALL_BYTES_MAX).map_err(|e| Failure::about("", e))
            }
            None => Buffer::many(WINDOW, SMALL_BYTES_MAX)
                .map_err(|error| Failure::about("", error.to_string())),
        }?;
        Ok(Small {
            engine,
            from: group(&engine.from),
            to: group(&engine.to),
            buffers,
            copies: (0..WINDOW).map(|_| None).collect(),
            under_way: 0,
        })
    }

    /// True when one more can be started.
    pub fn has_room(&self) -> bool {
        self.under_way < WINDOW && (!self.buffers.is_empty() || self.is_idle())
    }

    /// True when nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Waits for all that is under way.
    pub fn drain(&mut self) {
        while !self.is_idle() {
            self.collect();
        }
    }

    /// Begins to copy a file; there must be room.
    pub fn start(&mut self, job: Job) {
        let Some(buffer) = self.buffers.pop() else { return self.engine.single(job) };
        let temporary = match place::temporary(&job.to) {
            Ok(temporary) => temporary,
            Err(failure) => {
                self.buffers.push(buffer);
                return self.engine.finished(job, Err(Cause::Text(failure.text)));
            }
        };
        let copy = Copy { job, temporary, renaming: false };
        if self.from.is_some() {
            let path = copy.job.from.clone();
            let tag = self.put(copy);
            self.submit(true, tag, Call::GetFile { path, buffer });
        } else {
            self.start_local(copy, buffer);
        }
    }

    fn start_local(&mut self, copy: Copy, mut buffer: Buffer) {
        match self.read_whole(&copy.job, &mut buffer) {
            Ok(Some(bytes)) => {
                let attr = copy.job.attr;
                self.arrived(copy, buffer, bytes, &attr);
            }
            Ok(None) => {
                self.buffers.push(buffer);
                self.engine.single(copy.job);
            }
            Err(error) => {
                self.buffers.push(buffer);
                let job = copy.job;
                self.engine.failed(&self.engine.from, &job.from, error);
                self.engine.abandoned(job);
            }
        }
    }

    /// The file's bytes are here: on to the other side.
    fn arrived(&mut self, copy: Copy, buffer: Buffer, bytes: usize, attr: &Attr) {
        let like = self.engine.like(attr);
        if self.to.is_none() {
            let data = buffer.get(..bytes).unwrap_or_default();
            let written = self.write_whole(&copy, data, &like);
            self.buffers.push(buffer);
            return self.done(copy, bytes, written);
        }
        let replaces = self.engine.rules().may_replace(&copy.job.there);
        let call = Call::PutFile {
            path: copy.temporary.clone(),
            len: u32::try_from(bytes).unwrap_or(0),
            buffer: Some(buffer),
            mode: like.mode,
            exclusive: true,
            times: Some((attr.accessed, attr.modified)),
            owner: like.owner,
            rename_to: replaces.then(|| copy.job.to.clone()),
            commit: self.engine.rules().sync,
        };
        let copy = Copy { renaming: false, ..copy };
        let tag = self.put(copy);
        self.submit(false, tag, call);
    }

    /// The file is complete under its temporary name, and may replace nothing.
    fn written(&mut self, copy: Copy) {
        let (from, to) = (copy.temporary.clone(), copy.job.to.clone());
        let tag = self.put(Copy { renaming: true, ..copy });
        self.submit(false, tag, Call::Rename { from, to, no_replace: true });
    }

    fn done(&self, copy: Copy, bytes: usize, result: Result<Placed, Cause>) {
        if let Err(cause) = &result {
            if !cause.is_final() {
                self.engine.discard(&copy.temporary, cause);
            }
        } else {
            Counts::add(&self.engine.counts().bytes, bytes as u64);
        }
        self.engine.finished(copy.job, result);
    }

    fn put(&mut self, copy: Copy) -> u64 {
        let free = self.copies.iter().position(Option::is_none);
        let index = free.expect("there is room: at most as many copies as buffers");
        self.copies[index] = Some(copy);
        self.under_way += 1;
        index as u64
    }

    fn take(&mut self, tag: u64) -> Option<Copy> {
        let copy = usize::try_from(tag).ok().and_then(|tag| self.copies.get_mut(tag)?.take())?;
        self.under_way -= 1;
        Some(copy)
    }

    fn submit(&mut self, from: bool, tag: u64, mut call: Call) {
        loop {
            let group = if from { &self.from } else { &self.to };
            let Some(group) = group else { return };
            match group.submit(tag, call) {
                Ok(()) => return,
                Err(again) => call = again,
            }
            // Others fill the session: wait for one of ours, or for them.
            if group.outstanding() > 0 {
                let done = group.wait(1, None);
                done.into_iter().for_each(|done| self.ended(from, done));
            } else {
                group.wait_for_room(ROOM_WAIT);
            }
        }
    }

    /// Waits until at least one request ended.
    pub fn collect(&mut self) {
        for from in [false, true] {
            let group = if from { &self.from } else { &self.to };
            let Some(group) = group else { continue };
            if group.outstanding() > 0 {
                let done = group.wait(1, None);
                done.into_iter().for_each(|done| self.ended(from, done));
                return;
            }
        }
    }

    fn ended(&mut self, from: bool, done: Done) {
        let Some(copy) = self.take(done.tag) else { return };
        match (done.result, done.buffer) {
            (Ok(Output::Got { attr, bytes }), Some(buffer)) if from => {
                let plain = !self.engine.rules().xattrs
                    || matches!(self.has_xattrs(&copy.job.from), Ok(false));
                if bytes as u64 == attr.size && plain {
                    return self.arrived(copy, buffer, bytes, &attr);
                }
                // It grew beyond a request, or has more than bytes.
                self.buffers.push(buffer);
                self.engine.single(copy.job);
            }
            (Err(error), buffer) if from => {
                self.buffers.extend(buffer);
                let job = copy.job;
                self.engine.failed(&self.engine.from, &job.from, error.into());
                self.engine.abandoned(job);
            }
            (result, buffer) => {
                self.buffers.extend(buffer);
                self.answered(copy, result.map(drop).map_err(Cause::from));
            }
        }
    }

    fn answered(&mut self, copy: Copy, result: Result<(), Cause>) {
        let bytes = usize::try_from(copy.job.attr.size).unwrap_or(0);
        let replaces = self.engine.rules().may_replace(&copy.job.there);
        match result {
            Ok(()) if !replaces && !copy.renaming => self.written(copy),
            // Taken meanwhile, or no such call there: what is to be done is decided once more.
            Err(cause)
                if copy.renaming
                    && matches!(cause.errno(), libc::EEXIST | libc::EINVAL | libc::EOPNOTSUPP) =>
            {
                let placed = self.engine.put_in_place(&copy.temporary, &copy.job);
                self.done(copy, bytes, placed);
            }
            other => self.done(copy, bytes, other.map(|()| Placed::Done)),
        }
    }

    /// Fills `buffer` from the file; `None` when it does not fit, or has more than bytes.
    fn read_whole(&self, job: &Job, buffer: &mut Buffer) -> Result<Option<usize>, Cause> {
        let Side::Local(tree) = &self.engine.from else { return Ok(None) };
        let mut file = tree.open_read(&job.from, self.engine.rules().follow)?;
        if self.engine.rules().xattrs && self.has_xattrs(&job.from)? {
            return Ok(None);
        }
        let mut filled = 0;
        loop {
            let rest = buffer.get_mut(filled..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(None);
            }
            filled += match file.read(rest) {
                // Less than was found: perhaps it is no file any more.
                Ok(0) if (filled as u64) < job.attr.size => return Ok(None),
                Ok(0) => return Ok(Some(filled)),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error.into()),
            };
            // As long as it was when it was found: no need to ask for the end.
            if filled as u64 == job.attr.size && filled > 0 {
                return Ok(Some(filled));
            }
        }
    }

    fn has_xattrs(&self, path: &[u8]) -> Result<bool, Cause> {
        Ok(!xattr::names(&self.engine.from, path)?.is_empty())
    }

    fn write_whole(&self, copy: &Copy, data: &[u8], like: &Like) -> Result<Placed, Cause> {
        let Side::Local(tree) = &self.engine.to else { return Ok(Placed::Kept) };
        let mut file = tree.create_new(&copy.temporary)?;
        file.write_all(data)?;
        dress_file(&file, like)?;
        if self.engine.rules().sync {
            file.sync_all()?;
        }
        drop(file);
        self.engine.put_in_place(&copy.temporary, &copy.job)
    }
}
