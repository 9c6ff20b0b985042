//! Memory that processes of one host have in common.
//!
//! An [`Arena::shared`] is a file in memory that peers may map too; an [`Arena::of_peer`] is such a file of
//! theirs. Neither is ever a Rust reference, nor given on: what is in it may change at any time.

use std::ffi::c_int;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Arena, Buffer, HUGE_PAGE_BYTES, Keep, PAGE_BYTES, Readers, Span};
use crate::error::ArenaError;

/// Neither longer nor shorter: who maps it meets no end that was not there.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
pub(super) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// How a mapping of so many bytes is aligned: huge pages of a file are mapped as such where they may be.
pub(super) fn align_of(bytes: usize) -> usize {
    if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES }
}

/// The file of a shared arena, for a peer that is to map it.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    len: usize,
    /// What peers are given who are to read it, and no more, and who they are.
    pub(super) for_readers: Option<(OwnedFd, Readers)>,
    retired: AtomicBool,
}

impl SharedFile {
    /// A file of whole pages that nobody else can open.
    pub(super) fn new(len: usize) -> Result<SharedFile> {
        check_limit(len)?;
        let fd = memory_file()?;
        let size = libc::off_t::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        // It is born for everybody, to whom it is shown through /proc.
        // SAFETY: a call on a descriptor that is open.
        ok(unsafe { libc::fchmod(fd.as_raw_fd(), 0o600) })?;
        // SAFETY: as above.
        ok(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
        // SAFETY: as above.
        ok(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let retired = AtomicBool::new(false);
        Ok(SharedFile { fd, len, for_readers: None, retired })
    }

    /// A peer may write to it for ever: a process that has died, whose child may have it mapped. Who has
    /// memory in it keeps that; no more is [cut](super::SharedPool) from it.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// See [`retire`](Self::retire).
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// From now on nobody seals it in another way, as a peer could who has it to write: that nobody maps it
    /// for writing any more, say.
    pub(super) fn close_seals(&self) -> Result<()> {
        self.seal(libc::F_SEAL_SEAL)
    }

    /// Only who has it mapped already writes to it, also by a descriptor that is opened again.
    pub(super) fn close_for_writing(&self) -> Result<()> {
        self.seal(libc::F_SEAL_FUTURE_WRITE)
    }

    fn seal(&self, seals: c_int) -> Result<()> {
        // SAFETY: a call on a descriptor that is open.
        ok(unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
    }

    /// Bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

static OF_PEERS: AtomicU64 = AtomicU64::new(0);

/// Bytes of files of peers that this process maps, those of rings aside.
pub fn mapped_of_peers() -> u64 {
    OF_PEERS.load(Ordering::Relaxed)
}

/// Counts as [mapped](mapped_of_peers) until it is dropped.
#[derive(Debug)]
pub struct MappedOfPeer(u64);

impl MappedOfPeer {
    /// So many bytes.
    pub fn new(bytes: u64) -> MappedOfPeer {
        OF_PEERS.fetch_add(bytes, Ordering::Relaxed);
        MappedOfPeer(bytes)
    }
}

impl Drop for MappedOfPeer {
    fn drop(&mut self) {
        OF_PEERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Where a span is in a shared file.
#[derive(Debug, Clone)]
pub struct SharedPart {
    /// Of its arena: the same for all spans of that.
    pub file: Arc<SharedFile>,
    /// Of the span's first byte.
    pub offset: usize,
}

/// Who makes a file longer than its limit is ended by the system, with what is said here.
fn check_limit(bytes: usize) -> Result<()> {
    // SAFETY: all bytes zero is a value of this structure.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a structure to be filled.
    ok(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) })?;
    if bytes as u64 > limit.rlim_cur {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(())
}

/// A new file in memory, of which nobody else knows. That it is no program is
/// sealed where the system can (since Linux 6.3, which complains in its log of files that do not say).
fn memory_file() -> Result<OwnedFd> {
    let create = |more| {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
        // SAFETY: the name is a string of C.
        ok(unsafe { libc::memfd_create(c"dafs".as_ptr(), flags) })
    };
    let unknown = |error: &Error| error.raw_os_error() == Some(libc::EINVAL);
    let fd = match create(libc::MFD_NOEXEC_SEAL) {
        Err(error) if unknown(&error) => create(0)?,
        made => made?,
    };
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the system said of memory that could not be had.
pub(super) fn system(error: ArenaError) -> Error {
    match error {
        ArenaError::System { source, .. } => source,
        other => Error::other(other),
    }
}

pub(super) fn ok(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// The seals of a file in memory; `None`: it is none. No file system is asked.
fn seals_of(fd: BorrowedFd<'_>) -> Option<c_int> {
    // SAFETY: a call on a descriptor that is open.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

/// It is a file in memory, which nobody else's program answers for. Does not wait, whatever it is.
pub fn is_memory_file(fd: BorrowedFd<'_>) -> bool {
    seals_of(fd).is_some()
}

/// The bytes of a file that a peer says it shares, if there is nothing wrong with it.
pub(super) fn checked_bytes(fd: BorrowedFd<'_>, bytes_max: usize) -> Result<usize> {
    let wrong = |text: &str| Err(Error::new(ErrorKind::InvalidData, text));
    // Of anything else not even its file system is asked: that may be a program of the peer's.
    let Some(seals) = seals_of(fd) else {
        return wrong("shared memory that is no memory of the system's");
    };
    if seals & libc::F_SEAL_SHRINK == 0 {
        return wrong("shared memory that can become shorter");
    }
    // SAFETY: all bytes zero is a value of this structure.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor that is open, and a structure to be filled.
    ok(unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) })?;
    // A file of huge pages takes the seals as well, and ends whom it has no page for.
    if system.f_type != libc::TMPFS_MAGIC {
        return wrong("shared memory that is no memory of the system's");
    }
    // Only now: before, it could change.
    // SAFETY: all bytes zero is a value of this structure.
    let mut file: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor that is open, and a structure to be filled.
    ok(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut file) })?;
    match usize::try_from(file.st_size) {
        Ok(len) if len > 0 && len.is_multiple_of(PAGE_BYTES) && len <= bytes_max => Ok(len),
        _ => wrong("shared memory of a size that was not agreed"),
    }
}

impl Arena {
    /// As [`new`](Arena::new), of memory that peers of this host can be given: see [`Span::shared`]. A
    /// child after fork does not have it. From [`HUGE_PAGE_BYTES`] on it is aligned to those.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn shared(bytes: usize) -> std::result::Result<Arc<Arena>, ArenaError> {
        Arena::map_shared(bytes, |file| file.close_seals())
    }

    /// As [`shared`](Arena::shared), but nobody else ever writes to it: for what peers are to read.
    ///
    /// # Errors
    /// As of `shared`.
    pub fn shown(bytes: usize) -> std::result::Result<Arc<Arena>, ArenaError> {
        Arena::map_shared(bytes, |file| file.close_for_writing().and_then(|()| file.close_seals()))
    }

    fn map_shared(
        bytes: usize,
        close: impl FnOnce(&SharedFile) -> Result<()>,
    ) -> std::result::Result<Arc<Arena>, ArenaError> {
        let mut arena = Arena::map(bytes, align_of(bytes))?;
        let len = arena.len;
        let refused = |source| ArenaError::System { bytes: len, source };
        let file = SharedFile::new(len).map_err(refused)?;
        arena.show(file.as_fd(), READ_WRITE).map_err(refused)?;
        close(&file).map_err(refused)?;
        arena.file = Some(Arc::new(file));
        Ok(Arc::new(arena))
    }

    /// Memory that a peer of this host shares, as it says, of at most so many bytes: all of the file. The
    /// descriptor is not needed any more. It stays what it was made of, whatever the peer does, and cannot
    /// be [shared](Span::shared) on.
    ///
    /// # Errors
    /// [`InvalidData`](ErrorKind::InvalidData): it is no such file (of memory, never shorter, whole pages,
    /// no longer than agreed). The system's: it cannot be mapped, to be written.
    pub fn of_peer(fd: BorrowedFd<'_>, bytes_max: usize) -> Result<Arc<Arena>> {
        let len = checked_bytes(fd, bytes_max)?;
        let room = Arena::map(len, align_of(len)).map_err(system)?;
        room.show(fd, READ_WRITE)?;
        Ok(Arc::new(room))
    }

    /// Maps a file where the arena is.
    pub(super) fn show(&self, fd: BorrowedFd<'_>, prot: c_int) -> Result<()> {
        let start = self.base.as_ptr().cast();
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: in place of our own mapping, of which nobody has a span yet.
        let mapped = unsafe { libc::mmap(start, self.len, prot, flags, fd.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        // SAFETY: the range is mapped; its contents stay.
        ok(unsafe { libc::madvise(start, self.len, libc::MADV_DONTFORK) }).map(drop)
    }

    /// Makes huge pages of a shared range, where the system does: of one of which every page was touched
    /// that is to be one.
    pub(super) fn collapse(&self, offset: usize, len: usize) {
        for at in (offset..offset + len).step_by(HUGE_PAGE_BYTES) {
            self.populate(at, PAGE_BYTES.min(offset + len - at));
        }
        // SAFETY: inside the mapping: the caller checked its range.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the range is mapped; its contents stay. A system that cannot refuses, and nothing
        // happens.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_COLLAPSE) };
    }
}

impl Span {
    /// By which file, and where in it, a peer of this host can have the same memory; `None` for memory
    /// that is this process's alone.
    pub fn shared(&self) -> Option<SharedPart> {
        let arena = match &self.keep {
            Keep::Arena(arena) => arena,
            Keep::Buffer(memory) => &memory.arena,
            Keep::LentMut(_) | Keep::Lent(_) | Keep::File(_) | Keep::Readable { .. } => {
                return None;
            }
        };
        let offset = usize::try_from(self.addr() - arena.base.as_ptr() as u64).ok()?;
        Some(SharedPart { file: arena.file.clone()?, offset })
    }

    /// A peer of this host can be given it.
    pub fn is_shared(&self) -> bool {
        match &self.keep {
            Keep::Arena(arena) => arena.file.is_some(),
            Keep::Buffer(memory) => memory.arena.file.is_some(),
            Keep::LentMut(_) | Keep::Lent(_) | Keep::File(_) | Keep::Readable { .. } => false,
        }
    }
}

impl Buffer {
    /// As [`many`](Buffer::many), cut from an [`Arena::shared`].
    ///
    /// # Errors
    /// The system refused.
    pub fn many_shared(count: usize, bytes: usize) -> std::result::Result<Vec<Buffer>, ArenaError> {
        Buffer::cut_many(count, bytes, Arena::shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(flags: libc::c_uint, bytes: usize, seals: c_int) -> Option<OwnedFd> {
        let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string of C.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a new descriptor, of which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(bytes).expect("small");
        // SAFETY: a call on a descriptor that is open.
        ok(unsafe { libc::ftruncate(fd.as_raw_fd(), size) }).expect("sized");
        // SAFETY: as above.
        ok(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).expect("sealed");
        Some(fd)
    }

    fn refusal(fd: BorrowedFd<'_>, bytes_max: usize) -> String {
        Arena::of_peer(fd, bytes_max).expect_err("refused").to_string()
    }

    #[test]
    fn both_ends_have_the_same_memory() {
        let arena = Arena::shared(3 * PAGE_BYTES + 1).expect("memory");
        let span = arena.span(PAGE_BYTES + 5, 10);
        let part = span.shared().expect("shared");
        assert_eq!((part.offset, part.file.len()), (PAGE_BYTES + 5, 4 * PAGE_BYTES));
        let peer = Arena::of_peer(part.file.as_fd(), part.file.len()).expect("mapped");
        let theirs = peer.span(part.offset, 10);
        assert!(span.is_shared() && !theirs.is_shared() && theirs.shared().is_none());
        span.copy_from(0, b"0123456789");
        let mut seen = [0; 10];
        theirs.copy_to(0, &mut seen);
        assert_eq!(&seen, b"0123456789");
        // Given back, it is gone for both.
        arena.discard(PAGE_BYTES, PAGE_BYTES).expect("a hole");
        theirs.copy_to(0, &mut seen);
        assert_eq!(seen, [0; 10]);
        // A mapping outlives its maker's.
        theirs.copy_from(0, b"abc");
        drop((span, arena, part));
        theirs.copy_to(0, &mut seen);
        assert_eq!(&seen[..4], b"abc\0");
    }

    #[test]
    fn private_memory_is_not_shared() {
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        assert!(arena.span(0, 1).shared().is_none() && !arena.span(0, 1).is_shared());
        super::super::lend(b"lent", |span| assert!(span.shared().is_none()));
        let [one, two] = Buffer::many_shared(2, 5000).expect("memory").try_into().expect("two");
        let (one, two) = (one.post(), two.post());
        let part = |posted: &super::super::PostedBuffer| posted.span().shared().expect("shared");
        assert!(Arc::ptr_eq(&part(&one).file, &part(&two).file));
        assert_eq!((part(&one).offset, part(&two).offset), (0, 2 * PAGE_BYTES));
    }

    #[test]
    fn nobody_else_can_open_it_or_change_its_size() {
        let arena = Arena::shared(PAGE_BYTES).expect("memory");
        let part = arena.span(0, 1).shared().expect("shared");
        let fd = part.file.as_fd().as_raw_fd();
        for bytes in [0, 2 * PAGE_BYTES] {
            let size = libc::off_t::try_from(bytes).expect("small");
            // SAFETY: a call on a descriptor that is open.
            assert!(ok(unsafe { libc::ftruncate(fd, size) }).is_err());
        }
        let mode = std::fs::metadata(format!("/proc/self/fd/{fd}")).expect("there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
        assert_eq!(mode & 0o7777, 0o600);
    }

    /// A peer who has a descriptor has it open for writing, or can open it again so.
    fn opened_again(fd: BorrowedFd<'_>) -> std::fs::File {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        std::fs::File::options().read(true).write(true).open(path).expect("ours")
    }

    #[test]
    fn peers_cannot_seal_what_is_shared() {
        let arena = Arena::shared(PAGE_BYTES).expect("memory");
        let file = arena.span(0, 1).shared().expect("shared").file;
        for seals in [libc::F_SEAL_FUTURE_WRITE, libc::F_SEAL_WRITE, libc::F_SEAL_SEAL] {
            for fd in [file.as_fd(), opened_again(file.as_fd()).as_fd()] {
                // SAFETY: a call on a descriptor that is open.
                let sealed = ok(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) });
                assert_eq!(sealed.expect_err("closed").raw_os_error(), Some(libc::EPERM));
            }
        }
        assert!(Arena::of_peer(file.as_fd(), PAGE_BYTES).is_ok(), "others may map it still");
    }

    #[test]
    fn nobody_writes_to_what_is_shown() {
        let arena = Arena::shown(PAGE_BYTES).expect("memory");
        arena.span(0, 5).copy_from(0, b"shown");
        let file = arena.span(0, 1).shared().expect("shared").file;
        let again = opened_again(file.as_fd());
        assert!(std::io::Write::write(&mut &again, b"x").is_err());
        assert!(Arena::of_peer(again.as_fd(), PAGE_BYTES).is_err(), "mapped for writing");
        let read = super::super::Words::of_peer(again.as_fd(), PAGE_BYTES).expect("to be read");
        arena.span(8, 8).copy_from(0, &7u64.to_le_bytes());
        assert_eq!(read.load(1, Ordering::Relaxed), 7);
    }

    #[test]
    fn files_that_could_end_this_process_are_refused() {
        let shrinks = memfd(0, PAGE_BYTES, libc::F_SEAL_GROW).expect("a file");
        assert!(refusal(shrinks.as_fd(), 1 << 20).contains("can become shorter"));
        let sealed = |bytes| memfd(0, bytes, libc::F_SEAL_SHRINK).expect("a file");
        for bytes in [0, 100, PAGE_BYTES + 1, 2 << 20] {
            assert!(refusal(sealed(bytes).as_fd(), 1 << 20).contains("not agreed"), "{bytes}");
        }
        assert!(Arena::of_peer(sealed(1 << 20).as_fd(), 1 << 20).is_ok());
        let written = memfd(0, PAGE_BYTES, SEALS | libc::F_SEAL_WRITE).expect("a file");
        assert!(Arena::of_peer(written.as_fd(), 1 << 20).is_err(), "it cannot be written");
        if let Some(huge) = memfd(libc::MFD_HUGETLB, HUGE_PAGE_BYTES, SEALS) {
            assert!(refusal(huge.as_fd(), 1 << 30).contains("no memory of the system's"));
        }
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(Arena::of_peer(file.as_fd(), 1 << 20).is_err());
        let (pipe, _end) = std::io::pipe().expect("a pipe");
        assert!(Arena::of_peer(pipe.as_fd(), 1 << 20).is_err());
    }

    #[test]
    fn a_large_one_begins_where_a_huge_page_can() {
        let arena = Arena::shared(2 * HUGE_PAGE_BYTES + PAGE_BYTES).expect("memory");
        let whole = arena.span(0, arena.len());
        assert_eq!(whole.addr() as usize % HUGE_PAGE_BYTES, 0);
        whole.copy_from(HUGE_PAGE_BYTES, b"stays");
        arena.populate_huge(0, arena.len());
        let mut seen = [0; 6];
        whole.copy_to(HUGE_PAGE_BYTES, &mut seen);
        assert_eq!(&seen, b"stays\0");
    }
}
