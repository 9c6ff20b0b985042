//! Open files: the one that is copied from, and the one that is copied to.

use std::fs::File as LocalFile;
use std::io;
use std::os::unix::fs::FileExt;

use dafs_client::{File, OpenOptions, Session};
use dafs_protocol::{Attr, SetAttr, SetTime, Status};

use super::like::{Like, attr_of};
use super::local::dress_file;
use super::side::Side;
use crate::failure::Cause;
use crate::sys;

/// Bytes that are compared at a time.
const COMPARED_BYTES: usize = 1 << 20;

/// An open file to copy from.
pub enum Source {
    /// Of this machine.
    Local(LocalFile),
    /// Of a server.
    Remote(File, Session),
}

impl Source {
    /// Opens a regular file.
    pub fn open(side: &Side, path: &[u8], follow: bool) -> Result<Source, Cause> {
        match side {
            Side::Local(tree) => Ok(Source::Local(tree.open_read(path, follow)?)),
            Side::Remote(remote) => {
                let options = OpenOptions { no_follow: !follow, ..OpenOptions::read() };
                let file = remote.session.open(path, options)?;
                Ok(Source::Remote(file, remote.session.clone()))
            }
        }
    }

    /// As it is now that it is open.
    pub fn attr(&self) -> Result<Attr, Cause> {
        match self {
            Source::Local(file) => Ok(attr_of(&file.metadata()?)),
            Source::Remote(file, _) => Ok(file.opened_attr()),
        }
    }

    /// The next data (or hole) from `offset` on; `None`: nothing but a hole follows.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>, Cause> {
        let all_is_data = Some(if hole { u64::MAX } else { offset });
        match self {
            Source::Local(file) => match sys::seek(file, offset, hole) {
                // The file system does not tell: all is data.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(all_is_data),
                other => Ok(other?),
            },
            Source::Remote(file, _) => {
                let found = if hole { file.seek_hole(offset) } else { file.seek_data(offset) };
                match found {
                    Err(error)
                        if matches!(error.status(), Some(Status::NotSupp | Status::Inval)) =>
                    {
                        Ok(all_is_data)
                    }
                    Err(error) if error.status() == Some(Status::NxIo) => Ok(None),
                    other => Ok(other?),
                }
            }
        }
    }

    /// Fills `into`; less only where the file ends.
    fn read_full(&self, into: &mut [u8], offset: u64) -> Result<usize, Cause> {
        match self {
            Source::Local(file) => Ok(read_full(file, into, offset)?),
            Source::Remote(file, _) => {
                let mut filled = 0;
                while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                    match file.read_at(rest, offset + filled as u64)? {
                        0 => break,
                        bytes => filled += bytes,
                    }
                }
                Ok(filled)
            }
        }
    }
}

/// Fills `into` from a file of this machine; less only where the file ends.
pub fn read_full(file: &LocalFile, into: &mut [u8], offset: u64) -> io::Result<usize> {
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

/// True when two files have the same bytes.
pub fn are_same(a: &Source, b: &Source, stopped: &dyn Fn() -> bool) -> Result<bool, Cause> {
    let (mut left, mut right) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut offset = 0;
    loop {
        if stopped() {
            return Err(Cause::Interrupted);
        }
        let bytes = a.read_full(&mut left, offset)?;
        if b.read_full(&mut right, offset)? != bytes || left.get(..bytes) != right.get(..bytes) {
            return Ok(false);
        }
        if bytes < COMPARED_BYTES {
            return Ok(true);
        }
        offset += bytes as u64;
    }
}

/// An open file to copy to.
pub enum Sink {
    /// Of this machine.
    Local(LocalFile),
    /// Of a server.
    Remote(File, Session),
}

impl Sink {
    /// Makes one that nobody else can have opened before.
    pub fn create(side: &Side, path: &[u8]) -> Result<Sink, Cause> {
        match side {
            Side::Local(tree) => Ok(Sink::Local(tree.create_new(path)?)),
            Side::Remote(remote) => {
                let file = remote.session.open(path, new_file())?;
                Ok(Sink::Remote(file, remote.session.clone()))
            }
        }
    }

    /// Its size is to be `bytes`.
    pub fn set_len(&self, bytes: u64) -> Result<(), Cause> {
        match self {
            Sink::Local(file) => Ok(file.set_len(bytes)?),
            Sink::Remote(file, _) => Ok(file.set_len(bytes)?),
        }
    }

    /// What was written survives the end of this process and of the server's.
    pub fn flush(&self) -> Result<(), Cause> {
        match self {
            Sink::Local(_) => Ok(()),
            Sink::Remote(file, _) => Ok(file.flush()?),
        }
    }

    /// Closes it, on disk where `sync`, and gives it, under the name `path`, what `like` says.
    /// Owner and mode go to the open file: another one may have its name by now, in a directory
    /// of somebody else, and would become a program of that owner's.
    pub fn finish(self, path: &[u8], sync: bool, like: &Like) -> Result<(), Cause> {
        match self {
            Sink::Local(file) => {
                dress_file(&file, like)?;
                if sync {
                    file.sync_all()?;
                }
                Ok(())
            }
            Sink::Remote(file, session) => {
                // Writes that come to the file later would end set-user-ID.
                if sync {
                    file.commit()?
                } else {
                    file.flush()?
                }
                let (uid, gid) = like.owner.unzip();
                file.set_attr(SetAttr { mode: Some(like.mode), uid, gid, ..SetAttr::default() })?;
                // Closed first: what is flushed then must not touch the times again.
                file.close()?;
                let times = SetAttr {
                    accessed: Some(SetTime::To(like.attr.accessed)),
                    modified: Some(SetTime::To(like.attr.modified)),
                    ..SetAttr::default()
                };
                Ok(session.set_attr(path, times, true).map(drop)?)
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
