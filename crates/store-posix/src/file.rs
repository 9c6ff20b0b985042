//! An open regular file.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use dafs_fabric::{SgList, Span, sg_bytes};
use dafs_protocol::{Attr, FileHandle, FileKind, SetAttr, Status};

use super::attr::{self, Stat};
use super::data::{clear, data_error, read, write};
use super::direct_fd::Descriptors;
use super::handles::generation;
use super::sys::{self, Errno};
use super::transfer::Way;
use super::{Inner, Shared, TELLS_STORES, ranges};
use dafs_store::{Answer, Caller, Extents, File, FileId, Found, Pending, ReadEnd, SeekKind};

/// The files that are open, one object each.
#[derive(Default)]
pub(super) struct OpenFiles {
    files: Mutex<HashMap<FileId, Weak<PosixFile>>>,
}

impl OpenFiles {
    pub(super) fn get(&self, id: FileId) -> Option<Arc<PosixFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?.upgrade()
    }

    pub(super) fn is_open(&self, id: FileId) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&id).is_some_and(|file| file.strong_count() != 0)
    }

    /// The file of `id` and `handle`, now also with this descriptor; `fresh`: just made.
    pub(super) fn add(
        &self,
        inner: &Shared,
        id: FileId,
        handle: &FileHandle,
        opened: Descriptor,
        fresh: bool,
    ) -> Arc<PosixFile> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.get(&id).and_then(Weak::upgrade);
        let file = known.unwrap_or_else(|| {
            let file = Arc::new(PosixFile {
                inner: inner.clone(),
                id,
                generation: generation(handle),
                reader: OnceLock::new(),
                writer: OnceLock::new(),
                is_fresh: (fresh && !inner.syncs_names(id)).then(|| Arc::new(true.into())),
                answers_at_once: AtomicBool::new(inner.local),
                tells_stores: OnceLock::new(),
                direct: Descriptors::default(),
            });
            files.insert(id, Arc::downgrade(&file));
            file
        });
        drop(files);
        file.give(opened);
        file
    }

    fn remove(&self, id: FileId) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.get(&id).is_some_and(|file| file.strong_count() == 0) {
            files.remove(&id);
        }
    }
}

/// A descriptor and what it is good for.
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// Descriptors come as openers need them: the first that reads and the first that writes stay.
pub(super) struct PosixFile {
    inner: Shared,
    id: FileId,
    generation: Option<u64>,
    reader: OnceLock<Arc<OwnedFd>>,
    writer: OnceLock<Arc<OwnedFd>>,
    /// Made here, where fsync leaves names to others: none of them was synced yet.
    is_fresh: Option<Arc<AtomicBool>>,
    /// Reads of what is in memory can be told from others.
    answers_at_once: AtomicBool,
    /// See [`File::has_unwritten`].
    tells_stores: OnceLock<bool>,
    pub(super) direct: Descriptors,
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        self.inner.files.remove(self.id);
        let fds = (self.reader.take(), self.writer.take());
        let Some(fd) = fds.1.as_ref().or(fds.0.as_ref()) else { return };
        let stat = Stat::of(fd, true).ok().filter(|stat| stat.links() == 0);
        let Some(stat) = stat else { return };
        self.inner.objects.forget(stat.id());
        // The last close of a file without a name frees its space, which may take long.
        if stat.attr().size != 0 {
            self.inner.pool.run(Box::new(move || drop(fds)));
        }
    }
}

impl PosixFile {
    fn give(&self, opened: Descriptor) {
        let fd = Arc::new(opened.fd);
        if opened.reads {
            self.reader.get_or_init(|| fd.clone());
        }
        if opened.writes {
            self.writer.get_or_init(|| fd);
        }
    }

    pub(super) fn covers(&self, read: bool, write: bool) -> bool {
        (!read || self.reader.get().is_some()) && (!write || self.writer.get().is_some())
    }

    pub(super) fn inner(&self) -> &Shared {
        &self.inner
    }

    pub(super) fn reader(&self) -> Result<Arc<OwnedFd>, Status> {
        self.reader.get().cloned().ok_or(Status::BadF)
    }

    pub(super) fn writer(&self) -> Result<Arc<OwnedFd>, Status> {
        if self.inner.options.read_only {
            return Err(Status::RoFs);
        }
        self.writer.get().cloned().ok_or(Status::BadF)
    }

    fn any(&self) -> Result<Arc<OwnedFd>, Status> {
        self.writer.get().or(self.reader.get()).cloned().ok_or(Status::BadF)
    }

