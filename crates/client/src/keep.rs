//! Writes of which a copy is kept until they are safe from an end of the server's process.
//!
//! What is written again is what this session wrote last, in the order in which the server
//! acknowledged it: a cut ([`File::set_len`], by an open file or a name, or by opening or putting the
//! file), a hole, a copy within the server or a plain write that was acknowledged later is not
//! undone. A write that was under way together with such a change, in the same place, has no order
//! with it, and is kept no longer: as that of a plain write, its loss is told by the next flush or
//! commit. A change that failed, or whose outcome is not known, leaves what is kept as it is. Times
//! and modes that were set may change by what is written again: flush before.

use std::sync::Arc;

use dafs_protocol::{CommitLevel, Stability};

use crate::answer::unexpected;
use crate::core::{KeptMemory, Output, SharedBytes, Work};
use crate::error::Result;
use crate::file::File;

/// How a kept write is made. What is acknowledged after it, a cut too, is not undone where it is
/// written again.
#[derive(Clone, Copy, Default)]
pub struct KeptOptions<'a> {
    /// Never beyond the end of the file as the server knows it then: what lies there is left out.
    /// (Where it is written again, it may make the file longer.) For pages of a mapping, whose file
    /// others may have cut.
    pub within: bool,
    /// The bytes lie in this memory, which is held in place of a copy.
    pub memory: Option<&'a Arc<dyn AsRef<[u8]> + Send + Sync>>,
}

impl File {
    /// As [`write_at`](Self::write_at), and a copy is kept until a flush, commit or close of this
    /// file succeeds: when the server's process ends before that it is written again, before any
    /// other call goes on, as far as nothing has replaced or cut it since. What is kept takes memory, this much after the write: flush now and
    /// then.
    ///
    /// # Errors
    /// As `write_at`.
    pub fn write_kept(&self, from: &[u8], offset: u64) -> Result<KeptMemory> {
        self.write_kept_with(from, offset, KeptOptions::default())
    }

    /// As [`write_kept`](Self::write_kept), in another way.
    ///
    /// # Errors
    /// As there.
    pub fn write_kept_with(
        &self,
        from: &[u8],
        offset: u64,
        options: KeptOptions<'_>,
    ) -> Result<KeptMemory> {
        let KeptOptions { within, memory } = options;
        let (mut at, mut kept) = (offset, KeptMemory::default());
        for piece in from.chunks(self.piece_max()) {
            let len = u32::try_from(piece.len()).expect("pieces are at most DATA_BYTES_MAX");
            let stability = Stability::Unstable;
            let work = Work::Write { file: self.inner.key, offset: at, len, stability, within };
            let shared = memory.and_then(|memory| SharedBytes::part_of(memory, piece));
            (_, kept) = self.call_kept(work, piece, shared)?;
            at += piece.len() as u64;
        }
        Ok(kept)
    }

    /// As [`append`](Self::append), kept as [`write_kept`](Self::write_kept) does; not kept where
    /// the file was opened with [`OpenOptions::append`](crate::OpenOptions::append), through which
    /// nothing can be written again at its place.
    ///
    /// # Errors
    /// As `append`.
    pub fn append_kept(&self, from: &[u8]) -> Result<(u64, KeptMemory)> {
        let (mut start, mut kept) = (None, KeptMemory::default());
        for piece in from.chunks(self.piece_max()) {
            let len = u32::try_from(piece.len()).expect("pieces are at most DATA_BYTES_MAX");
            let work = Work::Append { file: self.inner.key, len, stability: Stability::Unstable };
            let (offset, now) = self.call_kept(work, piece, None)?;
            start.get_or_insert(offset);
            kept = now;
        }
        start.map_or_else(|| Ok((self.attr()?.size, kept)), |start| Ok((start, kept)))
    }

    /// Begins a [`flush`](Self::flush) without waiting for its end. `None` where too many calls are
    /// under way.
    pub fn flush_ahead(&self) -> Option<FlushAhead> {
        let (file, level) = (self.inner.key, CommitLevel::Flush);
        let work = Work::Commit { file, offset: 0, len: 0, level };
        let sink = self.inner.session.inner.begin(None, work)?;
        Some(FlushAhead { file: self.clone(), sink })
    }

    /// What is kept now. Does not block.
    pub fn kept_memory(&self) -> KeptMemory {
        self.inner.session.inner.lock().core.kept_memory(self.inner.key)
    }

    fn call_kept(
        &self,
        work: Work,
        piece: &[u8],
        shared: Option<SharedBytes>,
    ) -> Result<(u64, KeptMemory)> {
        let inner = &self.inner.session.inner;
        match self.inner.session.lend(piece, |span| inner.call_kept(work, span, shared))? {
            (Output::Written { bytes, offset }, kept) if bytes == piece.len() => Ok((offset, kept)),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// A flush that was begun. Dropped, it may still be done, and nobody is told of its end.
pub struct FlushAhead {
    file: File,
    sink: usize,
}

impl FlushAhead {
    /// Blocks until it has ended: how, once. `None` where an [`Interrupt`](crate::Interrupt) ended
    /// the wait; it goes on.
    pub fn wait_for_end(&mut self) -> Option<Result<()>> {
        let answer = self.file.inner.session.inner.answer_or_interrupt(self.sink)?;
        Some(answer.map(drop))
    }

    /// Its answer is there. Does not block.
    pub fn is_over(&self) -> bool {
        !self.file.inner.session.inner.lock().sink(self.sink).done.is_empty()
    }
}

impl Drop for FlushAhead {
    fn drop(&mut self) {
        self.file.inner.session.inner.lock().drop_sink(self.sink);
    }
}
