//! Standard input and output: data without a size, in order.

use std::collections::VecDeque;
use std::fs::File as LocalFile;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use dafs_client::{Call, Done, File, Group, OpenOptions};
use dafs_fabric::Buffer;
use dafs_protocol::{SetAttr, Stability};

use super::ends::new_file;
use super::side::Side;
use super::{PIECE_BYTES, WINDOW};
use crate::connect::Remote;
use crate::failure::{Cause, Failure};
use crate::{interrupt, place, sys};

/// Prints a file of a server on standard output.
///
/// # Errors
/// Of either side.
pub fn to_standard_output(remote: &Remote) -> Result<(), Failure> {
    let out = io::stdout().as_fd().try_clone_to_owned().map(LocalFile::from)?;
    send(remote, out)
}

/// Writes a file of a server to something that takes bytes in order.
///
/// # Errors
/// Of either side.
pub fn send(remote: &Remote, mut out: LocalFile) -> Result<(), Failure> {
    let fail = |cause| remote.failure(&remote.path, cause);
    let file = remote
        .session
        .open(&remote.path, OpenOptions::read())
        .map_err(|error| fail(Cause::from(error)))?;
    let mut stream = Stream::new(remote, file).map_err(fail)?;
    let result = stream.read_all(&mut |data| out.write_all(data));
    stream.settle();
    match result {
        Err(Wrong::Server(cause)) => Err(fail(cause)),
        Err(Wrong::Output(error)) => Err(Failure::from(error)),
        Ok(()) => Ok(()),
    }
}

/// Makes a file on a server from standard input.
///
/// # Errors
/// Of either side.
pub fn from_standard_input(remote: &Remote) -> Result<u64, Failure> {
    let fail = |cause| remote.failure(&remote.path, cause);
    let temporary = place::temporary(&remote.path)?;
    write_new(remote, &temporary).map_err(|cause| {
        if !Side::Remote(remote.clone()).is_gone(&cause) {
            let _ = remote.session.remove(&temporary);
        }
        fail(cause)
    })
}

/// Writes standard input under a temporary name, and gives it its own once it is complete.
fn write_new(remote: &Remote, temporary: &[u8]) -> Result<u64, Cause> {
    let session = &remote.session;
    let file = session.open(temporary, new_file())?;
    let mut stream = Stream::new(remote, file.clone())?;
    let written = stream.write_all();
    stream.settle();
    drop(stream);
    let bytes = written?;
    file.close()?;
    let mode = Some(0o666 & !sys::umask());
    session.set_attr(temporary, SetAttr { mode, ..SetAttr::default() }, true)?;
    session.rename(temporary, &remote.path)?;
    Ok(bytes)
}

/// Which side failed.
enum Wrong {
    Server(Cause),
    Output(io::Error),
}

/// A file read or written from its beginning on, several pieces under way.
struct Stream {
    file: File,
    group: Group,
    idle: Vec<Buffer>,
    piece: usize,
    offset: u64,
}

impl Stream {
    fn new(remote: &Remote, file: File) -> Result<Stream, Cause> {
        let most = remote.session.info().attr.data_bytes_max as usize;
        let piece = PIECE_BYTES.min(most).max(1);
        let idle = remote.session.buffers(WINDOW, piece)?;
        Ok(Stream { file, group: remote.session.group(), idle, piece, offset: 0 })
    }

    /// Waits for all that is under way.
    fn settle(&self) {
        while self.group.outstanding() > 0 {
            self.group.wait(usize::MAX, None);
        }
    }

