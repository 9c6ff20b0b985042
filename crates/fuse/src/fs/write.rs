//! Writing, and making durable what was written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_client::{Error, KeptMemory, KeptOptions};
use dafs_protocol::Status;

use super::DafsFs;
use super::error::Errno;
use super::flushes::Turn;
use super::nodes::{Node, OpenFile};
use crate::kernel::{Answer, Caller, RequestMemory};
use crate::planted::{Defect, planted};

/// Bytes of a first write of a new file that are flushed with it.
const BEGINNING_MAX: usize = 64 << 10;
/// Data of this size and more is half of the memory of its request, and not copied to be kept.
const SHARED_MIN: usize = 512 << 10;
/// Bytes of memory of the kept writes of an open file with which a flush begins.
const FLUSH_AT: usize = 4 << 20;
/// Beyond that it is waited for.
const KEPT_MAX: usize = 16 << 20;
/// Of all files.
const KEPT_ALL_MAX: usize = 128 << 20;
/// Bytes copied within the server before the kernel is answered.
const COPY_MAX: u64 = 1 << 30;
/// Calls at once that wait until the kernel has forgotten pages: half of the threads that answer,
/// so that the reads for which those pages wait always find one.
const FORGETTING_MAX: usize = 128;

impl DafsFs {
    pub(super) fn write(
        &self,
        open: &Arc<OpenFile>,
        offset: u64,
        (data, memory): (&[u8], Option<&Arc<RequestMemory>>),
        flags: u32,
        from_cache: bool,
    ) -> Result<Answer, Errno> {
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
                    open.written();
                    Err(error.into())
                }
            };
        }
        // A flush that begins now does not cover it: it is to be flushed again.
        open.written();
        let outcome = if flags & libc::O_APPEND != 0 && !from_cache {
            open.node.tell_size(offset.saturating_add(data.len() as u64));
            self.append(open, offset, data)
        } else {
            // Large data stays where the request was read to.
            let memory = memory.filter(|_| data.len() >= SHARED_MIN);
            let memory = memory.map(|memory| memory.clone() as Arc<dyn AsRef<[u8]> + Send + Sync>);
            // Others may have cut the file since the kernel was told its size.
            let within = from_cache && !planted(Defect::MappedPageExtends);
            let options = KeptOptions { within, memory: memory.as_ref() };
            open.file.write_kept_with(data, offset, options).map_err(Errno::from)
        };
        open.written();
        if open.direct && !from_cache {
            self.kernel_forgets_written(&open.node, offset, data.len());
        }
        let kept = outcome?;
        if stable && !from_cache {
            self.commit(open, flags & libc::O_SYNC != libc::O_SYNC)?;
        } else if kept.of_open > FLUSH_AT || kept.of_all > KEPT_ALL_MAX {
            match self.relieve(open, kept) {
                // It was written all the same.
                Ok(()) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Answer::Written(written))
    }

    fn append(
        &self,
        open: &Arc<OpenFile>,
        expected: u64,
        data: &[u8],
    ) -> Result<KeptMemory, Errno> {
        let (at, kept) = match open.file.append_kept(data) {
            Err(error) if error.status() == Some(Status::OutcomeUnknown) => {
                self.append_again(open, expected, data)?
            }
            other => other?,
        };
        if at != expected {
            // The kernel believes that the file ends somewhere else. What a descriptor that became
            // one for appends writes through the cache has a page that the kernel holds until it is
            // answered: then the next open forgets it.
            open.node.is_cached_after_change();
            open.node.is_new_no_more();
            if open.direct {
                self.kernel_forgets(open.node.number);
            } else {
                self.kernel_forgets_attributes(open.node.number);
            }
        }
        Ok(kept)
    }

    /// The server restarted while an append was under way: looks whether it is there.
    fn append_again(
        &self,
        open: &OpenFile,
        expected: u64,
        data: &[u8],
    ) -> Result<(u64, KeptMemory), Errno> {
        let end = open.file.attr()?.size;
        if end == expected {
            return Ok(open.file.append_kept(data)?);
        }
        let mut there = vec![0; data.len()];
        let read = open.file.read_at(&mut there, expected)?;
        let is_there = read == data.len() && there == data;
        if is_there { Ok((expected, open.file.kept_memory())) } else { Err(Errno::IO) }
    }

    /// Bytes went past the kernel's cache: they lie below what it may have read into it meanwhile,
    /// where somebody has the file open otherwise. Before the write is answered: what is read after
    /// that has them. (Kernels do so themselves since the end of 2025; those before only where
    /// pages are there when the write begins.) Not of a write through the cache, whose pages the
    /// kernel holds until it is answered. It is one at a time of a file, since
    /// kernels write a file in parallel only where nobody has it cached (see `open_direct`), and
    /// not of the requests that they count with those that read ahead: a page for which this waits
    /// gets its answer.
    fn kernel_forgets_written(&self, node: &Node, offset: u64, len: usize) {
        let cached = len > 0 && node.is_cached_after_change();
        if !cached || planted(Defect::OldBelowDirectWrite) {
            return;
        }
        let range = i64::try_from(offset).ok().zip(i64::try_from(len).ok());
        if let (Some(notifier), Some((offset, len))) = (self.notifier.get(), range) {
            if self.forgetting.fetch_add(1, Ordering::Relaxed) < FORGETTING_MAX {
                let _ = notifier.inval_inode(node.number, offset, len);
            }
            self.forgetting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The data of a file that somebody opened is about to be changed by the caller: on a disk the
    /// rights of who writes say whether setuid and setgid stay.
    pub(super) fn written_by(&self, open: &OpenFile, caller: &Caller) {
        if self.options.all_users && caller.uid != 0 && open.is_written_by_others() {
            open.file.written_for(&self.as_caller(caller));
        }
    }

    /// The data of a file was changed, which may have ended setuid and setgid: what the kernel
    /// believes of that ends before the change is answered.
    pub(super) fn kernel_forgets_privileges(&self, node: &Node) {
        if node.may_lose_privileges() {
            self.kernel_forgets_attributes(node.number);
        }
    }

    /// What the kernel believes of an object's attributes is not true any more.
    pub(super) fn kernel_forgets_attributes(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            // It may not know the object any more.
            let _ = notifier.inval_inode(node, -1, 0);
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
        let (mut turn, before) = open.flushes.turn()?;
        open.take_dirty();
        let outcome = if data_only { open.file.sync_data() } else { open.file.commit() };
        before.and(self.end_flush(open, &mut turn, outcome))
    }

    /// Hands what was written to the server's file system, where it is safe from an end of the
    /// server; errors of writes are told. A flush under way is waited for, and what it failed with
    /// told here too.
    pub(super) fn flush_file(&self, open: &OpenFile) -> Result<(), Errno> {
        let (mut turn, before) = open.flushes.turn()?;
        if open.take_dirty() {
            let outcome = self.end_flush(open, &mut turn, open.file.flush());
            return before.and(outcome);
        }
        before.and(open.take_failed())
    }

    pub(super) fn end_flush(
        &self,
        open: &OpenFile,
        turn: &mut Turn<'_>,
        outcome: dafs_client::Result<()>,
    ) -> Result<(), Errno> {
        if matches!(outcome, Err(Error::Interrupted)) {
            open.written();
        }
        let outcome = outcome.map_err(Errno::from);
        turn.tell(outcome);
        outcome?;
        open.take_failed()
    }

    /// Much is kept: a flush begins, and is waited for where it is too much.
    fn relieve(&self, open: &OpenFile, kept: KeptMemory) -> Result<(), Errno> {
        if kept.of_all > KEPT_ALL_MAX {
            return self.relieve_all(open);
        }
        if kept.of_open > KEPT_MAX {
            // Nearly always that of one that was begun.
            let (turn, before) = open.flushes.turn()?;
            drop(turn);
            before?;
            if open.file.kept_memory().of_open > KEPT_MAX {
                return self.flush_file(open);
            }
        }
        open.flushes.begin_ahead(|| {
            let ahead = open.take_dirty().then(|| open.file.flush_ahead());
            if let Some(None) = ahead {
                open.written();
            }
            ahead.flatten()
        })
    }

    /// Flushes the files of which most is kept, until a quarter is free.
    fn relieve_all(&self, own: &OpenFile) -> Result<(), Errno> {
        let Ok(_alone) = self.relieved.try_lock() else { return self.flush_file(own) };
        let opens = self.files.all().into_iter();
        let opens = opens.map(|open| (open.file.kept_memory().of_open, open)).collect();
        let mut outcome = Ok(());
        for open in largest(opens, own.file.kept_memory().of_all, KEPT_ALL_MAX / 4 * 3) {
            match self.flush_file(&open) {
                Err(Errno::INTR) => return Err(Errno::INTR),
                Err(errno) if std::ptr::eq(&*open, own) => outcome = Err(errno),
                Err(errno) => open.set_failed(errno),
                Ok(()) => {}
            }
        }
        outcome
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
        // What is set after this would have no close that tells of it.
        open.node.is_new_no_more();
        let outcome = self.settle(&open.node).and_then(|()| self.flush_file(&open));
        self.closed_by(&open.node, owner);
        outcome.map(|()| Answer::Done)
    }

    pub(super) fn fallocate(
        &self,
        open: &OpenFile,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<Answer, Errno> {
        self.flush_node(&open.node)?;
        open.written();
        // Space and zeros, which the kernel asks for, are the same twice.
        self.repeated(|| Ok(open.file.fallocate(mode, offset, len)))?;
        Ok(Answer::Done)
    }

    pub(super) fn copy_range(
        &self,
        (from, offset): (&OpenFile, u64),
        (to, to_offset): (&OpenFile, u64),
        len: u64,
    ) -> Result<Answer, Errno> {
        self.flush_node(&to.node)?;
        to.written();
        // The source ends where it ends when a copy begins. Within one file it may be longer after the
        // first, and a second would go on with what that has made: the caller is told of a short one.
        let one_only = from.node.number == to.node.number;
        let (len, mut copied) = (len.min(COPY_MAX), 0);
        while copied < len && !(one_only && copied > 0) {
            let rest = len - copied;
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

/// Those of the largest numbers, without which `all` comes to `goal`.
fn largest<T>(mut numbered: Vec<(usize, T)>, all: usize, goal: usize) -> Vec<T> {
    numbered.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    let mut left = all;
    let chosen = numbered.into_iter().take_while(|(number, _)| {
        let goes_on = left > goal && *number > 0;
        left = left.saturating_sub(*number);
        goes_on
    });
    chosen.map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_keep_most_are_flushed_first() {
        let kept = || vec![(3, 'a'), (0, 'b'), (7, 'c'), (5, 'd')];
        assert_eq!(largest(kept(), 15, 11), ['c']);
        assert_eq!(largest(kept(), 15, 8), ['c']);
        assert_eq!(largest(kept(), 15, 7), ['c', 'd']);
        assert_eq!(largest(kept(), 99, 7), ['c', 'd', 'a']);
        assert_eq!(largest(kept(), 15, 15), []);
    }
}
