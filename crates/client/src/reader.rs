//! Reading a file as a stream, ahead of its user.

use std::collections::VecDeque;
use std::io::Read;

use dafs_fabric::Buffer;

use crate::answer::unexpected;
use crate::call::Call;
use crate::core::Output;
use crate::error::Result;
use crate::file::File;
use crate::group::Group;

/// Windows that are asked for ahead.
const WINDOWS: usize = 4;
/// Bytes of a window, unless the session allows less.
const WINDOW_BYTES: usize = 1 << 20;

/// A stream over a file, with several windows under way.
///
/// A window holds the file as it was when it was asked for: writes of others that are
/// acknowledged after that may be missed, as with any buffered reader. Positional reads of
/// [`File`] have no such window.
pub struct Reader {
    file: File,
    group: Group,
    /// The next window begins here.
    ahead: u64,
    windows: usize,
    window_bytes: usize,
    /// Answers by window number, the front one first.
    arrived: VecDeque<Option<Result<(Buffer, usize)>>>,
    /// Number of the front window.
    front: u64,
    current: Option<Buffer>,
    position: usize,
    filled: usize,
    spare: Vec<Buffer>,
    end: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("file", &self.file).finish_non_exhaustive()
    }
}

impl File {
    /// Reads the file from `offset` on as a stream, ahead of its user.
    pub fn reader(&self, offset: u64) -> Reader {
        Reader::new(self.clone(), offset)
    }
}

impl Reader {
    fn new(file: File, offset: u64) -> Reader {
        let session = file.session().clone();
        let data_bytes_max = session.inner.lock().core.data_bytes_max();
        Reader {
            windows: if session.read_ahead { WINDOWS } else { 1 },
            window_bytes: WINDOW_BYTES.min(data_bytes_max),
            group: Group::new(session, None),
            file,
            ahead: offset,
            arrived: VecDeque::new(),
            front: 0,
            current: None,
            position: 0,
            filled: 0,
            spare: Vec::new(),
            end: false,
        }
    }

    /// The bytes that come next, in the memory where the transport put them; empty at the end
    /// of the file. Say with [`consume`](Self::consume) how many were used.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn next_chunk(&mut self) -> Result<&[u8]> {
        if self.position >= self.filled {
            self.advance()?;
        }
        let chunk = self.current.as_deref().and_then(|b| b.get(self.position..self.filled));
        Ok(chunk.unwrap_or(&[]))
    }

    /// Bytes of the chunk that were used.
    pub fn consume(&mut self, bytes: usize) {
        self.position = (self.position + bytes).min(self.filled);
    }

    /// Takes the next window; leaves no current one at the end.
    fn advance(&mut self) -> Result<()> {
        self.spare.extend(self.current.take());
        (self.position, self.filled) = (0, 0);
        if self.end {
            return Ok(());
        }
        self.ask()?;
        let (buffer, bytes) = loop {
            match self.arrived.front_mut() {
                Some(front) => {
                    if let Some(result) = front.take() {
                        self.arrived.pop_front();
                        self.front += 1;
                        break result?;
                    }
                }
                None => return Ok(()),
            }
            self.collect();
        };
        // A short window is the end of the file as it was then; what was read behind it is not
        // looked at.
        if bytes < self.window_bytes {
            self.end = true;
        }
        self.current = Some(buffer);
        self.filled = bytes;
        if !self.end {
            self.ask()?;
            self.group.flush();
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<()> {
        while self.arrived.len() < self.windows {
            let buffer = match self.spare.pop() {
                Some(buffer) => buffer,
                None => self.file.session().buffer(self.window_bytes)?,
            };
            let number = self.front + self.arrived.len() as u64;
            let len = u32::try_from(self.window_bytes).expect("at most DATA_BYTES_MAX");
            let call = Call::Read { file: self.file.clone(), offset: self.ahead, buffer, len };
            if let Err(Call::Read { buffer, .. }) = self.group.submit(number, call) {
                self.spare.push(buffer);
                if !self.arrived.is_empty() {
                    return Ok(());
                }
                let pause = std::time::Duration::from_millis(1);
                self.group.wait(usize::MAX, Some(pause));
                continue;
            }
            self.arrived.push_back(None);
            self.ahead = self.ahead.saturating_add(self.window_bytes as u64);
        }
        Ok(())
    }

    fn collect(&mut self) {
        for done in self.group.wait(1, None) {
            let index = usize::try_from(done.tag.wrapping_sub(self.front)).unwrap_or(usize::MAX);
            let result = match (done.result, done.buffer) {
                (Ok(Output::Read { bytes, .. }), Some(buffer)) => Ok((buffer, bytes)),
                (Err(error), _) => Err(error),
                (Ok(other), _) => Err(unexpected(&other)),
            };
            if let Some(slot) = self.arrived.get_mut(index) {
                *slot = Some(result);
            }
        }
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.next_chunk()?.len().min(into.len());
        if let (Some(buffer), Some(into)) = (self.current.take(), into.get_mut(..bytes)) {
            // By way of a span: payload is copied by its counted functions only.
            let posted = buffer.post();
            posted.span().copy_to(self.position, into);
            self.current = posted.take_back().ok();
        }
        self.consume(bytes);
        Ok(bytes)
    }
}
