//! Small files: many under way, each in one request per side.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::atomic::Ordering;

use dafs_client::{Call, Done, Group, Output};
use dafs_fabric::Buffer;
use dafs_protocol::Attr;

use super::{Engine, Job, SMALL_BYTES_MAX};
use crate::copy::side::{self, Side};
use crate::failure::{Cause, Failure};
use crate::place::{self, local};
use crate::sys;

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
}

impl<'e> Small<'e> {
    /// None under way.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(engine: &'e Engine<'e>) -> Result<Small<'e>, Failure> {
        let group = |side: &Side| match side {
            Side::Local => None,
            Side::Remote(remote) => Some(remote.session.group()),
        };
        let buffers = Buffer::many(WINDOW, SMALL_BYTES_MAX)
            .map_err(|error| Failure::about("", error.to_string()))?;
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
        let copy = Copy { job, temporary };
        if self.from.is_some() {
            let path = copy.job.from.clone();
            let tag = self.put(copy);
            self.submit(true, tag, Call::GetFile { path, buffer });
        } else {
            self.start_local(copy, buffer);
        }
    }

    fn start_local(&mut self, copy: Copy, mut buffer: Buffer) {
        match read_whole(&copy.job, &mut buffer) {
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
                self.engine.failed(&self.engine.from, &job.from, error.into());
                self.engine.abandoned(job);
            }
        }
    }

    /// The file's bytes are here: on to the other side.
    fn arrived(&mut self, copy: Copy, buffer: Buffer, bytes: usize, attr: &Attr) {
        let like = self.engine.like(attr);
        if self.to.is_none() {
            let data = buffer.get(..bytes).unwrap_or_default();
            let written = write_whole(&copy, data, &like);
            self.buffers.push(buffer);
            return self.done(copy, bytes, written);
        }
        let call = Call::PutFile {
            path: copy.temporary.clone(),
            len: u32::try_from(bytes).unwrap_or(0),
            buffer: Some(buffer),
            mode: like.mode,
            exclusive: true,
            times: Some((attr.accessed, attr.modified)),
            owner: like.owner,
            rename_to: Some(copy.job.to.clone()),
            commit: false,
        };
        let tag = self.put(copy);
        self.submit(false, tag, call);
    }

    fn done(&self, copy: Copy, bytes: usize, result: Result<(), Cause>) {
        if result.is_ok() {
            self.engine.counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        } else if let Err(cause) = &result
            && !cause.is_final()
        {
            self.engine.discard(&copy.temporary, cause);
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
                std::thread::sleep(std::time::Duration::from_micros(200));
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
                if bytes as u64 == attr.size {
                    return self.arrived(copy, buffer, bytes, &attr);
                }
                // It grew beyond a request.
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
                let bytes = usize::try_from(copy.job.attr.size).unwrap_or(0);
                self.buffers.extend(buffer);
                self.done(copy, bytes, result.map(drop).map_err(Cause::from));
            }
        }
    }
}

/// Fills `buffer` from the file; `None` when the file does not fit.
fn read_whole(job: &Job, buffer: &mut Buffer) -> io::Result<Option<usize>> {
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(local(&job.from))?;
    let mut filled = 0;
    loop {
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        filled += match file.read(rest) {
            Ok(0) => return Ok(Some(filled)),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        // As long as it was when it was found: no need to ask for the end.
        if filled as u64 == job.attr.size && filled > 0 {
            return Ok(Some(filled));
        }
    }
}

fn write_whole(copy: &Copy, data: &[u8], like: &side::Like) -> Result<(), Cause> {
    let mut file = side::create_local(&copy.temporary)?;
    file.write_all(data)?;
    dress_file(&file, like)?;
    drop(file);
    Ok(fs::rename(local(&copy.temporary), local(&copy.job.to))?)
}

/// Gives an open file of this machine owner, mode and times.
pub fn dress_file(file: &File, like: &side::Like) -> io::Result<()> {
    if let Some((uid, gid)) = like.owner {
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    file.set_permissions(fs::Permissions::from_mode(like.mode))?;
    sys::set_file_times(file, like.attr.accessed, like.attr.modified)
}
