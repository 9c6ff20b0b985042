//! Reading data where the server has it.

use dafs_fabric::{Buffer, Span};
use dafs_protocol::Status;

use crate::core::{Memory, Output, Work};
use crate::error::{Error, Result};
use crate::file::File;
use crate::interrupt::{Interrupt, Until};
use crate::loan::Loan;

/// A range of a file to be read in place: [`File::lend`].
#[derive(Debug)]
pub struct Lent {
    parts: Vec<Part>,
    bytes: usize,
}

#[derive(Debug)]
enum Part {
    Mapped(Loan),
    Copied(Buffer, usize),
}

impl Lent {
    /// How many bytes: fewer than were asked for at the end of the file.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of it is in the server's cache. False: some of it was copied into memory of this process.
    pub fn is_mapped(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Mapped(_)))
    }

    /// The bytes, in order: in as many pieces as the cache, and this process, have them.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(|part| {
            let (mapped, copied) = match part {
                Part::Mapped(loan) => (Some(loan.pieces()), None),
                Part::Copied(buffer, bytes) => (None, buffer.get(..*bytes)),
            };
            mapped.into_iter().flatten().chain(copied)
        })
    }

    /// The bytes, where they are one piece.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let mut pieces = self.pieces();
        let first = pieces.next().unwrap_or(&[]);
        pieces.next().is_none().then_some(first)
    }
}

impl File {
    /// Up to `len` bytes at `offset`, as they are now, to be read where they are: in the server's cache, where this
    /// process may read that, and has it; what it does not have is copied, as by [`read_at`](Self::read_at). That
    /// is so over other networks, for users whom the server does not let read its memory, of what is not cached
    /// or lies in too many places, and beyond what the server lends at a time (16 MiB to a session, 64 MiB
    /// to a user, and less of a small cache).
    ///
    /// What others write meanwhile goes elsewhere: who wants to see it asks again. The memory is the server's: what
    /// is held for long it lacks, and nobody in a child of this process may look at it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lend(&self, offset: u64, len: usize) -> Result<Lent> {
        /// Requests under way.
        const REQUESTS: usize = 8;
        let piece_max = self.piece_max();
        let mut lent = Lent { parts: Vec::new(), bytes: 0 };
        let mut left = len;
        // No piece of it begins or ends beyond that.
        offset.checked_add(len as u64).ok_or(Status::FBig)?;
        while left > 0 {
            let at = offset.checked_add(lent.bytes as u64).ok_or(Status::FBig)?;
            // Cut where the cache is, too.
            let first = piece_max - usize::try_from(at % piece_max as u64).unwrap_or(0);
            let mut pieces = Vec::new();
            while left > 0 && pieces.len() < REQUESTS {
                let most = if pieces.is_empty() { first } else { piece_max };
                pieces.push(u32::try_from(most.min(left)).map_err(|_| Status::TooBig)?);
                left -= most.min(left);
            }
            if !self.lend_pieces(at, &pieces, &mut lent)? {
                break;
            }
        }
        Ok(lent)
    }

    /// As [`read_at`](Self::read_at); what is lent is not in `into`, but in the loan. Of more than one request nothing
    /// is.
    ///
    /// # Errors
    /// As `read_at`.
    pub fn read_or_lend(&self, into: &mut [u8], offset: u64) -> Result<(usize, Option<Loan>)> {
        let session = self.session();
        if into.is_empty() || into.len() > self.piece_max() {
            return Ok((self.read_at(into, offset)?, None));
        }
        let read = match self.read_optimistic(into, offset) {
            None => self.read_optimistic_rest(into, offset),
            read => read,
        };
        if let Some(bytes) = read {
            return Ok((bytes, None));
        }
        offset.checked_add(into.len() as u64).ok_or(Status::FBig)?;
        let len = u32::try_from(into.len()).map_err(|_| Status::TooBig)?;
        let work = Work::Lend { file: self.key(), offset, len };
        let call = |span: &Span| session.inner.call(None, work, Memory::Span(span.clone()));
        match session.lend_mut(into, call)? {
            Output::Lent { bytes, mut loan, .. } => {
                if let Some(loan) = &mut loan {
                    loan.set_session(session.returns());
                }
                self.missed(offset, bytes);
                Ok((bytes, loan))
            }
            other => Err(crate::answer::unexpected(&other)),
        }
    }

    /// True: there may be more.
    fn lend_pieces(&self, offset: u64, pieces: &[u32], lent: &mut Lent) -> Result<bool> {
        let session = self.session();
        let interrupt = Interrupt::watched();
        let until = Until { deadline: None, interrupt: interrupt.as_deref() };
        if until.is_over() {
            return Err(Error::Interrupted);
        }
        let buffers = pieces.iter().map(|len| session.buffer_to_fill(*len as usize));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let (inner, mut at) = (&session.inner, offset);
        let mut state = inner.lock();
        let sink = state.take_sink(false);
        for ((tag, buffer), len) in (0..).zip(buffers).zip(pieces) {
            state = inner.wait_for_room(state, sink, until);
            if !state.core.has_room() {
                break;
            }
            let work = Work::Lend { file: self.key(), offset: at, len: *len };
            at += u64::from(*len);
            state.submit(sink, tag, None, work, Memory::Buffer(buffer.post()));
        }
        let want = state.sink(sink).outstanding + state.sink(sink).done.len();
        state = inner.wait(state, sink, want, until);
        let mut done: Vec<_> = state.sink(sink).done.drain(..).collect();
        if done.len() < want {
            state = inner.give_up(state, sink);
        }
        state.drop_sink(sink);
        drop(state);
        if done.len() < pieces.len() {
            return Err(Error::Interrupted);
        }
        done.sort_unstable_by_key(|done| done.tag);
        for (done, len) in done.into_iter().zip(pieces) {
            let (bytes, loan) = match done.result? {
                Output::Lent { bytes, loan, .. } => (bytes, loan),
                other => return Err(crate::answer::unexpected(&other)),
            };
            match (loan, done.buffer) {
                (Some(mut loan), _) => {
                    loan.set_session(session.returns());
                    lent.parts.push(Part::Mapped(loan));
                }
                (None, Some(buffer)) if bytes > 0 => lent.parts.push(Part::Copied(buffer, bytes)),
                _ => {}
            }
            lent.bytes += bytes;
            if bytes < *len as usize {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
