//! Open files: positional reads and writes, of any size.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::Span;
use dafs_protocol::{
    Attr, CommitLevel, FileExtent, FileHandle, LockRange, LockRequest, OwnerKey, SetAttr,
    Stability, Status,
};

use crate::answer::{attr_of, unexpected};
use crate::core::{FileKey, Memory, Object, Output, Work};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::interrupt::{Interrupt, Until};
use crate::optimistic::References;

/// An open file. Clones are the same open; the last one to be dropped closes it in the
/// background, where errors are only logged: use [`close`](Self::close).
///
/// Files survive lost connections and restarts of the server. What was written without a commit
/// may be lost with the server; then the next [`commit`](Self::commit) or `close` says
/// [`WritesLost`](Status::WritesLost), once.
#[derive(Clone)]
pub struct File {
    pub(crate) inner: Arc<FileInner>,
}

pub(crate) struct FileInner {
    pub(crate) session: Arc<Handle>,
    pub(crate) key: FileKey,
    opened: Object,
    pub(crate) references: Arc<References>,
}

impl Drop for FileInner {
    fn drop(&mut self) {
        let inner = &self.session.inner;
        let mut state = inner.lock();
        if state.core.close_file(self.key) {
            inner.drive_close(&mut state);
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("key", &self.inner.key).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write(Stability),
}

impl File {
    pub(crate) fn new(session: Arc<Handle>, key: FileKey, opened: Object) -> File {
        File { inner: Arc::new(FileInner { session, key, opened, references: Arc::default() }) }
    }

    pub(crate) fn key(&self) -> FileKey {
        self.inner.key
    }

    pub(crate) fn session(&self) -> &Arc<Handle> {
        &self.inner.session
    }

    pub(crate) fn call(&self, work: Work) -> Result<Output<FileKey>> {
        self.inner.session.inner.call(None, work, Memory::None)
    }

    /// The file's handle when it was opened.
    pub fn handle(&self) -> FileHandle {
        self.inner.opened.handle
    }

    /// Where the server does not know the file's handle after a restart, `find` is asked for the
    /// path from the export's root that it has then; without an answer, the file is looked for
    /// where it was opened. What is found under another identity is not taken for it. `find` is
    /// called with the session locked: it must make no calls of it, nor wait for who does.
    pub fn found_by(&self, find: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static) {
        let mut state = self.inner.session.inner.lock();
        state.core.found_by(self.inner.key, find);
    }

    /// Attributes when it was opened; no message.
    pub fn opened_attr(&self) -> Attr {
        self.inner.opened.attr
    }

    /// Reads up to `into.len()` bytes at `offset`; fewer at the end of the file. The bytes are
    /// placed by the transport, not copied here; but a few that are in the cache of a server of this host
    /// are copied out of it without the server, where that allows it.
    ///
    /// # Errors
    /// [`Error`]; what `into` holds is then undefined.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        match self.read_optimistic(into, offset) {
            Some(bytes) => Ok(bytes),
            None => self.read_by_server(into, offset),
        }
    }

    #[inline(never)]
    fn read_by_server(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if let Some(bytes) = self.read_optimistic_rest(into, offset) {
            return Ok(bytes);
        }
        let bytes =
            self.inner.session.lend_mut(into, |span| self.transfer(span, offset, Way::Read))?;
        self.missed(offset, bytes);
        Ok(bytes)
    }

    /// Writes all of `from` at `offset`; returns its length. In the server's memory when it
    /// returns; see [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`Error`]; a part may have been written.
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<usize> {
        self.write_all(from, offset, Stability::Unstable)
    }

    /// As [`write_at`](Self::write_at), and on disk when it returns.
    ///
    /// # Errors
    /// As `write_at`.
    pub fn write_at_stable(&self, from: &[u8], offset: u64, how: Stability) -> Result<usize> {
        self.write_all(from, offset, how)
    }