    /// By the page cache.
    fn read_plain(&self, fd: &Arc<OwnedFd>, offset: u64, into: SgList) -> Answer<usize> {
        let mut done = 0;
        if self.answers_at_once.load(Ordering::Relaxed) {
            // Where files are nothing but memory there is nothing to wait for.
            let flags = if self.inner.in_memory { 0 } else { libc::RWF_NOWAIT };
            match read(fd, offset, &into, &mut done, flags) {
                Ok(()) => return Pending::ready(Ok(done)),
                Err(Errno(libc::EAGAIN)) => {}
                Err(Errno(libc::EOPNOTSUPP)) => {
                    self.answers_at_once.store(false, Ordering::Relaxed);
                }
                Err(errno) => return Pending::ready(Err(data_error(errno))),
            }
        }
        let fd = fd.clone();
        self.inner.call_long(move |_| {
            read(&fd, offset, &into, &mut done, 0).map_err(data_error)?;
            Ok(done)
        })
    }

    /// In the pool, with the server's rights.
    fn call<T: Send + 'static>(
        &self,
        fd: Result<Arc<OwnedFd>, Status>,
        work: impl FnOnce(&Inner, &OwnedFd) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        match fd {
            Err(status) => Pending::ready(Err(status)),
            Ok(fd) => self.inner.call(move |inner| {
                let _server = inner.identities.as_server()?;
                work(inner, &fd)
            }),
        }
    }
}