    fn read_all(&mut self, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), Wrong> {
        // Pieces in their order; the first has number `first`.
        let mut pieces: VecDeque<Option<Done>> = VecDeque::new();
        let mut first = 0;
        let mut position = 0;
        loop {
            if interrupt::requested() {
                return Err(Wrong::Server(Cause::Interrupted));
            }
            while let Some(buffer) = self.idle.pop() {
                let number = first + pieces.len() as u64;
                if !self.ask(number, buffer) {
                    break;
                }
                pieces.push_back(None);
            }
            for done in self.group.wait(1, Some(Duration::from_millis(500))) {
                let index = usize::try_from(done.tag.wrapping_sub(first)).ok();
                if let Some(slot) = index.and_then(|index| pieces.get_mut(index)) {
                    *slot = Some(done);
                }
            }
            while let Some(done) = pieces.front_mut().and_then(Option::take) {
                pieces.pop_front();
                first += 1;
                let bytes = done.bytes().map_err(|error| Wrong::Server(error.into()))?;
                let Some(buffer) = done.buffer else { continue };
                out(buffer.get(..bytes).unwrap_or_default()).map_err(Wrong::Output)?;
                self.idle.push(buffer);
                position += bytes as u64;
                if bytes == 0 {
                    return Ok(());
                }
                // Less than was asked for is not yet the end: the rest comes before what follows.
                if bytes < self.piece {
                    self.ask_again_from(position, &mut pieces);
                }
            }
        }
    }

    fn ask_again_from(&mut self, position: u64, pieces: &mut VecDeque<Option<Done>>) {
        while self.group.outstanding() > 0 {
            let done = self.group.wait(usize::MAX, None);
            self.idle.extend(done.into_iter().filter_map(|done| done.buffer));
        }
        self.idle.extend(pieces.drain(..).flatten().filter_map(|done| done.buffer));
        self.offset = position;
    }

    fn ask(&mut self, number: u64, buffer: Buffer) -> bool {
        let len = u32::try_from(self.piece).unwrap_or(0);
        let call = Call::Read { file: self.file.clone(), offset: self.offset, buffer, len };
        match self.group.submit(number, call) {
            Ok(()) => {
                self.offset += self.piece as u64;
                true
            }
            Err(Call::Read { buffer, .. }) => {
                self.idle.push(buffer);
                false
            }
            Err(_) => false,
        }
    }

    fn write_all(&mut self) -> Result<u64, Cause> {
        // Without the standard library's buffer, which `sys::readable` would not know of.
        let mut input = LocalFile::from(io::stdin().as_fd().try_clone_to_owned()?);
        loop {
            let mut buffer = match self.idle.pop() {
                Some(buffer) => buffer,
                None => {
                    self.collect()?;
                    continue;
                }
            };
            let bytes = fill(&mut input, &mut buffer)?;
            if bytes == 0 {
                break;
            }
            self.write(buffer, bytes)?;
        }
        while self.group.outstanding() > 0 {
            self.collect()?;
        }
        Ok(self.offset)
    }

    fn write(&mut self, buffer: Buffer, bytes: usize) -> Result<(), Cause> {
        let mut call = Call::Write {
            file: self.file.clone(),
            offset: self.offset,
            buffer,
            len: u32::try_from(bytes).unwrap_or(0),
            stability: Stability::Unstable,
        };
        while let Err(again) = self.group.submit(bytes as u64, call) {
            call = again;
            self.collect()?;
        }
        self.group.flush();
        self.offset += bytes as u64;
        Ok(())
    }

    /// Waits for a write; its tag is its length.
    fn collect(&mut self) -> Result<(), Cause> {
        for done in self.group.wait(1, None) {
            if (done.bytes()? as u64) < done.tag {
                return Err(Cause::from("the server wrote less than it was given"));
            }
            self.idle.extend(done.buffer);
        }
        Ok(())
    }
}

/// Fills the buffer as far as there is input.
fn fill(input: &mut LocalFile, buffer: &mut Buffer) -> Result<usize, Cause> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        while !sys::readable(input.as_fd(), Duration::from_millis(100))? {
            if interrupt::requested() {
                return Err(Cause::Interrupted);
            }
        }
        match input.read(rest) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Cause::Local(error)),
        }
    }
    Ok(filled)
}