    /// As [`read_at`](Self::read_at), into memory of an arena. Whoever else uses it meanwhile sees any
    /// mixture of bytes.
    ///
    /// # Errors
    /// As `read_at`.
    pub fn read_span_at(&self, into: &Span, offset: u64) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.transfer(into, offset, Way::Read)
    }

    /// As [`write_at_stable`](Self::write_at_stable), from memory of an arena.
    ///
    /// # Errors
    /// As `write_at_stable`.
    pub fn write_span_at(&self, from: &Span, offset: u64, how: Stability) -> Result<usize> {
        let mut written = 0;
        while written < from.len() {
            let at = offset.checked_add(written as u64).ok_or(Status::FBig)?;
            let rest = from.part(written, from.len() - written);
            match self.transfer(&rest, at, Way::Write(how))? {
                0 => return Err(Error::PeerProtocol("a write that writes nothing".into())),
                bytes => written += bytes,
            }
        }
        Ok(written)
    }

    fn write_all(&self, from: &[u8], offset: u64, stability: Stability) -> Result<usize> {
        let mut written = 0;
        while let Some(rest) = from.get(written..).filter(|rest| !rest.is_empty()) {
            let at = offset.checked_add(written as u64).ok_or(Status::FBig)?;
            let way = Way::Write(stability);
            let bytes = self.inner.session.lend(rest, |span| self.transfer(span, at, way))?;
            if bytes == 0 {
                return Err(Error::PeerProtocol("a write that writes nothing".into()));
            }
            written += bytes;
        }
        Ok(from.len())
    }

    /// Cuts a transfer into pieces and keeps several under way. Returns the bytes that were
    /// moved without a gap. No span is left when it returns.
    fn transfer(&self, span: &Span, offset: u64, way: Way) -> Result<usize> {
        /// Pieces under way; more gain nothing and keep slots from others.
        const PIECES_MAX: usize = 8;
        offset.checked_add(span.len() as u64).ok_or(Status::FBig)?;
        let inner = &self.inner.session.inner;
        let interrupt = Interrupt::watched();
        let until = Until { deadline: None, interrupt: interrupt.as_deref() };
        if until.is_over() {
            return Err(Error::Interrupted);
        }
        let mut state = inner.lock();
        let sink = state.take_sink(false);
        let piece_max = state.core.data_bytes_max();
        let (mut next, mut end, mut result) = (0, span.len(), Ok(()));
        loop {
            while next < end && result.is_ok() && state.sink(sink).outstanding < PIECES_MAX {
                if state.sink(sink).outstanding == 0 {
                    state = inner.wait_for_room(state, sink, until);
                }
                if !state.core.has_room() {
                    break;
                }
                let len = (end - next).min(piece_max);
                let work = self.piece(offset + next as u64, len, way);
                state.submit(sink, next as u64, None, work, Memory::Span(span.part(next, len)));
                next += len;
            }
            if state.sink(sink).outstanding == 0 && state.sink(sink).done.is_empty() {
                if next < end && result.is_ok() {
                    result = Err(Error::Interrupted);
                }
                break;
            }
            state = inner.wait(state, sink, 1, until);
            if state.sink(sink).done.is_empty() {
                result = Err(Error::Interrupted);
                state = inner.give_up(state, sink);
                break;
            }
            while let Some(done) = state.sink(sink).done.pop_front() {
                let start = usize::try_from(done.tag).unwrap_or(0);
                let piece = (span.len() - start).min(piece_max);
                match done.result {
                    // The end of the file, as it was for this piece.
                    Ok(output) if output.bytes() < piece => end = end.min(start + output.bytes()),
                    Ok(_) => {}
                    Err(error) => result = Err(error),
                }
            }
        }
        state.drop_sink(sink);
        result.map(|()| end)
    }

    fn piece(&self, offset: u64, len: usize, way: Way) -> Work {
        let file = self.inner.key;
        let len = u32::try_from(len).expect("pieces are at most DATA_BYTES_MAX");
        match way {
            Way::Read => Work::Read { file, offset, len },
            Way::Write(stability) => Work::Write { file, offset, len, stability, within: false },
        }
    }

    /// Writes `from` at the end of the file; returns where it went. Atomic up to the session's
    /// `data_bytes_max`, cut above that.
    ///
    /// # Errors
    /// [`Error`]. After [`OutcomeUnknown`](Status::OutcomeUnknown) it may have been written.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        let inner = &self.inner.session.inner;
        let piece_max = inner.lock().core.data_bytes_max();
        let mut start = None;
        for piece in from.chunks(piece_max) {
            let len = u32::try_from(piece.len()).expect("pieces are at most DATA_BYTES_MAX");
            let work = Work::Append { file: self.inner.key, len, stability: Stability::Unstable };
            let call = |span: &Span| inner.call(None, work, Memory::Span(span.clone()));
            match self.inner.session.lend(piece, call)? {
                Output::Written { bytes, offset } if bytes == piece.len() => {
                    start.get_or_insert(offset);
                }
                other => return Err(unexpected(&other)),
            }
        }
        match start {
            Some(start) => Ok(start),
            None => Ok(self.attr()?.size),
        }
    }

    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush), in one round trip where it fits
    /// one request: in the server's file system when it returns.
    ///
    /// # Errors
    /// As `write_at`, and as `flush`; then it may have been written.
    pub fn write_flushed(&self, from: &[u8], offset: u64) -> Result<()> {
        if from.len() > self.piece_max() {
            self.write_at(from, offset)?;
            return self.flush();
        }
        let len = u32::try_from(from.len()).map_err(|_| Status::TooBig)?;
        let work = Work::WriteFlush { file: self.inner.key, offset, len };
        let inner = &self.inner.session.inner;
        let call = |span: &Span| inner.call_beside(None, work, Memory::Span(span.clone()));
        match self.inner.session.lend(from, call)? {
            (Output::Written { bytes, .. }, Some(beside)) if bytes == from.len() => {
                Ok(beside.flushed?)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    pub(crate) fn piece_max(&self) -> usize {
        self.inner.session.inner.lock().core.data_bytes_max()
    }

    /// Makes all that was written by anybody, and the attributes, durable.
    ///
    /// # Errors
    /// [`WritesLost`](Status::WritesLost) when writes of this file were lost with the server;
    /// late errors of writes.
    pub fn commit(&self) -> Result<()> {
        self.call(Work::Commit {
            file: self.inner.key,
            offset: 0,
            len: 0,
            level: CommitLevel::File,
        })?;
        Ok(())
    }

    /// As [`commit`](Self::commit), without attributes that reading does not need.
    ///
    /// # Errors
    /// As `commit`.
    pub fn sync_data(&self) -> Result<()> {
        self.call(Work::Commit {
            file: self.inner.key,
            offset: 0,
            len: 0,
            level: CommitLevel::Data,
        })?;
        Ok(())
    }

    /// Hands what was written to the server's file system: its local programs see it, and late
    /// errors are told. Not durable.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn flush(&self) -> Result<()> {
        self.call(Work::Commit {
            file: self.inner.key,
            offset: 0,
            len: 0,
            level: CommitLevel::Flush,
        })?;
        Ok(())
    }

    /// Ends this open, for all clones. Local processes on the server then see what was written.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). The file is closed in any case.
    pub fn close(self) -> Result<Attr> {
        self.inner.references.end();
        attr_of(self.call(Work::Close { file: self.inner.key })?)
    }

    /// Attributes now.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attr(&self) -> Result<Attr> {
        attr_of(self.call(Work::FileAttr { file: self.inner.key })?)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_attr(&self, set: SetAttr) -> Result<Attr> {
        attr_of(self.call(Work::FileSetAttr { file: self.inner.key, set })?)
    }

    /// Truncates or extends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.set_attr(SetAttr { size: Some(bytes), ..SetAttr::default() })?;
        Ok(())
    }

    /// Where data begins, at or after `offset`; `None`: only a hole follows.
    ///
    /// # Errors
    /// [`Error`].
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, false)
    }

    /// Where a hole begins, at or after `offset`; the end of a file counts as one.
    ///
    /// # Errors
    /// [`Error`].
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, true)
    }

    fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>> {
        match self.call(Work::Seek { file: self.inner.key, offset, hole })? {
            Output::Offset(offset) => Ok(offset),
            other => Err(unexpected(&other)),
        }
    }

    /// As fallocate(2): mode 0 allocates, 1 keeps the size, 3 punches a hole, 0x10 zeroes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.call(Work::Fallocate { file: self.inner.key, mode, offset, len })?;
        Ok(())
    }

    /// Copies within the server, in one call: answers how many bytes, 0 where the source ends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let (file, to) = (self.inner.key, self.other(to)?);
        match self.call(Work::CopyRange { file, offset, to, to_offset, len })? {
            Output::Copied { bytes } => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Shares the blocks of a range (`len` 0: to the end) with another file, all or nothing.
    ///
    /// # Errors
    /// [`Error`].
    pub fn clone_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<()> {
        let (file, to) = (self.inner.key, self.other(to)?);
        self.call(Work::CloneRange { file, offset, to, to_offset, len }).map(drop)
    }

    /// Another file of the same session.
    fn other(&self, file: &File) -> Result<FileKey> {
        if Arc::ptr_eq(&self.inner.session, &file.inner.session) {
            Ok(file.inner.key)
        } else {
            Err(Status::XDev.into())
        }
    }

    /// Allocated ranges that touch `len` bytes from `offset` on, in order; true: none follows.
    ///
    /// # Errors
    /// [`Error`].
    pub fn extents(&self, offset: u64, len: u64) -> Result<(Vec<FileExtent>, bool)> {
        match self.call(Work::Extents { file: self.inner.key, offset, len })? {
            Output::Extents { extents, end } => Ok((extents, end)),
            other => Err(unexpected(&other)),
        }
    }

    /// Locks a range, or the whole file, for an owner; waits for it, or fails with
    /// [`Again`](Status::Again). Needs an open for reading (shared) or writing (exclusive),
    /// whole-file locks any. While the server waits for its clients after a restart, also a
    /// lock without `wait` waits.
    ///
    /// Locks survive lost connections and restarts of the server. Where they do not (the server
    /// had given this client up), every later call on the file but its close fails with
    /// [`LocksLost`](Status::LocksLost).
    ///
    /// # Errors
    /// [`Again`](Status::Again); [`Deadlock`](Status::Deadlock) for POSIX owners;
    /// [`Error::Interrupted`], after which it holds nothing that it did not hold before.
    pub fn lock(&self, lock: &LockRequest, wait: bool) -> Result<()> {
        self.inner.session.inner.settle_owner(lock.owner)?;
        self.call(Work::Lock { file: self.inner.key, lock: *lock, wait }).map(drop)
    }

    /// Gives a range back, also a part of what was locked, also one that was not.
    ///
    /// # Errors
    /// [`Error`].
    pub fn unlock(&self, owner: OwnerKey, range: LockRange) -> Result<()> {
        self.inner.session.inner.settle_owner(owner)?;
        self.call(Work::Unlock { file: self.inner.key, owner, range }).map(drop)
    }

    /// The lock that stands against this one, if any; true: its owner is one of this session's
    /// client. Waits where the server waits for its clients after a restart.
    ///
    /// # Errors
    /// [`Error`].
    pub fn test_lock(&self, lock: &LockRequest) -> Result<Option<(LockRequest, bool)>> {
        /// Between questions while the server cannot know.
        const PAUSE: Duration = Duration::from_millis(100);
        loop {
            match self.call(Work::LockTest { file: self.inner.key, lock: *lock }) {
                Ok(Output::Conflict(held)) => return Ok(held),
                Ok(other) => return Err(unexpected(&other)),
                Err(error) if error.status() == Some(Status::Grace) => {
                    self.inner.session.inner.pause(PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