impl File for PosixFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn generation(&self) -> Option<u64> {
        self.generation
    }

    fn read_at(&self, offset: u64, into: SgList) -> Answer<usize> {
        let fd = match self.reader() {
            Ok(fd) => fd,
            Err(status) => return Pending::ready(Err(status)),
        };
        match self.direct_for(&fd, Way::Read, offset, &into) {
            Some(direct) => self.read_direct(direct, &fd, offset, into),
            None => self.read_plain(&fd, offset, into),
        }
    }

    fn read_then(&self, offset: u64, into: SgList, end: ReadEnd) {
        let fd = match self.reader() {
            Ok(fd) => fd,
            Err(status) => return end.tell(Err(status)),
        };
        match self.direct_for(&fd, Way::Read, offset, &into) {
            Some(direct) => self.read_direct_then(direct, &fd, (offset, into), end),
            None => self.read_plain(&fd, offset, into).then(end),
        }
    }

    fn read_resident(&self, offset: u64, into: &SgList) -> Option<Result<usize, Status>> {
        if !self.answers_at_once.load(Ordering::Relaxed) {
            return None;
        }
        let fd = self.reader().ok()?;
        let flags = if self.inner.in_memory { 0 } else { libc::RWF_NOWAIT };
        let mut done = 0;
        match read(&fd, offset, into, &mut done, flags) {
            Ok(()) => Some(Ok(done)),
            Err(Errno(libc::EAGAIN | libc::EOPNOTSUPP)) => None,
            Err(errno) => Some(Err(data_error(errno))),
        }
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.reader().ok()
    }

    fn write_at(&self, offset: u64, from: SgList, clear_privileges: bool) -> Answer<()> {
        let fd = match self.writer() {
            Ok(fd) => fd,
            Err(status) => return Pending::ready(Err(status)),
        };
        if let Some(direct) = self.direct_for(&fd, Way::Write, offset, &from) {
            return self.write_direct(direct, &fd, (offset, from), clear_privileges);
        }
        if self.inner.writes_here(sg_bytes(&from)) {
            let start = Instant::now();
            let result = write_whole(&self.inner, &fd, offset, &from, clear_privileges);
            self.inner.write_pace.note(start.elapsed());
            return Pending::ready(result);
        }
        self.inner.call_long(move |inner| write_whole(inner, &fd, offset, &from, clear_privileges))
    }

    fn sync(&self, data_only: bool) -> Answer<()> {
        let fresh = self.is_fresh.clone();
        let fd = match self.any() {
            Ok(fd) => fd,
            Err(status) => return Pending::ready(Err(status)),
        };
        self.inner.call_long(move |inner| {
            let _server = inner.identities.as_server()?;
            if let Some(fresh) = fresh.filter(|fresh| fresh.load(Ordering::Acquire)) {
                sync_all(&fd)?;
                fresh.store(false, Ordering::Release);
            }
            sys::fsync(&fd, data_only).map_err(data_error)
        })
    }

    fn truncate(&self, size: u64, clear_privileges: bool) -> Answer<()> {
        self.direct.forget_size();
        self.call(self.writer(), move |_, fd| {
            let size = attr::size(size)?;
            if clear_privileges {
                clear(fd)?;
            }
            Ok(sys::ftruncate(fd, size)?)
        })
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64, clear_privileges: bool) -> Answer<()> {
        self.call(self.writer(), move |_, fd| {
            let (mode, offset, len) = ranges::allocation(mode, offset, len)?;
            if clear_privileges {
                clear(fd)?;
            }
            Ok(sys::fallocate(fd, mode, offset, len)?)
        })
    }

    fn copy_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<u64> {
        self.copy(offset, to, to_offset, len, clear_privileges)
    }

    fn clone_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<()> {
        self.clone_to(offset, to, to_offset, len, clear_privileges)
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Answer<Extents> {
        self.call(self.any(), move |_, fd| ranges::extents(fd, offset, len, most))
    }

    fn link(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Found> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        match self.any() {
            Err(status) => Pending::ready(Err(status)),
            Ok(fd) => self.inner.call(move |inner| inner.link_open(&caller, &fd, &dir, &name)),
        }
    }

    fn seek(&self, offset: u64, kind: SeekKind) -> Answer<Option<u64>> {
        self.call(self.any(), move |_, fd| {
            let whence = match kind {
                SeekKind::Data => libc::SEEK_DATA,
                SeekKind::Hole => libc::SEEK_HOLE,
            };
            match sys::lseek(fd, attr::size(offset)?, whence) {
                Ok(found) => Ok(Some(found)),
                Err(Errno(libc::ENXIO)) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        })
    }

    fn attr(&self) -> Answer<Attr> {
        let of = |fd: &OwnedFd, lazy| Ok(Stat::of(fd, lazy)?.attr());
        if self.inner.local {
            return Pending::ready(self.any().and_then(|fd| of(&fd, true)));
        }
        self.call(self.any(), move |_, fd| of(fd, false))
    }

    fn can_end_at(&self, end: u64) -> bool {
        let Ok(end_offset) = i64::try_from(end) else { return false };
        end <= self.inner.file_bytes_max
            && self.any().is_ok_and(|fd| sys::lseek(&fd, end_offset, libc::SEEK_SET).is_ok())
    }

    fn has_unwritten(&self) -> Option<bool> {
        let fd = self.any().ok()?;
        let tells = || sys::fs_magic(&fd).is_ok_and(|magic| TELLS_STORES.contains(&magic));
        if !*self.tells_stores.get_or_init(tells) {
            return None;
        }
        let pages = sys::unwritten_pages(&fd).or_else(|error| {
            // It is told to owners and root, and this thread may act as somebody else.
            let is_other = error == Errno(libc::EPERM) && self.inner.identities.can_switch();
            let _server = if is_other { self.inner.identities.as_server().ok() } else { None };
            if is_other { sys::unwritten_pages(&fd) } else { Err(error) }
        });
        pages.ok().map(|pages| pages > 0)
    }

    fn public_ancestors(&self) -> Answer<Option<dafs_store::Ancestors>> {
        let asked = |inner: &Inner, fd: &OwnedFd| inner.everybody.ancestors(&inner.objects, fd);
        match self.any() {
            // What leads to an open file is in memory.
            Ok(fd) if self.inner.local => Pending::ready(Ok(asked(&self.inner, &fd))),
            Ok(fd) => self.inner.call(move |inner| Ok(asked(inner, &fd))),
            Err(_) => Pending::ready(Ok(None)),
        }
    }

    fn set_attr(&self, caller: &Caller, set: &SetAttr) -> Answer<Attr> {
        if self.inner.options.read_only {
            return Pending::ready(Err(Status::RoFs));
        }
        let (caller, set) = (caller.clone(), *set);
        match self.any() {
            Err(status) => Pending::ready(Err(status)),
            Ok(fd) => self.inner.call(move |inner| {
                let _acting = inner.identities.act_as(&caller)?;
                attr::set(&fd, FileKind::File, &caller, &set)?;
                Ok(Stat::of(&fd, false)?.attr())
            }),
        }
    }

    fn is_direct(&self) -> bool {
        self.inner.direct
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Inner {
    /// So many bytes go into the page cache in the calling thread: short ones are done sooner
    /// than handed over, as long as the kernel does not let writers wait (for the disk, where too
    /// much is dirty, or for the journal).
    fn writes_here(&self, bytes: usize) -> bool {
        self.local
            && bytes <= self.options.inline_write_bytes
            && (self.in_memory || self.write_pace.is_quick())
    }
}

fn write_whole(
    inner: &Inner,
    fd: &OwnedFd,
    offset: u64,
    from: &[Span],
    clear_privileges: bool,
) -> Result<(), Status> {
    let _server = inner.identities.as_server()?;
    if clear_privileges {
        clear(fd)?;
    }
    write(inner, fd, offset, from, &mut 0)
}

/// Syncs the file system of a file. The first call also tells of errors of other files since this
/// one was opened, once; an error that lasts is told again.
fn sync_all(fd: &OwnedFd) -> Result<(), Status> {
    sys::syncfs(fd).or_else(|_| sys::syncfs(fd)).map_err(data_error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{PosixOptions, PosixStore};

    #[test]
    fn short_writes_are_handed_over_while_they_are_slow() {
        let key = Some(crate::HandleKey([7; 16]));
        let options = PosixOptions { key, ..PosixOptions::default() };
        let store = PosixStore::open(&std::env::temp_dir(), options).expect("a store");
        let inner = &store.inner;
        let short = inner.options.inline_write_bytes;
        assert_eq!((inner.writes_here(short), inner.writes_here(short + 1)), (inner.local, false));
        for _ in 0..8 {
            inner.write_pace.note(Duration::from_millis(10));
        }
        assert_eq!(inner.writes_here(short), inner.in_memory);
        let tried = (0..10_000).any(|_| inner.writes_here(short));
        assert_eq!(tried, inner.local, "now and then");
    }
}
