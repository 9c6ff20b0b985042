//! Writing, and making durable what was written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_client::Error;
use dafs_protocol::Status;

use super::DafsFs;
use super::error::Errno;
use super::files::OpenFile;
use super::nodes::Node;
use crate::kernel::Answer;

/// Bytes of a first write of a new file that are flushed with it.
const BEGINNING_MAX: usize = 64 << 10;
/// Bytes of a file that are kept between two flushes.
const KEPT_MAX: usize = 8 << 20;
/// Bytes of all files.
const KEPT_ALL_MAX: usize = 128 << 20;
/// Bytes copied within the server before the kernel is answered.
const COPY_MAX: u64 = 1 << 30;

impl DafsFs {
    pub(super) fn write(
        &self,
        fh: u64,
        offset: u64,
        data: &[u8],
        flags: u32,
        from_cache: bool,
    ) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        let flags = flags as i32;
        let written = u32::try_from(data.len()).map_err(|_| Errno::INVAL)?;
        // The kernel itself asks for the rest of O_SYNC where it caches.
        let stable = self.options.sync || (open.direct && flags & libc::O_DSYNC != 0);
        let begins = open.is_first_write() && offset == 0 && data.len() <= BEGINNING_MAX;
        if begins && !stable && !from_cache && flags & libc::O_APPEND == 0 {
            // Most small files are written at once, and closed: there is nothing to flush then.
            return match open.file.write_flushed(data, offset) {
                Ok(()) => Ok(Answer::Written(written)),
                Err(error) => {
                    // It may have been written.
                    open.written(0);
                    Err(error.into())
                }
            };
        }
        // A flush that begins now does not cover it: it is to be flushed again.
        open.written(0);
        let outcome = if flags & libc::O_APPEND != 0 && !from_cache {
            let outcome = self.append(&open, offset, data);
            self.kernel_forgets_appended(&open, offset, data.len());
            outcome
        } else {
            open.file.write_kept(data, offset).map_err(Errno::from)
        };
        let kept = open.written(data.len());
        let all = self.kept.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        outcome?;
        if stable && !from_cache {
            self.commit(&open, flags & libc::O_SYNC != libc::O_SYNC)?;
        } else if kept > KEPT_MAX || all > KEPT_ALL_MAX {
            self.flush_file(&open)?;
        }
        Ok(Answer::Written(written))
    }

    fn append(&self, open: &Arc<OpenFile>, expected: u64, data: &[u8]) -> Result<(), Errno> {
        let at = match open.file.append_kept(data) {
            Err(error) if error.status() == Some(Status::OutcomeUnknown) => {
                self.append_again(open, expected, data)?
            }
            other => other?,
        };
        if at != expected {
            // The kernel believes that the file ends somewhere else.
            self.kernel_forgets(open.node.number);
        }
        Ok(())
    }

    /// The server restarted while an append was under way: looks whether it is there.
    fn append_again(&self, open: &OpenFile, expected: u64, data: &[u8]) -> Result<u64, Errno> {
        let end = open.file.attr()?.size;
        if end == expected {
            return Ok(open.file.append_kept(data)?);
        }
        let mut there = vec![0; data.len()];
        let read = open.file.read_at(&mut there, expected)?;
        if read == data.len() && there == data { Ok(expected) } else { Err(Errno::IO) }
    }

    /// Appended bytes went past the kernel's cache: they lie below what it may have read into it
    /// meanwhile, where somebody has the file open otherwise. Before the append is answered: what
    /// is read after that has them. One at a time of a file, and not of the requests that the
    /// kernel counts with those that read ahead: a page for which this waits gets its answer.
    fn kernel_forgets_appended(&self, open: &OpenFile, offset: u64, len: usize) {
        open.node.tell_size(offset.saturating_add(len as u64));
        if len == 0 || !open.node.is_cached_after_change() {
            return;
        }
        let range = i64::try_from(offset).ok().zip(i64::try_from(len).ok());
        if let (Some(notifier), Some((offset, len))) = (self.notifier.get(), range) {
            let _ = notifier.inval_inode(open.node.number, offset, len);
        }
    }

    /// What the kernel caches of a file is not true any more.
    pub(super) fn kernel_forgets(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            // It may not know the file any more.
            let _ = notifier.inval_inode(node, 0, 0);
        }
    }

    fn commit(&self, open: &OpenFile, data_only: bool) -> Result<(), Errno> {
        let kept = open.take_dirty();
        let outcome = if data_only { open.file.sync_data() } else { open.file.commit() };
        self.end_flush(open, kept, outcome)
    }

    /// Hands what was written to the server's file system, where it is safe from an end of the
    /// server; errors of writes are told.
    pub(super) fn flush_file(&self, open: &OpenFile) -> Result<(), Errno> {
        match open.take_dirty() {
            Some(kept) => self.end_flush(open, Some(kept), open.file.flush()),
            None => open.take_failed(),
        }
    }

    pub(super) fn end_flush(
        &self,
        open: &OpenFile,
        kept: Option<usize>,
        outcome: dafs_client::Result<()>,
    ) -> Result<(), Errno> {
        let bytes = kept.unwrap_or(0);
        if matches!(outcome, Err(Error::Interrupted)) {
            open.written(bytes);
        } else {
            self.kept.fetch_sub(bytes, Ordering::Relaxed);
        }
        outcome?;
        open.take_failed()
    }

    /// Before the server itself changes a file's size or content, and before a lock is given up:
    /// what is kept must not be written again over what comes then. Errors of writes are told at
    /// the next flush or commit of the open through which they were made.
    ///
    /// # Errors
    /// `EINTR`.
    pub(super) fn flush_node(&self, node: &Node) -> Result<(), Errno> {
        for open in node.opens() {
            match self.flush_file(&open) {
                Err(Errno::INTR) => return Err(Errno::INTR),
                Err(errno) => open.set_failed(errno),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    pub(super) fn fsync(&self, fh: u64, data_only: bool) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        self.commit(&open, data_only)?;
        Ok(Answer::Done)
    }

    /// A descriptor was closed: errors of writes are told, and the locks of its process end.
    pub(super) fn flush(&self, fh: u64, owner: u64) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        let outcome = self.flush_file(&open);
        self.closed_by(&open.node, owner);
        outcome.map(|()| Answer::Done)
    }

    pub(super) fn fallocate(
        &self,
        fh: u64,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        self.flush_node(&open.node)?;
        open.written(0);
        // Space and zeros, which the kernel asks for, are the same twice.
        self.repeated(|| Ok(open.file.fallocate(mode, offset, len)))?;
        Ok(Answer::Done)
    }

    pub(super) fn copy_range(
        &self,
        fh: u64,
        offset: u64,
        to_fh: u64,
        to_offset: u64,
        len: u64,
    ) -> Result<Answer, Errno> {
        let (from, to) = (self.files.get(fh)?, self.files.get(to_fh)?);
        self.flush_node(&to.node)?;
        to.written(0);
        let mut copied = 0;
        while copied < len.min(COPY_MAX) {
            let rest = len.min(COPY_MAX) - copied;
            match from.file.copy_range(offset + copied, &to.file, to_offset + copied, rest) {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Answer::Written(u32::try_from(copied).unwrap_or(u32::MAX)))
    }
}
